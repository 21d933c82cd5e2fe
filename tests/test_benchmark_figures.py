"""The arithmetic of the benchmarks: goals, ratios, moments, pairs, and how a run becomes a row."""

import asyncio
from argparse import Namespace
from dataclasses import replace
from random import Random
from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fluid, paper_tables
from benchmarks import replay as replay_benchmark
from benchmarks.figures import over_optimum, parts, reported, sandbox_overhead
from benchmarks.figures.goals import Goal, growth, per_dollar, spread, told
from benchmarks.figures.over_optimum import LONG_H, MAX_GROUP, Moment, Whole, moment_paid, usd_per_hour, whole_paid
from benchmarks.figures.pairs import job_a, micro_benchmark, slowdowns, unsaid_s
from benchmarks.figures.trace import TraceRun, run_trace
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.order import Order
from rollmux.runtime.sandbox import Cause, Ended
from rollmux.sim.limits import pinned_bound
from rollmux.sim.replay import Fidelity
from rollmux.sim.sweep import Case, Figures, Interval
from rollmux.sim.workload import HOUR_S, Arrival, Workload

PAIR_USD = 8 * (1.85 + 5.28)
POSITIVE = st.floats(1e-3, 1e6)


def doubled(value: int) -> int:
    return 2 * value


# -- goals ---------------------------------------------------------------------------------------------------------


@given(value=POSITIVE, limit=POSITIVE)
def test_a_goal_is_met_on_its_own_side_of_the_limit(value: float, limit: float) -> None:
    most, least = Goal("cost", value, limit), Goal("saving", value, limit, at_most=False)
    assert most.met == (value <= limit)
    assert least.met == (value >= limit)
    assert most.ratio == least.ratio == value / limit
    assert most.line().endswith(f"met: {most.met}")
    assert least.row()["met"] == least.met


def test_a_goal_is_told_in_one_line() -> None:
    assert Goal("cost", 1.25, 1.0).line() == "cost: 1.25, goal at most 1; ratio 1.25; met: False"
    assert Goal("saving", 2.5, 2.0, at_most=False).line() == "saving: 2.5, goal at least 2; ratio 1.25; met: True"


def test_a_mean_is_told_with_its_interval_where_it_has_one() -> None:
    assert told(Interval(1.23456, 0.01)) == "1.235 ±0.010"
    assert told(Interval(1.23456, None), 1) == "1.2"
    assert told(None) == "-"


