"""Lengths: distributed as measured whatever explains them, alike for one prompt, and the same for every system."""

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.sim.job.lengths import TABLE, LengthQuantiles
from rollmux.sim.job.rewards import Program
from rollmux.sim.job.setup import Domain, Source
from rollmux.sim.job.shipped import DOMAINS, SETUPS

UNCAPPED = 10**9
LENGTHS = LengthQuantiles((100, 400, 1000), (0.1, 0.5, 0.9), (2000, 0.04), (8000, 0.01))


def drawn(lengths: LengthQuantiles, prompts: int, each: int, cap: int = UNCAPPED) -> list[list[int]]:
    """Responses of so many prompts."""
    rng = Random(3)
    found = []
    for _ in range(prompts):
        hardness = rng.gauss(0, 1)
        found.append([lengths.drawn(hardness, rng, cap) for _ in range(each)])
    return found


def correlation(pairs: list[list[int]]) -> float:
    """Of the ranks, which no shape of the distribution changes."""
    order = {tokens: rank for rank, tokens in enumerate(sorted({t for pair in pairs for t in pair}))}
    ones, others = ([order[pair[i]] for pair in pairs] for i in (0, 1))
    mean = sum(ones + others) / (2 * len(pairs))
    covariance = sum((a - mean) * (b - mean) for a, b in zip(ones, others, strict=True))
    return covariance / sqrt(sum((a - mean) ** 2 for a in ones) * sum((b - mean) ** 2 for b in others))


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_the_shares_are_those_that_were_measured(domain: Domain) -> None:
    lengths = domain.lengths
    for share, tokens in zip(lengths.shares, lengths.tokens, strict=True):
        assert lengths.below(share) == tokens
    (knee, above), (cap, cut) = lengths.above, lengths.at_cap
    assert lengths.below(1 - above) == knee
    assert lengths.below(1 - cut) == pytest.approx(cap, abs=1)
    assert lengths.below(1 - cut / 2) > cap


@given(st.floats(0.0, 0.9999), st.floats(0.0, 0.9999))
def test_a_larger_share_needs_a_greater_length(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1 <= LENGTHS.below(low) <= LENGTHS.below(high)


@pytest.mark.parametrize("at_cap", [0.03, 0.0399, 0.03999999, 0.04 - 1e-17])
def test_responses_that_pile_up_at_the_cap_are_long_and_no_error(at_cap: float) -> None:
    table = replace(LENGTHS, at_cap=(8000, at_cap)).table
    assert list(table) == sorted(table)
    assert table[int(TABLE * (1 - at_cap / 2))] > 8000


def test_between_what_was_measured_nothing_jumps() -> None:
    steps = [LENGTHS.below(i / 10_000) for i in range(10_000)]
    assert max(after / before for before, after in pairwise(steps[1000:9900])) < 1.03


@pytest.mark.parametrize("alike", [0.0, 0.15, 0.5, 1.0])
def test_the_distribution_is_the_measured_one_whatever_the_prompt_explains(alike: float) -> None:
    lengths = replace(LENGTHS, alike=alike)
    tokens = sorted(response for prompt in drawn(lengths, 20_000, 1) for response in prompt)
    for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.96, 0.99):
        longer = sum(t > lengths.below(share) for t in tokens) / len(tokens)
        assert longer == pytest.approx(1 - share, abs=3 * sqrt(share * (1 - share) / len(tokens)) + 1 / TABLE)


def test_responses_to_one_prompt_are_the_more_alike_the_more_it_explains() -> None:
    found = [correlation(drawn(replace(LENGTHS, alike=alike), 4000, 2)) for alike in (0.0, 0.15, 0.5, 0.9, 1.0)]
    assert found[0] == pytest.approx(0.0, abs=0.04)
    assert all(after > before + 0.05 for before, after in pairwise(found))
    assert found[-1] == pytest.approx(1.0)


def test_what_would_be_longer_is_cut_off_at_the_cap() -> None:
    whole, capped = (drawn(LENGTHS, 3000, 1, cap) for cap in (UNCAPPED, 1500))
    assert [[min(1500, tokens) for tokens in prompt] for prompt in whole] == capped
    assert 0 < sum(prompt == [1500] for prompt in capped) < 300


# -- the data that they are drawn for --------------------------------------------------------------------------------


def test_each_epoch_is_all_prompts_once_in_a_new_order() -> None:
    setup = SETUPS["7B/8k"]
    setup = replace(setup, domains=tuple(replace(domain, size=50) for domain in setup.domains))
    source = Source(setup, 0)
    epochs = [[source.draw("math") for _ in range(50)] for _ in range(3)]
    assert [{prompt.epoch for prompt in epoch} for epoch in epochs] == [{0}, {1}, {2}]
    orders = [[prompt.id for prompt in epoch] for epoch in epochs]
    assert sorted(map(str, orders[0])) == sorted(map(str, orders[1])) == sorted(map(str, orders[2]))
    assert len({*orders[0]}) == 50
    assert orders[0] != orders[1] != orders[2]


def test_a_response_is_the_same_whoever_asks_in_whatever_order() -> None:
    setup = SETUPS["7B/8k"]
    one, other = Source(setup, 5), Source(setup, 5)
    prompts = [one.draw("code") for _ in range(4)]
    assert prompts == [other.draw("code") for _ in range(4)]

    def told(source: Source, backwards: bool) -> dict[tuple[int, int], tuple[int, Program]]:
        asked = [(i, sample) for i in range(4) for sample in range(10)]
        asked = asked[::-1] if backwards else asked
        return {(i, sample): source.response(prompts[i], sample, 1) for i, sample in asked}

    first = told(one, backwards=False)
    assert first == told(other, backwards=True)
    assert len({tokens for tokens, _ in first.values()}) > 20
    assert one.response(prompts[0], 0, 2) != first[0, 0]
    assert Source(setup, 6).response(prompts[0], 0, 1) != first[0, 0]


def test_a_response_that_is_cut_off_holds_no_right_program() -> None:
    setup = replace(SETUPS["7B/8k"], cap=200)
    source = Source(setup, 0)
    responses = [source.response(source.draw("code"), 0, 1) for _ in range(200)]
    cut = [program for tokens, program in responses if tokens == 200]
    assert len(cut) > 100
    assert not any(program.correct for program in cut)
    assert all(tokens <= 200 for tokens, _ in responses)
