"""Lost nodes and failed jobs: every invariant after every event, all the work done, and the bill that stops."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.sim import faults as faults_module
from rollmux.sim.books import Books
from rollmux.sim.cast import Cast, Delays
from rollmux.sim.faults import Faults, strike
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome
from rollmux.sim.paced import PacedCast
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.workload import HOUR_S, Workload
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, job
from tests.sim.worlds import PHASED, Inspector, fixed, machine, workload, workloads
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

MANY = workloads(most_nodes=(3, 2))
MTBF_H = st.sampled_from((None, 0.5, 2.0))


def inspected(jobs: Workload, policy: str, faults: Faults, rooms: tuple[int, int] | None, seed: int) -> Cast:
    """The jobs under these faults, with every invariant checked after every event."""
    cluster = fixed(*rooms) if rooms else PAPER_CLUSTER
    of = machine(policy, cluster)
    inspector = Inspector(of)
    cast = Cast(of, Delays(provision_s=20.0, launch_s=10.0, restart_s=60.0), observer=inspector)
    for pool, count in zip(cluster.pools, rooms or (0, 0), strict=True):
        for i in range(count):
            cast.tell(ev.NodeJoined(f"{pool.name}-{i}", pool.name))
    for arrival in jobs.arrivals:
        spec = replace(arrival.job, iterations=arrival.iterations, max_attempts=1000)
        cast.submit(arrival.at_s, spec)
    strike(cast, faults, seed)
    cast.run(happenings=100_000)
    return cast


@settings(max_examples=examples(80))
@given(
    jobs=MANY,
    policy=st.sampled_from(PHASED),
    mtbf=st.tuples(MTBF_H, MTBF_H),
    rooms=st.sampled_from((None, (3, 2), (4, 4))),
    seed=st.integers(0, 9),
)
def test_whatever_breaks_all_work_is_done_and_every_promise_kept(
    jobs: Workload, policy: str, mtbf: tuple[float | None, float | None], rooms: tuple[int, int] | None, seed: int
) -> None:
    cast = inspected(jobs, policy, Faults(*mtbf, repair_h=0.2), rooms, seed)
    assert cast.over
    for arrival in jobs.arrivals:
        assert cast.done(arrival.job.id) == arrival.iterations
    assert set(cast.machine.state.ended.values()) == {"finished"}


@settings(max_examples=examples(60))
@given(
    jobs=MANY,
    policy=st.sampled_from([*PHASED, "gavel", "colocated"]),
    how=st.tuples(st.sampled_from(Fidelity), st.sampled_from(Accounting)),
    rooms=st.sampled_from((None, (3, 2))),
    seed=st.integers(0, 9),
)
def test_the_bill_adds_up_under_faults(
    jobs: Workload,
    policy: str,
    how: tuple[Fidelity, Accounting],
    rooms: tuple[int, int] | None,
    seed: int,
) -> None:
    fidelity, accounting = how
    wants = Settings(
        cluster=fixed(*rooms) if rooms else PAPER_CLUSTER,
        fidelity=fidelity,
        accounting=accounting,
        seed=seed,
        move_s=60.0,
        faults=Faults(1.0, 1.0, repair_h=0.5),
        history=True,
    )
    outcome = replay(jobs, policy, wants)
    levels = [level for level in outcome.levels if level.at_s <= outcome.makespan_h * HOUR_S]
    ends = [level.at_s for level in levels[1:]] + [outcome.makespan_h * HOUR_S]
    usd = sum(level.usd_per_hour * (end - level.at_s) / HOUR_S for level, end in zip(levels, ends, strict=True))
    assert usd == pytest.approx(outcome.usd_total)
    for pool in (outcome.rollout, outcome.train):
        assert pool.paid >= -1e-9
        if accounting is Accounting.WORK and fidelity is Fidelity.PHASE and policy != "gavel":
            assert pool.idle >= -1e-9
    for each, arrival in zip(outcome.jobs, jobs.arrivals, strict=True):
        if accounting is Accounting.WORK:
            assert each.iterations == arrival.iterations
        else:
            assert each.ended_h * HOUR_S == pytest.approx(arrival.at_s + arrival.duration_s)


# -- one fault at a time ----------------------------------------------------------------------------------------


def one_job(cast: Cast, iterations: int = 3) -> Cast:
    cast.keep_history = True
    cast.submit(0.0, replace(job("a", 100.0, 50.0), iterations=iterations))
    return cast


def test_what_was_done_since_the_last_sync_is_done_again() -> None:
    cast = one_job(Cast(machine("solo"), Delays(restart_s=60.0)))
    cast.at(270.0, lambda: cast.fail("a", "a test"))
    cast.run()
    assert cast.completed["a"] == [150.0, 480.0, 630.0]
    rollouts = Counter(
        event.iteration
        for _, event, _ in cast.history
        if isinstance(event, ev.PhaseRequested) and event.kind.value == "rollout"
    )
    assert rollouts == {0: 1, 1: 2, 2: 1}


def test_jobs_fail_as_often_as_they_run_however_many_wait() -> None:
    jobs = workload(*[job(f"j{i}", slo=1.0) for i in range(20)], iterations=100)
    wants = Settings(cluster=fixed(1, 1), fidelity=Fidelity.PACE, move_s=0.0, faults=Faults(job_mtbf_h=1.0))
    outcome = replay(jobs, "solo", wants)
    ran_h = sum(each.ended_h - each.started_h for each in outcome.jobs if each.started_h is not None)
    assert ran_h > 100
    assert outcome.restarts == pytest.approx(ran_h, rel=0.2)


def test_at_pace_a_failure_costs_the_iteration_under_way_and_no_more() -> None:
    cast = one_job(PacedCast(machine("solo"), Delays(restart_s=60.0)), iterations=10)
    cast.at(1000.0, lambda: cast.fail("a", "a test"))
    cast.run()
    assert cast.done("a") == 10
    assert cast.ended["a"] == pytest.approx(1000 + 60 + 4 * 150)


@pytest.mark.parametrize("fidelity", Fidelity)
def test_a_lost_node_is_paid_until_then_and_its_job_goes_on_elsewhere(fidelity: Fidelity) -> None:
    of = machine("solo")
    inspector = Inspector(of)
    kind = Cast if fidelity is Fidelity.PHASE else PacedCast
    cast = one_job(kind(of, Delays(restart_s=0.0), observer=inspector))
    cast.at(200.0, lambda: cast.lose("rollout-0"))
    cast.run()
    assert cast.ended["a"] == pytest.approx(150 + 50 + 300)
    assert "rollout-0" not in of.state.book.nodes


def test_the_cost_of_lost_nodes_stops_at_their_loss() -> None:
    jobs = workload(job("a", 100.0, 50.0), iterations=40)
    outcome = replay(jobs, "solo", Settings(faults=Faults(node_mtbf_h=1.0), move_s=0.0, history=True))
    assert (outcome.jobs[0].restarts > 0, outcome.jobs[0].moves) == (True, 0)
    assert outcome.usd_total == pytest.approx(outcome.makespan_h * (ROLLOUT_USD + TRAIN_USD))
    assert (outcome.peak_rollout, outcome.peak_train) == (1, 1)


def test_a_machine_that_is_lost_comes_back_and_who_waits_for_it_is_counted() -> None:
    jobs = workload(job("a", 100.0, 50.0), iterations=60)
    outcome = replay(
        jobs, "solo", Settings(cluster=fixed(1, 1), faults=Faults(2.0, repair_h=0.25), move_s=0.0, seed=1, history=True)
    )
    assert outcome.jobs[0].iterations == 60
    assert lost_h(outcome) > 0
    assert outcome.rollout.paid + outcome.train.paid == pytest.approx(2 * outcome.makespan_h - lost_h(outcome))
    for level in outcome.levels:
        down = min(level.rollout_nodes, level.train_nodes) == 0
        assert not (down and level.running == level.waiting == 0) or level.at_s >= outcome.makespan_h * HOUR_S
    assert any(level.waiting for level in outcome.levels)


def lost_h(outcome: Outcome) -> float:
    """Node-hours of two machines that were not there."""
    levels = [level for level in outcome.levels if level.at_s < outcome.makespan_h * HOUR_S]
    ends = [level.at_s for level in levels[1:]] + [outcome.makespan_h * HOUR_S]
    return sum(
        (2 - level.rollout_nodes - level.train_nodes) * (end - level.at_s) / HOUR_S
        for level, end in zip(levels, ends, strict=True)
    )


def test_a_machine_that_comes_back_after_the_end_costs_nothing() -> None:
    for seed in range(20):
        jobs = workload(job("a", 100.0, 50.0), iterations=10)
        wants = Settings(cluster=fixed(2, 2), faults=Faults(0.5, repair_h=9.0), move_s=0.0, seed=seed)
        outcome = replay(jobs, "solo", wants)
        assert 0 < outcome.rollout.paid <= 2 * outcome.makespan_h + 1e-9
        assert outcome.rollout.idle >= -1e-9


# -- how often --------------------------------------------------------------------------------------------------


def faults_of(faults: Faults, seeds: int = 40) -> tuple[int, int, float]:
    """Losses, failures, and hours run, of two jobs that come at once and run for a day, over several seeds."""
    losses, failures, hours = 0, 0, 0.0
    for seed in range(seeds):
        of = machine("solo")
        inspector = Inspector(of)
        cast = PacedCast(of, observer=inspector)
        for name in "ab":
            cast.submit(0.0, job(name))
            cast.dismiss(24 * HOUR_S, name)
        strike(cast, faults, seed)
        cast.run()
        kinds = Counter(type(event) for _, event in inspector.events)
        losses, failures, hours = losses + kinds[ev.NodeLost], failures + kinds[ev.JobFailed], hours + 24
    return losses, failures, hours


@pytest.mark.parametrize("mtbf_h", [30.0, 200.0])
def test_faults_come_as_often_as_there_are_victims_from_the_first_hour_on(mtbf_h: float) -> None:
    losses, _, hours = faults_of(Faults(node_mtbf_h=mtbf_h))
    assert losses == pytest.approx(4 * hours / mtbf_h, rel=4 / (4 * hours / mtbf_h) ** 0.5)
    _, failures, hours = faults_of(Faults(job_mtbf_h=mtbf_h * 0.5))
    expected = 2 * hours / (mtbf_h * 0.5)
    assert failures == pytest.approx(expected, rel=4 / expected**0.5)


def test_the_same_seed_strikes_alike_and_another_does_not() -> None:
    jobs = workload(job("a"), job("b"), iterations=50)
    found = defaultdict(list)
    for seed in (0, 0, 1):
        outcome = replay(jobs, "paper", Settings(seed=seed, faults=Faults(3.0, 3.0)))
        found[seed].append(replace(outcome, decision_ms=()))
    assert found[0][0] == found[0][1] != found[1][0]


def test_faults_end_with_the_last_job_that_can_run() -> None:
    switch = replace(job("a").rollout, nodes=2, load_s=20.0)
    never = replace(job("never", slo=1.0), rollout=switch, train=switch)  # meets its SLO on four nodes only
    pool = replace(SHARED_CLUSTER.rollout, on_demand=False, max_nodes=3)
    cluster = replace(SHARED_CLUSTER, rollout=pool, train=pool)
    outcome = replay(workload(never, job("b")), "solo", Settings(cluster=cluster, faults=Faults(5.0, 5.0)))
    assert [each.iterations for each in outcome.jobs] == [0, 5]


@pytest.mark.parametrize("policy", CONTENDERS)
def test_every_policy_survives_faults(policy: str) -> None:
    jobs = workload(*[job(f"j{i}", 60.0 + 20 * i, 90.0, slo=1.6) for i in range(6)], iterations=40)
    outcome = replay(jobs, policy, Settings(faults=Faults(4.0, 4.0)))
    assert [each.iterations for each in outcome.jobs] == [40] * 6
    assert outcome.restarts == sum(each.restarts for each in outcome.jobs) > 0
    assert outcome.moves == sum(each.moves for each in outcome.jobs)


def test_a_move_is_no_restart_and_a_restart_no_move() -> None:
    drawn = GENERATORS["mixed"](0, 30, 15.0)
    of = ClusterMachine(PAPER_CLUSTER, CONTENDERS["rollmux"].make(8, 0))
    books = Books(of, history=False)
    cast = PacedCast(of, observer=books)
    cast.keep_history = True
    for arrival in drawn.arrivals:
        cast.submit(arrival.at_s, replace(arrival.job, iterations=arrival.iterations, max_attempts=1000))
    strike(cast, Faults(job_mtbf_h=10.0), seed=0)
    cast.run()
    failures = Counter(event.job_id for _, event, _ in cast.history if isinstance(event, ev.JobFailed))
    again = Counter(
        command.job_id
        for _, _, commands in cast.history
        for command in commands
        if isinstance(command, cmd.Launch) and command.attempt > 1
    )
    assert books.restarts == failures
    assert books.moves == again - failures
    assert min(books.moves.total(), failures.total()) > 0


def test_without_faults_nobody_is_restarted() -> None:
    outcome = replay(GENERATORS["mixed"](0, 30, 15.0), "rollmux", Settings(fidelity=Fidelity.PACE))
    assert outcome.moves > 0
    assert outcome.restarts == sum(each.restarts for each in outcome.jobs) == 0


def test_a_job_that_never_gets_through_an_iteration_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "MOST_ATTEMPTS", 50)
    outcome = replay(workload(job("a")), "solo", Settings(faults=Faults(node_mtbf_h=0.001)))
    (given_up,) = outcome.jobs
    assert given_up.failed
    assert given_up.iterations == 0
    assert 0 < given_up.restarts < 50


def test_a_gang_whose_nodes_are_never_all_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "MOST_ATTEMPTS", 50)
    settings = Settings(cluster=fixed(6, 6), faults=Faults(node_mtbf_h=0.1))
    (given_up,) = replay(workload(job("a", nodes=(6, 6))), "rollmux", settings).jobs
    assert given_up.failed
    assert given_up.iterations == 0
