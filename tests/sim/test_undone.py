"""Work that was not done: jobs that had no place, did no iteration or failed for good, and limits of what was done."""

from dataclasses import replace

import pytest

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import PhaseSpec
from rollmux.sim.faults import Faults
from rollmux.sim.generate import GENERATORS
from rollmux.sim.limits import fluid_usd, whole_node_usd
from rollmux.sim.optimal import Optimum
from rollmux.sim.optimal_run import optimal_run
from rollmux.sim.realised import durations
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.summary import summary
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from tests.builders import ROLLOUT_USD, TRAIN_USD, job
from tests.sim.worlds import fixed, workload

TOO_LARGE = replace(job("large"), rollout=PhaseSpec(100.0, nodes=1, resident_bytes=10**16))


@pytest.mark.parametrize("fidelity", Fidelity)
def test_a_job_without_a_place_makes_nothing_cheaper(fidelity: Fidelity) -> None:
    alone = replay(workload(job("a")), "solo", Settings(fidelity=fidelity))
    both = replay(workload(job("a"), TOO_LARGE), "solo", Settings(fidelity=fidelity))
    assert (both.usd_total, both.fluid_usd, both.whole_node_usd) == (
        alone.usd_total,
        alone.fluid_usd,
        alone.whole_node_usd,
    )
    refused = both.jobs[1]
    assert (refused.started_h, refused.iteration_s, refused.slowdown, refused.met) == (None, None, None, False)
    assert both.slo_attainment == 0.5
    assert summary(both)["admissions"]["direct"] + summary(both)["admissions"]["isolated"] == 1


@pytest.mark.parametrize("fidelity", Fidelity)
def test_a_job_that_fails_for_good_breaks_its_slo_and_was_there_until_then(fidelity: Fidelity) -> None:
    jobs = workload(job("a", 100.0, 100.0), iterations=90)
    outcome = replay(jobs, "solo", Settings(fidelity=fidelity, faults=Faults(None, 0.01)))
    (failed,) = outcome.jobs
    assert failed.failed
    assert not failed.met
    assert failed.restarts == 999
    assert failed.ended_h == outcome.makespan_h > 5.0
    assert outcome.rollout.paid == pytest.approx(outcome.makespan_h)
    assert failed.iterations < 90
    assert outcome.fluid_usd == pytest.approx(failed.iterations * 100.0 / HOUR_S * (ROLLOUT_USD + TRAIN_USD))


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize(("phase_s", "met"), [(1000.0, True), (700.0, False)])
def test_who_leaves_before_an_iteration_keeps_its_slo_if_none_was_due(
    phase_s: float, met: bool, staleness: int
) -> None:
    """It stays for 1,800 s, and may take 1.2 times as long as alone, 2,400 or 1,680 s; moving state in takes 500 s.

    Where rollouts run ahead that is 2,200 or 1,540 s: as nothing overlaps yet, the first iteration takes a phase more.
    """
    phase = PhaseSpec(phase_s, nodes=1)
    each = replace(job("a"), rollout=phase, train=phase, slo=1.2, staleness=staleness)
    late = Settings(
        accounting=Accounting.LIFETIME, takes=lambda job, kind, iteration: job.phase(kind).planned_s + 500.0
    )
    arrivals = workload(each).arrivals
    outcome = replay(Workload("w", tuple(replace(a, duration_s=1800.0) for a in arrivals)), "solo", late)
    (short,) = outcome.jobs
    assert (short.iterations, short.slowdown, short.met) == (0, None, met)
    assert outcome.fluid_usd == 0.0
    assert summary(outcome)["cost_over_fluid"] is None


@pytest.mark.parametrize("fidelity", Fidelity)
@pytest.mark.parametrize(("life_s", "met"), [(900.0, True), (1100.0, False)])
def test_a_job_that_waits_out_its_life_has_not_kept_its_slo_whatever_it_did_before(
    fidelity: Fidelity, life_s: float, met: bool
) -> None:
    """It does two iterations of 200 s, loses its node in the third, and has none from then on: three may take 900 s."""
    lost = Settings(
        cluster=fixed(1, 1),
        accounting=Accounting.LIFETIME,
        fidelity=fidelity,
        faults=Faults(node_mtbf_h=0.25, repair_h=1.0),
        seed=0,
    )
    jobs = Workload("w", (Arrival(0.0, life_s, job("a", 100.0, 100.0, slo=1.5)),))
    (each,) = replay(jobs, "solo", lost).jobs
    assert (each.iterations, each.restarts) == (2, 0)
    assert each.slowdown == pytest.approx(1.0, abs=0.1)
    assert (each.met, each.over_slo > 1.001) == (met, not met)


@pytest.mark.parametrize("name", ["tail", "drift"])
def test_the_iteration_in_which_a_life_ends_is_not_held_against_it(name: str) -> None:
    """Nobody is slowed alone, however long the iteration under way takes beside those that were done."""
    jobs = GENERATORS["mixed"](0, 40, 10.0)
    short = tuple(replace(a, duration_s=a.job.solo_s * (1 + i / 10)) for i, a in enumerate(jobs.arrivals))
    strict = Workload("w", tuple(replace(a, job=replace(a.job, slo=1.0, staleness=i % 3)) for i, a in enumerate(short)))
    outcome = replay(strict, "solo", Settings(accounting=Accounting.LIFETIME, takes=durations(name, 0)))
    assert [each.job for each in outcome.jobs if not each.met] == []


