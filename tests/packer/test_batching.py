"""Settings: everything wrong with them is told at once, and a checkpoint is taken only by what it was made by."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer import AdaptiveEta, Batching, KnownLong, Race, TailBatcher, batching_problems
from rollmux.packer.batching import launches


def paths(batching: Batching) -> list[str]:
    return [problem.path.removeprefix("batching.") for problem in batching_problems(batching)]


def test_every_problem_is_told_at_once() -> None:
    wrong: Any = Batching(0, 2.5, 0.9, float("inf"), "first", {"": 1, "b": 0}, 0, -1, -1)  # type: ignore[arg-type]
    assert paths(wrong) == [
        "prompts",
        "responses",
        "eta_prompts",
        "eta_responses",
        "max_wait_rounds",
        "retries",
        "most_filtered",
        "race",
        "quotas",
        "quotas.b",
    ]
    with pytest.raises(InvalidSpec, match="batching has 10 problems"):
        TailBatcher(wrong)


@pytest.mark.parametrize(
    ("quotas", "told"),
    [
        ({"a": 42, "b": 42, "c": 44}, []),
        ((("a", 64), ("b", 64)), []),
        ({"a": 42, "b": 42, "c": 42}, ["quotas"]),
        ((("a", 64), ("a", 64)), ["quotas.a", "quotas.a"]),
        ({"a": True, "b": 127}, ["quotas.a"]),
        ({3: 128}, ["quotas"]),
        ([("a", 128)], ["quotas"]),
        (("a", "b"), ["quotas"]),
    ],
)
def test_quotas_share_out_the_prompts_of_a_step(quotas: Any, told: list[str]) -> None:
    assert paths(Batching(128, 8, quotas=quotas)) == told


def test_quotas_are_what_they_were_when_they_were_given() -> None:
    quotas = {"a": 64, "b": 64}
    batching = Batching(128, 8, quotas=quotas)
    quotas["a"] = 1
    assert batching.lanes == (("a", 64), ("b", 64))


@given(st.integers(1, 200), st.floats(1.0, 16.0), st.integers(1, 20))
def test_a_wait_is_refused_exactly_if_one_round_could_defer_more_than_fits_in_it(
    prompts: int, eta: float, wait: int
) -> None:
    deferred = launches(prompts, eta) - prompts
    told = paths(Batching(prompts, 1, eta, max_wait_rounds=wait))
    assert told == (["max_wait_rounds"] if deferred > wait * prompts else [])


@pytest.mark.parametrize(
    ("wanted", "factor", "launched"), [(100, 1.15, 115), (128, 1.25, 160), (42, 1.25, 52), (3, 1.3, 3), (10, 1.0, 10)]
)
def test_a_factor_is_the_decimal_that_was_written(wanted: int, factor: float, launched: int) -> None:
    assert launches(wanted, factor) == launched


# -- checkpoints -------------------------------------------------------------------------------------------------------

BATCHING = Batching(4, 2)


def test_a_checkpoint_of_another_version_is_refused() -> None:
    state = TailBatcher(BATCHING).state()
    for version in (state["version"] + 1, None):
        with pytest.raises(InvalidSpec, match=r"state\.version = "):
            TailBatcher.from_state(BATCHING, {**state, "version": version})
    with pytest.raises(InvalidSpec, match=r"state\.version = 'text'"):
        TailBatcher.from_state(BATCHING, "text")  # type: ignore[arg-type]


def test_a_checkpoint_says_all_in_which_the_settings_differ() -> None:
    state = TailBatcher(BATCHING, known_long=KnownLong()).state()
    other = Batching(6, 2, race=Race.NONE, quotas={"a": 3, "b": 3})
    with pytest.raises(InvalidSpec) as refusal:
        TailBatcher.from_state(other, state, eta=AdaptiveEta())
    assert [problem.path for problem in refusal.value.problems] == [
        "batching.prompts",
        "batching.race",
        "batching.quotas",
        "policies.eta",
        "policies.known_long",
    ]


def test_factors_and_retries_may_change_at_a_restart() -> None:
    state = TailBatcher(BATCHING).state()
    TailBatcher.from_state(replace(BATCHING, eta_prompts=1.5, eta_responses=1.0, retries=5), state)


@pytest.mark.parametrize("part", ["round", "queue", "ledger", "drawing", "number", "eta"])
def test_a_checkpoint_with_a_part_missing_is_refused_as_one(part: str) -> None:
    state = TailBatcher(BATCHING).state()
    del state[part]
    with pytest.raises(InvalidSpec, match="a whole checkpoint"):
        TailBatcher.from_state(BATCHING, state)


def test_a_checkpoint_is_plain_json() -> None:
    state = TailBatcher(BATCHING, known_long=KnownLong(), eta=AdaptiveEta()).state()
    assert json.loads(json.dumps(state, allow_nan=False)) == state