@given(size=st.floats(1, 1e4), more=st.floats(1.5, 100), power=st.floats(-2, 3), at=st.floats(0.1, 100))
def test_growth_is_the_power_of_the_size(size: float, more: float, power: float, at: float) -> None:
    assert growth((size, at), (size * more, at * more**power)) == pytest.approx(power, abs=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items_whoever_does_them(workers: int) -> None:
    assert spread(doubled, [3, 1, 2], workers) == [6, 2, 4]


# -- pairs ---------------------------------------------------------------------------------------------------------


def test_two_a_jobs_woven_do_as_much_for_a_dollar_as_their_rollouts_allow() -> None:
    woven = micro_benchmark()["paper"]
    assert woven.iteration_s == (262.0, 262.0)
    assert woven.usd_per_hour == pytest.approx(PAIR_USD)
    assert woven.over_solo == pytest.approx(2 * 233 / 262)
    assert woven.over_solo == pytest.approx(per_dollar(2 / 262, PAIR_USD) / per_dollar(1 / 233, PAIR_USD))


@pytest.mark.parametrize("policy", ["paper", "rollmux"])
def test_both_policies_put_the_a_jobs_on_one_pair_of_nodes(policy: str) -> None:
    arrivals = tuple(Arrival(i * HOUR_S, LONG_H * HOUR_S, job_a(name)) for i, name in enumerate("ab"))
    assert usd_per_hour(Workload("pair", arrivals), policy) == pytest.approx(PAIR_USD)


def test_time_that_holds_no_node_vanishes_in_the_pair() -> None:
    got = micro_benchmark(unsaid_s())
    assert got["solo"].iteration_s[0] == pytest.approx(reported.ITERATION_S["solo"])
    assert got["paper"].iteration_s == (262.0, 262.0)
    assert got["paper"].over_solo == pytest.approx(2 * 257.7 / 262)


def test_jobs_that_take_turns_as_wholes_do_as_much_as_alone_and_the_co_located_pay_for_one_pool() -> None:
    got = micro_benchmark()
    assert got["gavel"].over_solo == pytest.approx(1.0)
    assert got["colocated"].usd_per_hour == pytest.approx(8 * 5.28)
    rollout_s = 131 * 4.0 / 3.35  # by memory bandwidth
    assert got["colocated"].over_solo == pytest.approx(233 / (rollout_s + 102) * 7.13 / 5.28)


@pytest.mark.parametrize("one_train_node", [True, False])
def test_the_bad_pair_takes_both_rollouts_for_each_iteration(one_train_node: bool) -> None:
    names = tuple(reported.BAD_PAIR)
    assert slowdowns(names, False, one_train_node) == pytest.approx((572 / 349, 572 / 431))
    with_switches = slowdowns(names, True, one_train_node)
    assert with_switches == pytest.approx((572 / 349, 572 / 431), rel=0.01)


# -- cost over the optimum -----------------------------------------------------------------------------------------


def test_a_moment_has_its_jobs_at_once_whatever_the_policy() -> None:
    moment = Moment("mixed", 4, 0)
    workload = moment.workload()
    assert workload == moment.workload()
    assert workload != replace(moment, seed=1).workload()
    jobs = [arrival.job for arrival in workload.arrivals]
    assert usd_per_hour(workload, "solo") == pytest.approx(len(jobs) * PAIR_USD)
    assert usd_per_hour(workload, "paper") >= pinned_bound(jobs, PAPER_CLUSTER, MAX_GROUP) - 1e-6


def test_no_policy_pays_less_than_the_optimum_at_a_moment() -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra `solver`")
    for seed in range(3):
        paid = moment_paid(Moment("balanced", 4, seed), paper_tables.PLACED)
        assert paid.bound_usd <= paid.optimum_usd
        assert min(paid.over.values()) >= 1 - 1e-6


def test_what_is_proven_is_told_of_the_optimum_that_a_policy_is_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        def __init__(self, cluster: object, max_group: int, order: Order) -> None:
            self.order = order

        def best(self, _: object) -> SimpleNamespace:
            is_first_come = self.order is Order.FIFO
            usd = 10.0 if is_first_come else 5.0
            return SimpleNamespace(usd_per_hour=usd, bound_usd_per_hour=usd, complete=not is_first_come)

    monkeypatch.setattr(over_optimum, "Optimum", Found)
    moment = Moment("balanced", 2, 0)
    paid, workload = moment_paid(moment, ("paper", "rollmux")), moment.workload()
    assert paid.proven == {"paper": 0.0, "rollmux": 1.0}
    assert paid.over["rollmux"] == pytest.approx(usd_per_hour(workload, "rollmux") / 5.0)


def test_no_policy_pays_less_than_the_proven_optimum_over_the_same_lifetimes() -> None:
    pytest.importorskip("highspy", reason="the optimum needs the extra `solver`")
    paid = whole_paid(Whole("mixed", 0, 8, 40.0), paper_tables.PLACED)
    assert paid.proven == dict.fromkeys(paper_tables.PLACED, 1.0)
    assert min(paid.over.values()) >= 1 - 1e-6
    assert set(paid.slo) == set(paper_tables.PLACED)


# -- the trace -----------------------------------------------------------------------------------------------------


def test_on_the_trace_nodes_and_dollars_agree_and_co_location_has_no_rollout_pool() -> None:
    runs = {policy: run_trace(TraceRun(policy, 0, jobs=12, hours=20.0)) for policy in paper_tables.TRACED}
    for got in runs.values():
        assert got.usd_per_hour == pytest.approx(got.rollout_gpus * 1.85 + got.train_gpus * 5.28)
        assert sum(got.admissions_pct.values()) == pytest.approx(100)
    assert runs["colocated"].rollout_gpus == 0
    assert runs["solo"].rollout_gpus == pytest.approx(runs["solo"].train_gpus)
    by_policy = {("lifetime", policy): [got] for policy, got in runs.items()}
    assert paper_tables.saved(by_policy, "lifetime", "solo", "solo") == 1
    over = paper_tables.saved(by_policy, "lifetime", "colocated", "solo")
    assert over == pytest.approx(runs["solo"].usd_total / runs["colocated"].usd_total)


def test_ours_stands_beside_the_papers_where_it_gives_one() -> None:
    assert parts.beside(3.0, 2.0) == {"ours": 3.0, "paper's": 2.0, "ratio": 1.5}
    assert parts.beside(3.0, None) == {"ours": 3.0, "paper's": "-", "ratio": "-"}


# -- fluid ---------------------------------------------------------------------------------------------------------

SIZES = (fluid.Size(300, 580.0, fluid.WORKLOADS), fluid.Size(1200, 580.0, fluid.DENSE))
ARGS = Namespace(seed=5, seeds=3, dense_seeds=3, phase_seeds=2, optimal_seeds=1)


def made_up(case: Case) -> Figures:
    rng = Random(repr(case))
    names = ("cost_over_fluid", "cost_over_whole_node", "usd_total", "moves")
    return {**{name: rng.uniform(1, 2) for name in names}, "slo_attainment": rng.choice((0.99, 1.0))}


def test_every_policy_meets_every_workload_and_the_long_runs_come_first() -> None:
    cases = fluid.cases(ARGS, SIZES)
    assert len(cases) == len(set(cases)) == 6 * 7 * 3 + 4 * (6 * 2 + 1)
    assert [case.policy for case in cases[:4]] == ["optimal"] * 4
    assert {case.seed for case in cases} == {5, 6, 7}
    assert {case.move_s for case in cases} == {300.0}
    assert {case.accounting for case in cases} == {"work"}


def test_rows_and_goals_are_means_over_the_seeds_of_their_own_case() -> None:
    results = {case: made_up(case) for case in fluid.cases(ARGS, SIZES)}
    bounds = {fluid.unplayed(case): 0.5 for case in results}
    found = fluid.by_key(results, bounds)
    rows = fluid.rows_of(found)
    assert len(rows) == len(found) == 6 * 7 + 4 * (6 + 1)
    shown, written = fluid.shown(rows[0]), fluid.plain(rows[0])
    assert isinstance(rows[0]["fluid"], Interval)
    assert shown["fluid"] == told(rows[0]["fluid"])
    assert written["fluid"] == {"mean": rows[0]["fluid"].mean, "half_width": rows[0]["fluid"].half_width}
    assert "played" not in shown
    assert len(fluid.pace_rows(found)) == 4 * 6
    ours = found[300, "balanced", "rollmux", "pace"]
    assert list(ours) == [5, 6, 7]
    assert all(run["cost_over_bound"] == run["usd_total"] / 0.5 for run in ours.values())
    goals = {goal.name: goal for goal in fluid.goals_of(found, SIZES)}
    goal = goals["rollmux, 300 jobs, balanced: cost over whole node"]
    assert goal.value == fmean(run["cost_over_whole_node"] for run in ours.values())
    assert goal.limit == 1.12
    kept = goals["rollmux: SLOs kept in the mean, by pace"]
    assert not kept.at_most
    assert kept.met == (kept.value == 1.0)
    assert len(goals) == 4 + 2 + 2


# -- replay --------------------------------------------------------------------------------------------------------


def test_a_replay_is_measured_with_its_events_and_memory() -> None:
    run = replay_benchmark.Run(4, 5.0, Fidelity.PHASE, "rollmux", 0, 1)
    got = replay_benchmark.measure(run)
    assert got.events > 4 * 2
    assert 0 <= got.deciding_s < got.replay_s
    assert 0 < got.before_bytes <= got.peak_bytes
    assert got.heap_ratio == got.replay_s / got.heap_s
    assert replay_benchmark.measure(replace(run, rounds=2)).events == got.events


def test_growth_is_told_between_sizes_of_one_fidelity_only() -> None:
    base = replay_benchmark.Run(100, 580.0, Fidelity.PACE, "rollmux", 0, 1)
    got = replay_benchmark.Measured(1.0, 0.1, 10.0, 0.5, 1000, 10**8, 10**7)
    measured = {
        base: got,
        replace(base, jobs=1000): replace(got, replay_s=100.0),
        replace(base, fidelity=Fidelity.PHASE): got,
    }
    rows = replay_benchmark.rows_of(measured)
    assert [row["time grows"] for row in rows] == ["-", "2.00", "-"]
    assert [row["memory grows"] for row in rows] == ["-", "0.00", "-"]
    assert rows[0]["events/s"] == 1000


def test_each_size_is_replayed_both_ways_and_many_jobs_are_held_to_their_goal_at_the_pace() -> None:
    args = Namespace(quick=False, only=None, policy="rollmux", seed=0)
    every = replay_benchmark.runs_of(args)
    paced = replay_benchmark.runs_of(Namespace(**{**vars(args), "only": "pace"}))
    assert paced == [run for run in every if run.fidelity is Fidelity.PACE]
    assert [run.jobs for run in every] == 2 * [run.jobs for run in paced]
    got = replay_benchmark.Measured(100.0, 0.1, 10.0, 0.5, 1000, 10**8, 10**7)
    goals = replay_benchmark.goals_of(dict.fromkeys(every, got))
    assert [(goal.limit, goal.met) for goal in goals] == [(2.0, False), (180.0, True), (2.0, False)]


def test_sandboxed_runs_that_fail_at_once_are_no_runs_a_second() -> None:
    class Broken:
        async def run(self, *_: object) -> Ended:
            return Ended(Cause.BROKEN, 0, b"", b"", 0.0, 0.0, 0, "no more processes")

    with pytest.raises(RuntimeError, match="no more processes"):
        asyncio.run(sandbox_overhead.throughput(Broken(), 4, 2))  # type: ignore[arg-type]
