"""Replays: the bill, the work, lifetimes, both fidelities, full clusters, and what their history says."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_TRAIN, Cluster, Pool, finite
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.sim.faults import Faults
from rollmux.sim.generate import GENERATORS
from rollmux.sim.optimal_run import optimal_run
from rollmux.sim.outcome import JobOutcome, Outcome
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.summary import summary
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, job
from tests.sim.worlds import PHASED, fixed, workload, workloads

HISTORY = Settings(history=True)
PACE = Settings(fidelity=Fidelity.PACE)
LIFETIMES = Settings(accounting=Accounting.LIFETIME)
POLICIES = st.sampled_from([*PHASED, "gavel", "colocated"])
ANY = workloads(most_nodes=(2, 2))


def integral_usd(outcome: Outcome) -> float:
    """What the levels come to, up to the end of the last job."""
    ends = [level.at_s for level in outcome.levels[1:]] + [outcome.makespan_h * HOUR_S]
    return sum(
        level.usd_per_hour * (end - level.at_s) / HOUR_S for level, end in zip(outcome.levels, ends, strict=True)
    )


def began_s(one: JobOutcome) -> float:
    assert one.started_h is not None
    return one.started_h * HOUR_S


# -- the bill ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(jobs=ANY, policy=POLICIES, fidelity=st.sampled_from(Fidelity))
def test_the_bill_adds_up(jobs: Workload, policy: str, fidelity: Fidelity) -> None:
    outcome = replay(jobs, policy, Settings(fidelity=fidelity, history=True))
    for pool in (outcome.rollout, outcome.train):
        assert pool.paid == pytest.approx(pool.busy + pool.switch + pool.idle)
        assert min(pool.busy, pool.switch) >= 0
        assert pool.idle >= -1e-9
    assert outcome.usd_total == pytest.approx(outcome.rollout.paid * ROLLOUT_USD + outcome.train.paid * TRAIN_USD)
    assert integral_usd(outcome) == pytest.approx(outcome.usd_total)
    assert outcome.levels[-1].usd_per_hour == 0
    assert outcome.levels[-1].running == outcome.levels[-1].waiting == 0
    assert outcome.peak_train == max(level.train_nodes for level in outcome.levels)
    assert outcome.peak_rollout == max(level.rollout_nodes for level in outcome.levels)
    assert len(outcome.decision_ms) == len(jobs.arrivals)


@given(jobs=ANY)
def test_alone_a_job_costs_its_life_times_its_nodes_and_is_not_slowed(jobs: Workload) -> None:
    outcome = replay(jobs, "solo")
    usd = 0.0
    for arrival, ended in zip(jobs.arrivals, outcome.jobs, strict=True):
        life_s = arrival.iterations * arrival.job.solo_s + arrival.job.ramp_s
        load_s = arrival.job.rollout.load_s + arrival.job.train.load_s  # once each
        assert ended.ended_h == pytest.approx((arrival.at_s + life_s + load_s) / HOUR_S, abs=load_s / HOUR_S + 1e-9)
        nodes_usd = arrival.job.rollout.nodes * ROLLOUT_USD + arrival.job.train.nodes * TRAIN_USD
        usd += (ended.ended_h - ended.arrival_h) * nodes_usd
        if load_s == 0:
            assert ended.slowdown == pytest.approx(1.0)
    assert outcome.usd_total == pytest.approx(usd)
    assert outcome.slo_attainment == 1.0 or any(a.job.train.load_s for a in jobs.arrivals)


def test_the_cost_of_one_job_to_the_cent() -> None:
    outcome = replay(workload(job("a", 300.0, 60.0), iterations=10), "solo")
    assert outcome.usd_total == pytest.approx(ROLLOUT_USD + TRAIN_USD)
    assert outcome.makespan_h == pytest.approx(1.0)
    assert outcome.rollout.busy == pytest.approx(10 * 300 / HOUR_S)
    assert outcome.train.idle == pytest.approx(10 * 300 / HOUR_S)


@pytest.mark.parametrize("fidelity", Fidelity)
def test_an_hour_costs_the_same_whenever_the_first_job_comes_unless_machines_wait_for_it(fidelity: Fidelity) -> None:
    now, later = (workload(job("a"), at=(at_s,), iterations=18) for at_s in (0.0, 99 * HOUR_S))
    wants = Settings(fidelity=fidelity)
    runs = [replay(now, "solo", wants), replay(later, "solo", wants), optimal_run(later, PAPER_CLUSTER).outcome]
    runs.append(replay(later, "solo", replace(wants, cluster=fixed(1, 1))))
    assert [run.billed_h for run in runs] == pytest.approx([1.0, 1.0, 1.0, 100.0])
    assert [summary(run)["usd_per_hour_mean"] for run in runs] == pytest.approx([ROLLOUT_USD + TRAIN_USD] * 4)


# -- the work ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(jobs=ANY, policy=POLICIES, fidelity=st.sampled_from(Fidelity))
def test_every_job_does_exactly_its_work_under_every_policy(jobs: Workload, policy: str, fidelity: Fidelity) -> None:
    outcome = replay(jobs, policy, Settings(fidelity=fidelity, launch_s=7.0, provision_s=30.0))
    assert [each.iterations for each in outcome.jobs] == [arrival.iterations for arrival in jobs.arrivals]
    for each, arrival in zip(outcome.jobs, jobs.arrivals, strict=True):
        assert began_s(each) == pytest.approx(arrival.at_s + 7.0, abs=30.0 + 1e-6)


@settings(max_examples=60)
@given(
    jobs=ANY,
    policy=POLICIES,
    fidelity=st.sampled_from(Fidelity),
    times=st.tuples(st.sampled_from((0.0, 40.0)), st.sampled_from((0.0, 40.0))),
)
def test_a_lifetime_ends_when_it_is_over_whatever_was_done(
    jobs: Workload, policy: str, fidelity: Fidelity, times: tuple[float, float]
) -> None:
    provision_s, launch_s = times
    outcome = replay(
        jobs, policy, replace(LIFETIMES, fidelity=fidelity, provision_s=provision_s, launch_s=launch_s, history=True)
    )
    for each, arrival in zip(outcome.jobs, jobs.arrivals, strict=True):
        assert each.ended_h * HOUR_S == pytest.approx(arrival.at_s + arrival.duration_s)
    assert outcome.levels[-1].running == outcome.levels[-1].usd_per_hour == 0
    assert integral_usd(outcome) == pytest.approx(outcome.usd_total)


@pytest.mark.parametrize("fidelity", Fidelity)
def test_a_part_of_an_iteration_at_the_end_of_a_life_slows_nobody(fidelity: Fidelity) -> None:
    jobs = Workload("w", (Arrival(0.0, 790.0, job("a", slo=1.0)),))
    (each,) = replay(jobs, "solo", replace(LIFETIMES, fidelity=fidelity)).jobs
    assert (each.iterations, each.met) == (3, True)
    assert each.slowdown == pytest.approx(1.0)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_rollouts_ahead_of_the_last_sync_are_no_work_of_finished_iterations(staleness: int) -> None:
    ahead = JobSpec("a", PhaseSpec(100.0, 1), PhaseSpec(300.0, 1), 1.5, staleness=staleness)
    (one,) = replay(Workload("one", (Arrival(0.0, 450.0, ahead),)), "solo", LIFETIMES).jobs
    assert one.iterations == 1
    assert (one.solo_s, one.iteration_s) == pytest.approx((ahead.solo_s, ahead.solo_s))


def test_a_job_may_go_while_it_starts_or_before_it_has_a_place() -> None:
    short, longer = Arrival(0.0, 10.0, job("a")), Arrival(0.0, 500.0, job("b"))
    outcome = replay(Workload("w", (short, longer)), "solo", replace(LIFETIMES, launch_s=100.0, cluster=fixed(1, 1)))
    assert [each.ended_h * HOUR_S for each in outcome.jobs] == [10.0, 500.0]
    assert [each.iterations for each in outcome.jobs] == [0, 1]
    outcome = replay(Workload("w", (longer, short)), "solo", replace(LIFETIMES, cluster=fixed(1, 1)))
    assert [each.ended_h * HOUR_S for each in outcome.jobs] == [500.0, 10.0]
    assert [each.met for each in outcome.jobs] == [True, False]


# -- both fidelities --------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(jobs=workloads(plain=True, most_nodes=(2, 1)))
def test_phases_and_pace_agree_for_long_jobs(jobs: Workload) -> None:
    arrivals = [replace(a, duration_s=a.duration_s / a.iterations * (200 + a.iterations)) for a in jobs.arrivals]
    jobs = Workload("long", tuple(arrivals))
    phase, pace = replay(jobs, "paper"), replay(jobs, "paper", PACE)
    assert pace.usd_total == pytest.approx(phase.usd_total, rel=0.02)
    for one, other in zip(phase.jobs, pace.jobs, strict=True):
        assert (one.group, one.admission) == (other.group, other.admission)
        assert other.iteration_s == pytest.approx(one.iteration_s, rel=0.02)
        assert max(one.over_slo, other.over_slo) <= 1.01


@pytest.mark.parametrize(("kind", "seed"), [("balanced", 1), ("balanced", 47), ("mixed", 55)])
def test_at_pace_a_job_slower_than_forecast_leaves_in_time_as_it_does_phase_by_phase(kind: str, seed: int) -> None:
    """One job of each of these missed its SLO by 8 to 26 % as long as nobody watched it."""
    played = replay(GENERATORS[kind](seed, 40, 60.0), "rollmux", Settings(fidelity=Fidelity.PACE, seed=seed))
    assert [one.job for one in played.jobs if one.over_slo > 1 + 1e-9] == []


@pytest.mark.parametrize("slo", [1.1, 1.5, 2.0])
def test_a_job_that_trains_on_more_nodes_than_it_wants_is_not_faster(slo: float) -> None:
    jobs = workload(job("wide", nodes=(1, 2), slo=slo), job("narrow", slo=slo), iterations=50)
    phase, pace = replay(jobs, "paper", HISTORY), replay(jobs, "paper", PACE)
    assert phase.peak_train == 2
    assert len({span.node for span in phase.spans if (span.job, span.kind) == ("narrow", "train")}) == 2
    assert min(span.end_s - span.start_s for span in phase.spans) == 100.0
    assert pace.usd_total == pytest.approx(phase.usd_total, rel=0.02)


def test_a_job_that_trains_on_fewer_nodes_than_it_wants_takes_as_much_longer() -> None:
    jobs = workload(job("narrow", slo=3.0), job("wide", nodes=(1, 2), slo=3.0), iterations=50)
    outcome = replay(jobs, "paper", HISTORY)
    assert {s.end_s - s.start_s for s in outcome.spans if (s.job, s.kind) == ("wide", "train")} == {200.0}
    assert replay(jobs, "paper", PACE).usd_total == pytest.approx(outcome.usd_total, rel=0.02)


@settings(max_examples=30)
@given(count=st.integers(2, 8), ms=st.integers(1, 10**6), iterations=st.integers(1, 300))
def test_at_pace_equal_jobs_end_together_without_time_going_back(count: int, ms: int, iterations: int) -> None:
    jobs = workload(*[job(f"j{i}", 70 + ms / 1000, 31.7, slo=9.0) for i in range(count)], iterations=iterations)
    for policy in ("paper", "random", "gavel"):
        assert {each.iterations for each in replay(jobs, policy, PACE).jobs} == {iterations}


# -- the same again ---------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(jobs=ANY, policy=st.sampled_from(sorted(CONTENDERS)), seed=st.integers(0, 3))
def test_the_same_seed_gives_the_same_outcome(jobs: Workload, policy: str, seed: int) -> None:
    wants = Settings(seed=seed, history=True)
    one, other = (replace(replay(jobs, policy, wants), decision_ms=()) for _ in range(2))
    assert one == other


@settings(max_examples=20)
@given(order=st.permutations(range(4)), policy=st.sampled_from(PHASED))
def test_the_order_of_jobs_that_arrive_together_changes_no_name_and_no_work(order: list[int], policy: str) -> None:
    jobs = [job(f"j{i}", 50.0 + 30 * i, 40.0 + 20 * i, slo=1.5) for i in order]
    one, other = (replace(replay(workload(*jobs), policy, HISTORY), decision_ms=()) for _ in range(2))
    assert one == other
    assert [each.job for each in one.jobs] == [each.id for each in jobs]
    assert one.slo_attainment == 1.0 or policy != "solo"


# -- clusters that are full -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(jobs=ANY, policy=POLICIES, size=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_no_more_nodes_are_used_than_there_are(jobs: Workload, policy: str, size: tuple[int, int]) -> None:
    outcome = replay(jobs, policy, replace(HISTORY, cluster=fixed(*size)))
    assert (outcome.peak_rollout, outcome.peak_train) == (0 if policy == "colocated" else size[0], size[1])
    hours = outcome.makespan_h
    paid = (outcome.rollout.paid, outcome.train.paid)
    assert paid == pytest.approx((outcome.peak_rollout * hours, outcome.peak_train * hours))
    for arrival, each in zip(jobs.arrivals, outcome.jobs, strict=True):
        wants = arrival.job.rollout.nodes, arrival.job.train.nodes
        fits = wants[1] <= size[1] and (policy == "colocated" or wants[0] <= size[0])
        assert each.iterations == (arrival.iterations if fits else 0)
        assert bool(each.group) == fits or policy == "colocated"
    assert outcome.levels[-1].waiting == 0


def test_a_job_that_never_has_a_place_is_told_of_and_holds_nobody_up() -> None:
    jobs = workload(job("huge", nodes=(3, 1)), job("small"))
    outcome = replay(jobs, "paper", replace(HISTORY, cluster=fixed(2, 2)))
    huge, small = outcome.jobs
    assert (huge.group, huge.admission, huge.iterations, huge.met) == ("", "", 0, False)
    assert (small.iterations, small.met) == (5, True)
    assert outcome.slo_attainment == 0.5


def test_a_cluster_without_machines_runs_nothing_and_costs_nothing() -> None:
    cluster = finite(PAPER_CLUSTER.rollout.node_type, PAPER_CLUSTER.train.node_type)
    outcome = replay(workload(job("a")), "paper", replace(HISTORY, cluster=cluster))
    assert (outcome.usd_total, outcome.makespan_h, outcome.slo_attainment) == (0.0, 0.0, 0.0)
    assert outcome.levels[-1].waiting == 1


def test_who_waits_is_counted_and_starts_when_there_is_room() -> None:
    jobs = workload(*[job(name, slo=1.0) for name in "abc"])
    outcome = replay(jobs, "solo", replace(HISTORY, cluster=fixed(1, 1)))
    assert [began_s(each) for each in outcome.jobs] == pytest.approx([0.0, 1000.0, 2000.0])
    assert [(x.at_s, x.running, x.waiting) for x in outcome.levels[-4:]] == [
        (0.0, 1, 2),
        (1000.0, 1, 1),
        (2000.0, 1, 0),
        (3000.0, 0, 0),
    ]


def test_a_shared_pool_serves_both_phases_and_is_counted_once() -> None:
    outcome = replay(workload(job("a")), "solo", replace(HISTORY, cluster=SHARED_CLUSTER))
    assert (outcome.peak_rollout, outcome.peak_train) == (0, 1)
    assert {(level.rollout_nodes, level.train_nodes) for level in outcome.levels} == {(0, 1), (0, 0)}
    assert outcome.train.idle == pytest.approx(0.0)
    assert outcome.usd_total == pytest.approx(1000 / HOUR_S * TRAIN_USD)


# -- history ----------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(jobs=ANY, policy=st.sampled_from(PHASED), rooms=st.sampled_from((None, (2, 2), (3, 2))))
def test_spans_lie_apart_within_the_paid_time_and_add_up(
    jobs: Workload, policy: str, rooms: tuple[int, int] | None
) -> None:
    cluster = fixed(*rooms) if rooms else PAPER_CLUSTER
    outcome = replay(jobs, policy, replace(HISTORY, cluster=cluster))
    by_node = defaultdict(list)
    for span in outcome.spans:
        assert span.start_s < span.end_s
        by_node[span.node].append((span.start_s, span.end_s))
    for spans in by_node.values():
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(sorted(spans)))
    for pool, hours in (("rollout", outcome.rollout), ("train", outcome.train)):
        ours = [span for span in outcome.spans if span.node.startswith(pool)]
        work_h = sum(s.end_s - s.start_s for s in ours if s.kind != "switch") / HOUR_S
        switch_h = sum(s.end_s - s.start_s for s in ours if s.kind == "switch") / HOUR_S
        assert (work_h, switch_h) == pytest.approx((hours.busy, hours.switch))
    lives = {each.job: (began_s(each), each.ended_h * HOUR_S) for each in outcome.jobs}
    for span in outcome.spans:
        start_s, end_s = lives[span.job]
        assert start_s - 1e-6 <= span.start_s <= span.end_s <= end_s + 1e-6


@settings(max_examples=40)
@given(jobs=ANY, policy=st.sampled_from(PHASED))
def test_all_the_work_of_a_job_without_tail_is_in_its_spans(jobs: Workload, policy: str) -> None:
    outcome = replay(jobs, policy, HISTORY)
    for arrival in jobs.arrivals:
        name, spec = arrival.job.id, arrival.job
        assume(not (spec.elastic_rollout and spec.rollout.switch_s) and not spec.tail)
        rollout_s = sum(s.end_s - s.start_s for s in outcome.spans if (s.job, s.kind) == (name, "rollout"))
        expected_s = arrival.iterations * spec.rollout.planned_s * spec.rollout.nodes
        assert rollout_s == pytest.approx(expected_s)


def test_state_is_loaded_once_where_nobody_shares_and_each_time_where_somebody_does() -> None:
    phase = PhaseSpec(100.0, nodes=1, load_s=3.0, offload_s=2.0)
    pair = [JobSpec(name, phase, phase, 2.0) for name in "ab"]
    alone = replay(workload(pair[0]), "solo", HISTORY)
    assert alone.rollout.switch == alone.train.switch == pytest.approx(3 / HOUR_S)
    assert alone.jobs[0].ended_h == pytest.approx((5 * 200 + 6) / HOUR_S)
    shared = replay(workload(*pair), "paper", HISTORY)
    assert shared.rollout.switch == pytest.approx(2 * 5 * 5 / HOUR_S)


def test_moving_state_off_for_a_newcomer_is_a_switch_too() -> None:
    phase = PhaseSpec(100.0, nodes=1, load_s=3.0, offload_s=2.0)
    jobs = workload(*[JobSpec(name, phase, phase, 2.0) for name in "ab"], at=(0.0, 150.0))
    outcome = replay(jobs, "paper", HISTORY)
    switches = sorted((s.start_s, s.end_s, s.node) for s in outcome.spans if s.kind == "switch" and s.job == "a")
    assert switches[:3] == [(0.0, 3.0, "rollout-0"), (103.0, 106.0, "train-0"), (150.0, 152.0, "rollout-0")]


def test_a_job_that_ends_while_its_state_is_moved_off_has_switched_until_then() -> None:
    phase = PhaseSpec(100.0, nodes=1, offload_s=50.0)
    jobs = workload(*[JobSpec(name, phase, phase, 5.0, sync_s=20.0) for name in "ab"], at=(0.0, 150.0), iterations=1)
    outcome = replay(jobs, "paper", HISTORY)
    switches = sorted((s.start_s, s.end_s, s.node) for s in outcome.spans if s.kind == "switch" and s.job == "a")
    assert switches == [(150.0, 200.0, "rollout-0"), (200.0, 220.0, "train-0")]
    assert outcome.jobs[0].ended_h == pytest.approx(220 / HOUR_S)


@pytest.mark.parametrize("offload_s", [0.0, 2.0])
def test_a_newcomer_does_not_wait_out_a_phase_that_began_alone_and_may_pause(offload_s: float) -> None:
    long = JobSpec("long", PhaseSpec(600.0, 1, offload_s=offload_s, pause_s=0.0), PhaseSpec(300.0, 1), 2.0)
    short = JobSpec("short", PhaseSpec(10.0, 2), PhaseSpec(10.0, 1), 3.0)
    jobs = Workload("two", (Arrival(0.0, 9000.0, long), Arrival(3.0, 100.0, short)))
    outcome = replay(jobs, "rollmux", HISTORY)
    assert outcome.jobs[0].group == outcome.jobs[1].group
    assert outcome.slo_attainment == 1
    work_s = sum(s.end_s - s.start_s for s in outcome.spans if (s.job, s.kind) == ("long", "rollout"))
    assert work_s == pytest.approx(10 * 600.0)


def test_a_tail_makes_room_for_the_next_rollout() -> None:
    tail = Tail(100, 20, bulk_s=50.0, move_s=5.0)
    spec = replace(job("a", 100.0, 20.0, slo=4.0, nodes=(2, 1)), tail=tail, elastic_rollout=True)
    wide = [replace(spec, id=name) for name in "ab"]
    kept = [replace(each, tail=None) for each in wide]
    faster, slower = (replay(workload(*jobs, iterations=20), "paper", HISTORY) for jobs in (wide, kept))
    assert faster.makespan_h < slower.makespan_h
    assert faster.rollout.busy < slower.rollout.busy
    assert {s.node for s in faster.spans if s.kind == "rollout"} == {"rollout-0", "rollout-1"}
    first = sorted((s.start_s, s.end_s) for s in faster.spans if (s.job, s.kind, s.iteration) == ("b", "rollout", 0))
    assert first == [(100.0, 150.0), (100.0, 150.0), (150.0, 205.0)]  # the tail, and what it takes to move it


def test_an_elastic_rollout_starts_on_what_is_free() -> None:
    gpu = Pool("rollout", PAPER_TRAIN, max_nodes=2), Pool("train", PAPER_TRAIN, max_nodes=3)
    wide = replace(job("wide", 100.0, 100.0, slo=5.0, nodes=(2, 1)), elastic_rollout=True)
    jobs = workload(job("one", 300.0, 10.0, slo=5.0), wide, iterations=10)
    elastic = replay(jobs, "most-idle", replace(HISTORY, cluster=Cluster(*gpu)))
    assert [each.iterations for each in elastic.jobs] == [10, 10]


@pytest.mark.parametrize("fidelity", Fidelity)
def test_jobs_that_name_gpus_are_replayed_as_those_that_name_nodes(fidelity: Fidelity) -> None:
    named = replace(job("a"), rollout=PhaseSpec(100.0, gpus=16), train=PhaseSpec(100.0, gpus=8))
    jobs = [workload(each, iterations=20) for each in (named, named.resolve(PAPER_CLUSTER))]
    how = Settings(fidelity=fidelity, faults=Faults(node_mtbf_h=1.0))
    found, expected = (replace(replay(each, "solo", how), decision_ms=()) for each in jobs)
    assert found == expected
    assert found.rollout.busy > 0


def test_told_hears_of_every_arrival() -> None:
    told: list[tuple[int, int]] = []
    replay(workload(job("a"), job("b"), at=(0.0, 50.0)), "paper", None, lambda n, of: told.append((n, of)))
    assert told == [(1, 2), (2, 2)]
