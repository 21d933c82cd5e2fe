"""Prompts known to be long: which those are, and what is learnt of a prompt that was given up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer import KnownLong, Prompt


def knowing(share: float, lengths: list[int]) -> KnownLong:
    known = KnownLong(share)
    for identity, tokens in enumerate(lengths):
        known.learn(Prompt(0, identity), tokens, True)
    known.next_round()
    return known


def long_ones(known: KnownLong, count: int) -> list[int]:
    return [identity for identity in range(count) if known.is_long(Prompt(1, identity))]


@given(
    st.lists(st.integers(1, 12), max_size=40).map(lambda exps: [2**each for each in exps]),
    st.floats(0.0, 1.0, exclude_min=True),
)
def test_the_longest_are_known_at_most_the_share_unless_many_are_as_long_as_the_longest(
    lengths: list[int], share: float
) -> None:
    found = long_ones(knowing(share, lengths), len(lengths))
    shortest = min((lengths[identity] for identity in found), default=None)
    assert found == [i for i, tokens in enumerate(lengths) if shortest is not None and tokens >= shortest]
    if lengths:
        top = lengths.count(max(lengths)) / len(lengths)
        assert len(found) / len(lengths) <= max(share, top if top <= 0.5 else 0.0)
        assert found or top > max(share, 0.5)


def test_predictions_use_what_was_learnt_from_the_next_round_on() -> None:
    known = KnownLong(0.25)
    for identity in range(8):
        known.learn(Prompt(0, identity), 100 * (identity + 1), True)
    assert long_ones(known, 9) == []
    known.next_round()
    assert long_ones(known, 9) == [6, 7]
    assert not known.is_long(Prompt(1, 7, "another domain"))


def test_what_was_cut_short_is_at_least_so_long_and_what_was_whole_is_exactly_so_long() -> None:
    known = knowing(0.5, [100] * 10)
    known.learn(Prompt(1, 0), 500, False)
    known.learn(Prompt(1, 1), 50, False)
    known.learn(Prompt(1, 2), 0, False)
    known.next_round()
    assert long_ones(known, 10) == [0]
    known.learn(Prompt(1, 0), 90, True)
    known.next_round()
    assert long_ones(known, 10) == []


def test_what_is_known_survives_a_restart() -> None:
    known, restored = KnownLong(0.25), KnownLong(0.25)
    restored.restore(json.loads(json.dumps(known.state())))
    assert restored.state() == known.state()
    for identity in ("a", 1, "b", 2):
        known.learn(Prompt(0, identity), 10 if identity == 1 else 5, True)
    known.next_round()
    restored.restore(json.loads(json.dumps(known.state())))
    for each in (known, restored):
        assert each.is_long(Prompt(1, 1))
        each.learn(Prompt(1, 1), 1, True)
        each.next_round()
    assert restored.state() == known.state()
    assert not restored.is_long(Prompt(2, 1))


def test_a_share_of_none_is_none() -> None:
    assert long_ones(knowing(0.0, [1, 2, 3, 400]), 4) == []


def test_a_share_of_more_than_all_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"known_long\.share = 1\.5"):
        KnownLong(1.5)