def test_limits_are_of_the_iterations_done() -> None:
    jobs = GENERATORS["mixed"](3, 12, 6.0)
    outcome = replay(jobs, "paper", Settings(accounting=Accounting.LIFETIME))
    done = {each.job: each.iterations for each in outcome.jobs}
    assert sum(done.values()) < sum(arrival.iterations for arrival in jobs.arrivals)
    assert outcome.fluid_usd == fluid_usd(jobs, PAPER_CLUSTER, done) < fluid_usd(jobs, PAPER_CLUSTER)
    assert outcome.whole_node_usd == whole_node_usd(jobs, PAPER_CLUSTER, done) < whole_node_usd(jobs, PAPER_CLUSTER)


@pytest.mark.parametrize("policy", ["solo", "colocated", "paper", "rollmux"])
@pytest.mark.parametrize("realised", ["tail", "drift"])
def test_with_real_durations_the_fluid_limit_is_of_those_and_the_other_is_not_known(policy: str, realised: str) -> None:
    """It was undercut by a fifth as long as it counted phases at their bounds."""
    jobs = GENERATORS["mixed"](0, 20, 30.0)
    outcome = replay(jobs, policy, Settings(takes=durations(realised, 0), pause_s=-1.0, spares=0))
    assert 0 < outcome.fluid_usd < 0.95 * fluid_usd(jobs, PAPER_CLUSTER)
    if policy != "colocated":  # whose rollouts are on other nodes
        busy_usd = outcome.rollout.busy * ROLLOUT_USD + outcome.train.busy * TRAIN_USD
        assert busy_usd == pytest.approx(outcome.fluid_usd)
    assert outcome.usd_total > outcome.fluid_usd
    assert summary(outcome)["cost_over_whole_node"] is summary(outcome)["whole_node_usd"] is None


def test_nodes_beyond_what_a_phase_wants_are_idle() -> None:
    """Of a group that trains on two nodes `paper` gives both to a job that wants one."""
    wide = replace(job("wide", 300.0, 200.0), train=PhaseSpec(200.0, nodes=2), slo=2.0)
    narrow = replace(job("narrow", 100.0, 50.0), slo=2.0)
    phase, pace = (
        replay(workload(wide, narrow, iterations=20), "paper", Settings(fidelity=each))
        for each in (Fidelity.PHASE, Fidelity.PACE)
    )
    assert {each.group for each in phase.jobs} == {phase.jobs[0].group}
    assert phase.train.busy == pytest.approx(pace.train.busy) == 20 * (2 * 200.0 + 50.0) / HOUR_S


def test_at_the_forecast_pace_no_pool_is_busier_than_paid_for() -> None:
    outcome = replay(GENERATORS["mixed"](0, 30, 40.0), "colocated", Settings(fidelity=Fidelity.PACE))
    assert outcome.train.busy <= outcome.train.paid
    assert outcome.train.idle >= 0.0


def test_the_optimum_of_lifetimes_is_over_the_limit_of_what_it_did() -> None:
    jobs = GENERATORS["balanced"](0, 8, 2.0)
    outcome = optimal_run(jobs, PAPER_CLUSTER, Optimum(PAPER_CLUSTER), fixed_lifetimes=True).outcome
    assert outcome.fluid_usd <= fluid_usd(jobs, PAPER_CLUSTER)
    assert summary(outcome)["admissions"] is None


@pytest.mark.parametrize(("life_s", "iterations"), [(150.0, 0), (310.0, 1), (400.0, 2)])
def test_an_iteration_that_is_not_done_is_none_in_the_optimum_either(life_s: float, iterations: int) -> None:
    jobs = Workload("two", tuple(Arrival(0.0, life_s, job(name, slo=1.9)) for name in "ab"))
    outcome = optimal_run(jobs, PAPER_CLUSTER, Optimum(PAPER_CLUSTER), fixed_lifetimes=True).outcome
    lifetimes = Settings(accounting=Accounting.LIFETIME, fidelity=Fidelity.PACE)
    for each, alone in zip(outcome.jobs, replay(jobs, "solo", lifetimes).jobs, strict=True):
        assert each.iterations == alone.iterations == iterations
        assert (each.slowdown, each.met) == (pytest.approx(1.0) if iterations else None, True)
    assert outcome.usd_total >= outcome.fluid_usd * (1 - 1e-9)


def test_in_the_optimum_no_pool_is_busier_than_paid_for() -> None:
    """Phases of tenths of a millisecond more than a whole number, which is what forecasts count in."""
    phase = PhaseSpec(0.0104, nodes=1, load_s=0.0001)
    jobs = workload(replace(job("a"), rollout=phase, train=phase, staleness=1), iterations=1000)
    outcome = optimal_run(jobs, PAPER_CLUSTER).outcome
    for pool in (outcome.rollout, outcome.train):
        assert pool.busy <= pool.paid
        assert pool.idle >= 0.0
