"""The figures of the learning benchmark: equivalence, gains, and runs that are kept and repeat themselves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures.equivalence import Difference
from benchmarks.figures.learning_runs import BOTH, MODES, PROMPTS, SYNC, Case, Run, Step, Worth, keep, kept, warmed
from benchmarks.figures.learning_runs import missing as missing_of
from benchmarks.figures.learning_runs import train as train_of
from benchmarks.figures.learning_tables import COSTS, final, gains, gains_to_target, learnt_part, parts_of, reached
from rollmux.trainer.parts import Parts
from tests.trainer.jobs import tiny

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
STEPS, CLOCK = COSTS["decode steps"], COSTS["step, clock"]


def made_up(mode: str, rewards: list[float], sweeps: int = 10, seed: int = 0) -> Run:
    """A step between any two rewards, and each as long."""
    steps = tuple(Step("short", 0.5, 4, 40, 50, sweeps, 2.0, 1.0, 1.0, 0.5) for _ in rewards[1:])
    worth = tuple(Worth(number, reward, reward, 10.0) for number, reward in enumerate(rewards))
    lengths: dict[str, Any] = {"mean_shift": 0.0, "kolmogorov_smirnov": 0.0}
    lengths |= {side: {"p50": 5.0, "p90": 9.0, "p99": 20.0} for side in ("offered", "trained")}
    return Run(mode, seed, steps, worth, lengths, {"1": 4}, 0, 3.0, 0.0, None)


def asked_after(steps: set[int], run: Run) -> Run:
    """The run, had it been asked after these steps alone."""
    return replace(run, worth=tuple(each for each in run.worth if each.steps in steps))


# -- equivalence -------------------------------------------------------------------------------------------------------


def test_an_interval_of_differences_is_the_textbooks() -> None:
    found = Difference.of([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.1318 * 1.5811 / 5**0.5, rel=1e-3)  # t of 4 degrees at 95 %, one-sided


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, -0.01, 0.01, -0.01], "equal"),
        ([0.2, -0.2, 0.1, -0.1], "not decided"),
        ([-0.20, -0.21, -0.19, -0.2], "worse"),
        ([0.20, 0.21, 0.19, 0.2], "better"),
        ([-0.02, -0.021, -0.019, -0.02], "equal, worse by little"),
    ],
)
def test_equal_is_only_what_surely_lies_within_the_margin(differences: list[float], verdict: str) -> None:
    assert Difference.of(differences, [0.0] * 4).verdict(0.05) == verdict


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9), st.floats(1e-3, 1))
def test_the_smallest_margin_is_where_the_verdict_turns(differences: list[float], more: float) -> None:
    found = Difference.of(differences, [0.0] * len(differences))
    assert found.verdict(found.margin + more).startswith("equal")
    assert not found.verdict(found.margin).startswith("equal")


# -- what is learnt ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "worth"), [({0, 4}, 0.8), ({0, 2, 4}, 0.8), ({0, 3, 4}, 0.7), (set(range(5)), 0.7)])
def test_the_end_is_the_last_two_askings_of_the_second_half(asked: set[int], worth: float) -> None:
    assert final(asked_after(asked, made_up(SYNC, [0.1, 0.3, 0.5, 0.6, 0.8]))) == pytest.approx(worth)


def test_what_was_asked_before_training_hides_no_difference() -> None:
    ends = dict.fromkeys(MODES, (0.50, 0.51)) | {PROMPTS: (0.42, 0.43)}
    runs = {
        mode: [asked_after({0, 3}, made_up(mode, [0.1, 0.1, 0.1, end], seed=seed)) for seed, end in enumerate(each)]
        for mode, each in ends.items()
    }
    row = next(row for row in learnt_part(runs).rows if row["mode"] == PROMPTS)
    assert (row["minus sync"], row["verdict"]) == ("-0.080 ±0.000", "worse")


@pytest.mark.parametrize("name", ["learning", "learning_smollm2"])
def test_a_kept_result_says_what_its_own_askings_say(name: str) -> None:
    measured = json.loads((RESULTS / f"{name}.json").read_text())["measured"]
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for each in measured["runs"]:
        run = made_up(each["mode"], [0.0] * (each["worth"][-1][0] + 1), seed=each["seed"])
        worth = tuple(Worth(steps, reward, 0.0, 0.0) for steps, reward in each["worth"])
        runs[run.mode].append(replace(run, worth=worth))
    said = {row["mode"]: row for row in measured["rows"] if row["table"] == "What is learnt"}
    for row in learnt_part(runs).rows:
        for key in ("before", "after", "minus sync", "smallest margin", "verdict"):
            assert row[key] == said[row["mode"]][key], (row["mode"], key)


# -- gains -------------------------------------------------------------------------------------------------------------


def test_a_gain_is_what_sync_takes_over_what_the_mode_takes() -> None:
    runs = {SYNC: [made_up(SYNC, [0, 1], 30)], PROMPTS: [made_up(PROMPTS, [0, 1], 10)]}
    assert gains(runs, PROMPTS, STEPS) == [3.0]
    assert gains(runs, PROMPTS, CLOCK) == [1.0]


def test_a_reward_is_reached_between_two_askings() -> None:
    run = made_up(SYNC, [0.2, 0.4, 0.8])
    assert reached(run, 0.6, STEPS) == pytest.approx(15)
    assert reached(run, 0.1, STEPS) == 0
    assert reached(run, 0.9, STEPS) is None


def test_time_to_the_same_reward_is_told_of_the_seeds_that_reach_it() -> None:
    sync = [made_up(SYNC, [0.0, 0.4, 0.8, 0.8], seed=seed) for seed in range(2)]
    ours = [made_up(PROMPTS, [0.0, 0.8, 0.8, 0.8]), made_up(PROMPTS, [0.0, 0.1, 0.1, 0.1], seed=1)]
    assert gains_to_target({SYNC: sync, PROMPTS: ours}, PROMPTS, STEPS) == [pytest.approx(15 / 7.5)]


def test_every_mode_is_in_every_table_that_compares_with_sync() -> None:
    runs = {mode: [made_up(mode, [0.1, 0.5, 0.6], 10 + seed, seed) for seed in range(2)] for mode in MODES}
    for part in parts_of(runs):
        assert {row["mode"] for row in part.rows} >= MODES.keys() - {SYNC}, part.title


# -- runs --------------------------------------------------------------------------------------------------------------


def without_times(run: Run) -> Run:
    steps = tuple(replace(s, rollout_s=0, train_s=0, rollout_cpu_s=0, train_cpu_s=0) for s in run.steps)
    return replace(run, steps=steps, wall_s=0.0, other_cpu_cores=0.0)


def test_runs_are_kept_and_the_rest_begins_with_the_weights_of_its_seed(tmp_path: Path) -> None:
    job, path = tiny(steps=2), tmp_path / "runs" / "kept.jsonl"
    cases = [Case(replace(job, seed=seed), mode, 2, 4) for seed in (0, 1) for mode in (SYNC, BOTH)]
    assert len({case.key for case in cases}) == 4
    first, weights = next(missing_of(cases, {}))
    run = train_of(first, weights)
    keep(path, first, run)
    with path.open("a") as file:
        file.write('{"key": "half a li')
    assert kept(path) == {first.key: run}
    keep(path, cases[1], run)
    assert list(kept(path)) == [first.key, cases[1].key]
    left = list(missing_of(cases, kept(path)))
    assert [case for case, _ in left] == cases[2:]
    for case, given_weights in left:
        assert all((given_weights[name] == weight).all() for name, weight in warmed(case.job).items())


def test_a_run_repeats_itself_and_is_that_of_its_mode() -> None:
    case = Case(tiny(steps=3, batching={"race": "none"}), BOTH, 2, 4)
    weights = warmed(case.job)
    one, other = train_of(case, weights), train_of(case, weights)
    assert without_times(one) == without_times(other)
    assert [each.steps for each in one.worth] == [0, 2, 3]
    assert (case.of_mode.batching.mode, case.of_mode.batching.race) == ("tail", "generated")
    assert case.of_mode.batching.eta_prompts == case.job.batching.eta_prompts
    assert sum(one.times_trained.values()) == case.job.task.prompts
    assert without_times(train_of(replace(case, mode=SYNC), weights)) != without_times(one)


@pytest.mark.parametrize("seed", range(3))
def test_rewards_in_this_process_decide_a_race_as_generation_does(seed: int) -> None:
    """So one mode stands for both."""
    generated, rewarded = (Parts(tiny(seed=seed, batching={"race": race})) for race in ("generated", "rewarded"))
    for _ in range(6):
        one, other = (parts.rollout.round(lambda over, launched: None) for parts in (generated, rewarded))
        assert one.samples == other.samples
