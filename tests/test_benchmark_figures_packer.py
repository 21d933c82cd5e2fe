"""The arithmetic of the benchmarks of the job tier: the paper's figures, orders, cycles, and what a run becomes."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rollpacker_tables
from benchmarks.figures import eta_table, packer_tables, size_tables, stage_tables, step_tables
from benchmarks.figures import rollpacker as paper
from benchmarks.figures.batcher_events import Recorder, replay
from benchmarks.figures.job_runs import Run, Scale, StepTimes, play, play_all, speedup, whole_cycles
from benchmarks.figures.parts import beside, off, shown
from rollmux.packer.batching import Batching, Race
from rollmux.packer.commands import RoundComplete, RoundKind
from rollmux.packer.events import ResponseGenerated, RoundStarted
from rollmux.packer.false_kills import FalseKills
from rollmux.packer.stream import StreamSettings
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import PLANNER, ROLLMUX, ROLLPACKER, SYNC

QUICK = Scale(range(1), 6, quick=True)
FULL = Scale(range(5), 80)


def small(steps: int = 6, seed: int = 0) -> Run:
    """A part of the 7B job."""
    setup = SETUPS["7B/8k"].only("math")
    domains = tuple(replace(domain, quota=16, size=64) for domain in setup.domains)
    return Run(replace(setup, gpus=2, prompts=16, responses=4, domains=domains), ROLLPACKER, steps, seed)


def timed(kinds: str) -> list[StepTimes]:
    """Steps of these kinds: a short one takes 1 s, a long one 10 s."""
    steps = {"s": StepTimes(RoundKind.SHORT, 0, 1, 0, 0, 1, 0), "l": StepTimes(RoundKind.LONG, 0, 10, 0, 0, 1, 0)}
    return [steps[kind] for kind in kinds]


# -- the paper's figures -------------------------------------------------------------------------------------------


def test_the_papers_tables_agree_where_they_show_the_same() -> None:
    for name in paper.SETUPS:
        times = paper.STEP_TIMES_S[name]
        assert {len(series) for series in times.values()} == {40}
        over = fmean(times["veRL"]) / fmean(times["RollPacker"])
        assert over == pytest.approx(paper.SPEEDUPS[name]["rollpacker"], rel=0.02)
        for kind, place in (("short", 0), ("long", 4)):
            step_s = sum(paper.BREAKDOWN_S[name][kind])
            assert step_s == pytest.approx(fmean(times["RollPacker"][place::5]), rel=0.05)
    adaptive, fixed = (sum(paper.TIMEOUTS_S[which]) for which in ("adaptive", "fixed"))
    assert fixed / adaptive == pytest.approx(1.45, abs=0.01)
    assert all(sum(shares) == 100 for shares in paper.STAGE_PCT.values())


def test_some_figures_are_those_of_the_paper() -> None:
    assert paper.ETA_ROLLOUT_S["14B/16k"][1.25, 1.25] == 88
    assert paper.ETA_ROLLOUT_S["7B/8k"][1.0, 1.5] == 54
    assert paper.ETA_ROLLOUT_S["14B/16k"][1.5, 1.0] == 143
    assert paper.SPEEDUPS["14B/16k"]["tail batching"] == 1.48
    assert paper.SIZES[24][1] == 4
    assert paper.QWEN3_8B[2, "short"][1] == 4102
    assert paper.TRIGGER_S["adaptive"] == 115.2


def test_each_figure_has_a_run_beside_it() -> None:
    steps = step_tables.cases(FULL)
    assert {(name, system) for name, row in paper.SPEEDUPS.items() for system in row} <= set(steps)
    assert set(eta_table.cases(FULL)) == {(name, *each) for name, row in paper.ETA_ROLLOUT_S.items() for each in row}
    asked = size_tables.cases(FULL)
    assert {("14B", cap, size) for cap, (_, size) in paper.SIZES.items()} <= set(asked)
    assert {("8B", size) for size, _ in paper.QWEN3_8B} <= set(asked)
    limits = stage_tables.cases(FULL)["limits", "fixed"]
    assert [run.steps for run in limits] == [len(paper.TIMEOUTS_S["fixed"])] * 5
    assert steps["7B/8k", PLANNER.name][0].system == replace(ROLLPACKER, name=PLANNER.name, stream=False)


# -- what a run becomes --------------------------------------------------------------------------------------------


def test_a_run_is_asked_for_once_and_given_to_all() -> None:
    run, other = small(2), small(2, seed=1)
    [first, second] = play_all([{("a",): [run, other]}, {("b",): [run]}], workers=1)
    assert first["a",][0] is second["b",][0]
    assert first["a",][1] != first["a",][0]
    assert play(run) == first["a",][0]


def test_a_run_holds_what_its_steps_took() -> None:
    ran = play(small(6))
    assert [step.kind for step in ran.steps].count(RoundKind.LONG) == 1
    for step in ran.steps:
        parts = (step.part_s(part) for part in paper.PARTS)
        assert step.step_s == pytest.approx(sum(parts))
        assert step.scored_s == step.rollout_s + step.reward_s
    assert 0 < ran.wasted < 1
    assert ran.bias.mean_shift < 0
    assert ran.false_kills is not None


def test_what_is_unlike_in_a_run_is_in_its_job() -> None:
    run = small()
    at = StreamSettings(run.setup.cap, 0.3, 0.3)
    job = replace(run, stream=at).job()
    assert job.stream is not None
    assert job.stream.settings is at
    adaptive = replace(run, adaptive_eta=True, steps=12)
    assert play(adaptive).steps != play(replace(run, steps=12)).steps
    known = play(replace(run, known_long=0.2, steps=12))
    assert known.steps != play(replace(run, steps=12)).steps


@pytest.mark.parametrize(
    ("kinds", "mean"), [("sss", 1.0), ("sssssl", 2.5), ("sssssl" + "ssssl" * 3 + "sss", 2.8), ("lslsl", 5.5)]
)
def test_the_mean_step_is_that_of_whole_cycles(kinds: str, mean: float) -> None:
    assert fmean(step.step_s for step in whole_cycles(timed(kinds))) == mean


def test_a_speed_up_is_of_mean_steps_seed_by_seed() -> None:
    ran = play(small(2))
    fast, slow = (replace(ran, steps=tuple(timed(kinds))) for kinds in ("ssss", "ssl"))
    gain = speedup([fast, fast], [slow, fast])
    assert gain.mean == (4 + 1) / 2
    assert gain.half_width is not None
    assert speedup([fast], [slow], after=2).mean == 10


# -- goals that can fail -------------------------------------------------------------------------------------------


@given(pair=st.permutations(sorted(paper.ETA_ROLLOUT_S["7B/8k"])))
def test_orders_are_those_of_the_paper_only_as_far_as_ours_are(pair: list[tuple[float, float]]) -> None:
    figures = paper.ETA_ROLLOUT_S["7B/8k"]
    assert eta_table.out_of_order(figures, figures) == []
    swapped = {**figures, pair[0]: figures[pair[1]], pair[1]: figures[pair[0]]}
    far = max(figures[pair[0]], figures[pair[1]]) > eta_table.CLEAR * min(figures[pair[0]], figures[pair[1]])
    assert bool(eta_table.out_of_order(figures, swapped)) == far


def test_a_figure_far_off_the_papers_or_a_part_that_costs_is_seen() -> None:
    assert off(1.3, 1.0) == pytest.approx(0.3)
    assert off(0.7, 1.0) == pytest.approx(0.3)
    assert step_tables.kept([1.3, 2.01, 2.0, 2.03]) == 1
    assert step_tables.kept([1.3, 2.01, 1.9, 2.03]) == pytest.approx(2 / 3)
    assert size_tables.kept([1, 2, 2, 4]) == 1
    assert size_tables.kept([1, 2, 1]) == 0.5
    assert beside(3.0, None) == {"ours": 3.0, "paper's": "-", "ratio": "-"}


def test_a_cadence_off_the_beat_is_seen() -> None:
    assert step_tables.on_beat(timed("ssssl" * 3)) == 1
    assert step_tables.on_beat(timed("sssssl")) == pytest.approx(4 / 6)


def test_counts_of_several_jobs_are_those_of_one() -> None:
    assert stage_tables.pooled([FalseKills(10, 4, 2, 1), FalseKills(5, 3, 1, 0)]) == FalseKills(15, 7, 3, 1)


def test_no_point_of_the_frontier_is_beaten() -> None:
    points = [(2.0, 0.0), (1.9, 0.0), (3.0, 0.2), (3.0, 0.3), (2.5, 0.1)]
    assert packer_tables.undominated(points) == [True, False, True, False, True]


# -- tables --------------------------------------------------------------------------------------------------------


def test_a_longer_model_has_the_same_shares_at_longer_lengths() -> None:
    [domain] = SETUPS["7B/8k"].only("math").domains
    longer = size_tables.stretched(domain.lengths, 6)
    for share in (0.1, 0.5, 0.9, 0.97):
        assert longer.below(share) == pytest.approx(6 * domain.lengths.below(share), rel=0.01, abs=6)


def test_ours_without_more_responses_has_no_race_between_them() -> None:
    assert packer_tables.with_factors(1.25, 1.0).race is Race.NONE
    assert packer_tables.with_factors(1.25, 1.25).race is ROLLMUX.race


def test_all_tables_ask_for_few_runs_when_it_is_quick() -> None:
    for table in (*rollpacker_tables.TABLES, packer_tables):
        runs = {run for each in table.cases(QUICK).values() for run in each}
        assert {run.seed for run in runs} == {0}
        assert sum(run.steps for run in runs) < 200


def test_each_goal_of_a_table_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    [got] = play_all([stage_tables.cases(QUICK)], workers=1)
    parts = stage_tables.parts(got)
    made = shown(parts)
    lines = capsys.readouterr().out.splitlines()
    for part in parts:
        for goal in part.goals:
            assert lines.count(goal.line()) == 1
    assert made["goals"] == [goal.row() for part in parts for goal in part.goals]


# -- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quotas", [(), {"a": 5, "b": 3}])
def test_a_recorded_history_is_of_whole_rounds_of_both_kinds(quotas: dict[str, int]) -> None:
    batching = Batching(8, 4, quotas=quotas)
    history = Recorder(batching, 0).record(12)
    assert history == Recorder(batching, 0).record(12)
    assert sum(isinstance(event, RoundStarted) for event in history) == 12
    batcher = TailBatcher(batching)
    batches = [c.batch for event in history for c in batcher.handle(event) if isinstance(c, RoundComplete)]
    assert len(batches) == 12
    assert {batch.kind for batch in batches} == {RoundKind.SHORT, RoundKind.LONG}
    ended = sum(isinstance(event, ResponseGenerated) for event in history)
    assert ended >= 12 * 8 * 4
    replay(batching, history)


def test_the_synchronous_baseline_wastes_and_shifts_nothing() -> None:
    ran = play(replace(small(2), system=SYNC))
    assert (ran.wasted, ran.bias.mean_shift, ran.false_kills) == (0, 0, None)
