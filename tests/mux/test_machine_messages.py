"""The whole machine and messages that come late, twice or wrongly; parked state; policies that plan what may not be."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.image import image
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.plan import Decision
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.transitions import Job
from rollmux.sim.cast import Cast, Delays
from tests.mux.world import (
    ELASTIC,
    FINISHED,
    FINITE,
    LOST,
    RELEASE,
    ROLLOUT,
    SYNC,
    TRAIN,
    World,
    is_running,
    job,
    kinds,
    timeless,
)
from tests.thorough import examples

# -- parked state ----------------------------------------------------------------------------------------------------


def test_state_that_is_alone_on_its_nodes_stays_there_until_somebody_else_comes() -> None:
    world = is_running()
    assert world.begin("A", ROLLOUT).keep
    world.tell(ev.PhaseFinished("A", 1))
    world.tell(ev.JobSubmitted(job("B")))
    assert world.tell(ev.JobStarted("B", 1)) == (cmd.Offload("A", 1, ("rollout-0",)),)
    assert world.ask("B", ROLLOUT) == ()
    world.ignores(ev.PhaseFinished("A", 1))
    (grant,) = world.tell(ev.PhaseOffloaded("A", 1))
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.load, grant.lease.keep) == ("B", True, False)
    world.ignores(ev.PhaseOffloaded("A", 1))


def test_state_that_was_to_stay_goes_at_the_end_of_the_phase_if_somebody_has_come_meanwhile() -> None:
    world = is_running()
    lease = world.begin("A", ROLLOUT)
    assert lease.keep
    world.tell(ev.JobSubmitted(job("B")))
    assert world.tell(ev.JobStarted("B", 1)) == ()
    assert world.ask("B", ROLLOUT) == ()
    assert world.tell(ev.PhaseFinished("A", lease.epoch)) == (cmd.Offload("A", lease.epoch, lease.nodes),)
    assert world.record("A").progress.rolled == 1
    assert kinds(world.tell(ev.PhaseOffloaded("A", lease.epoch))) == [cmd.Grant]


def test_a_rollout_whose_state_may_stay_is_not_told_to_shrink_for_it_could_not_park_then() -> None:
    wide = {"rollout": PhaseSpec(50.0, 2), "tail": Tail(100, 50, 40.0), "slo": 8.0}
    world = is_running(**wide)
    lease = world.begin("A", ROLLOUT)
    assert lease.keep
    world.run(job("B", slo=8.0))
    world.ask("B", ROLLOUT)
    assert world.tell(ev.PhaseProgressed("A", lease.epoch, 90, 100)) == ()
    assert world.tell(ev.PhaseFinished("A", lease.epoch)) == (cmd.Offload("A", lease.epoch, lease.nodes),)
    assert kinds(world.tell(ev.PhaseOffloaded("A", lease.epoch))) == [cmd.Grant]


def test_a_job_that_wants_its_parked_state_while_it_goes_stands_behind_the_newcomer() -> None:
    world = is_running()
    world.iterate("A")
    world.tell(ev.JobSubmitted(job("B")))
    assert kinds(world.tell(ev.JobStarted("B", 1))) == [cmd.Offload, cmd.Offload]
    assert world.ask("B", ROLLOUT) == ()
    assert world.ask("A", ROLLOUT, 1) == ()
    (grant,) = world.tell(ev.PhaseOffloaded("A", 1))
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "B"
    (again,) = world.tell(ev.PhaseFinished("B", grant.lease.epoch))
    assert isinstance(again, cmd.Grant)
    assert (again.lease.job_id, again.lease.iteration, again.lease.load) == ("A", 1, True)


# -- wrong, late and repeated ----------------------------------------------------------------------------------------


def busy_world() -> World:
    """A rolls out under lease 1, B waits behind it, C waits for its nodes, `gone` is over."""
    world = World()
    world.run(job("gone"))
    world.tell(ev.JobFinished("gone", 1))
    world.run(job("A"), job("B"))
    world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    world.tell(ev.JobSubmitted(job("C", slo=1.0)))
    assert world.state("C") is Job.PROVISIONING
    return world


ILLEGAL: list[Any] = [
    ev.JobSubmitted(job("A", priority=3)),
    ev.JobSubmitted(job("gone")),
    ev.JobStarted("nobody", 1),
    ev.JobStarted("A", 2),
    ev.JobStarted("C", 1),
    ev.JobProfiled("A", 1, nan, 1.0, 0.0),
    ev.JobProfiled("A", 1, 1.0, inf, 0.0),
    ev.JobProfiled("A", 1, 0.0, 1.0, 0.0),
    ev.JobProfiled("A", 1, 1.0, 1.0, -1.0),
    ev.JobProfiled("A", 2, 1.0, 1.0, 0.0),
    ev.JobProfiled("A", 1, 1.0, 1.0, 0.0, (nan, 1.0)),
    ev.JobProfiled("A", 1, 1.0, 1.0, 0.0, None, (1.0, -1.0)),
    ev.JobProfiled("A", 1, 1.0, 1.0, 0.0, process_bytes=-1),
    ev.JobProfiled("A", 1, 1.0, 1.0, 0.0, process_bytes=10**400),
    ev.JobFinished("C", 1),
    ev.JobFinished("A", 2),
    ev.JobFailed("C", 1, "signal 9"),
    ev.JobFailed("nobody", 1, "signal 9"),
    ev.JobStopped("A", 1),
    ev.JobAbandoned("nobody", 1, "its script was killed"),
    ev.JobAbandoned("A", 2, "its script was killed"),
    ev.JobCancelled("nobody"),
    ev.PhaseRequested("nobody", 1, ROLLOUT, 0),
    ev.PhaseRequested("A", 2, ROLLOUT, 0),
    ev.PhaseRequested("A", 1, ROLLOUT, 1),
    ev.PhaseRequested("A", 1, TRAIN, 0),
    ev.PhaseRequested("A", 1, SYNC, 0),
    ev.PhaseRequested("B", 1, ROLLOUT, 1),
    ev.PhaseRequested("B", 1, ROLLOUT, -1),
    ev.PhaseRequested("C", 1, ROLLOUT, 0),
    ev.PhaseStarted("A", 2),
    ev.PhaseStarted("A", 0),
    ev.PhaseStarted("B", 1),
    ev.PhaseStarted("nobody", 1),
    ev.PhaseProgressed("A", 1, 5, 4),
    ev.PhaseProgressed("A", 1, -1, 4),
    ev.PhaseProgressed("A", 1, 0, 0),
    ev.PhaseProgressed("A", 1, 1, 10**400),
    ev.PhaseShrunk("A", 1),
    ev.PhaseOffloaded("A", 1),
    ev.PhaseFinished("B", 1),
    ev.PhaseFinished("C", 2),
    ev.PhaseFailed("B", 1, "raised ValueError"),
    ev.Heartbeat("A", 2),
    ev.Heartbeat("B", 1),
    ev.NodeJoined("stranger", "nowhere"),
    ev.NodeJoined("rollout-2", "train"),
    ev.NodeCordoned("stranger"),
    "not an event",
    None,
]


@pytest.mark.parametrize("event", ILLEGAL, ids=str)
def test_what_cannot_be_is_refused_and_changes_nothing(event: ev.Event) -> None:
    busy_world().refuses(event)


LATE: list[ev.Event] = [
    ev.JobSubmitted(job("A")),
    ev.JobStarted("A", 1),
    ev.PhaseRequested("B", 1, ROLLOUT, 0),
    ev.PhaseStarted("A", 1),
    ev.NodeJoined("rollout-2", "rollout"),
    ev.NodeLost("stranger"),
    ev.NodeLost("rollout-0"),
    ev.JobStarted("gone", 1),
    ev.JobCancelled("gone"),
    ev.JobAbandoned("gone", 1, "its script was killed"),
    ev.Tick(),
]


@pytest.mark.parametrize("event", LATE, ids=str)
def test_what_is_known_already_changes_nothing(event: ev.Event) -> None:
    busy_world().ignores(event)


def test_what_is_said_of_an_old_lease_by_a_job_that_waits_for_a_place_again_changes_nothing() -> None:
    world = World(FINITE)
    for node, pool in (("r", "rollout"), ("t", "train")):
        world.tell(ev.NodeJoined(node, pool))
    world.run(job("A"))
    lease = world.begin("A", ROLLOUT)
    world.tell(ev.NodeLost("r"))
    world.tell(ev.JobStopped("A", 1))
    assert world.state("A") is Job.QUEUED
    world.ignores(ev.PhaseFinished("A", lease.epoch))
    world.ignores(ev.PhaseFailed("A", lease.epoch, "its node is gone"))
    world.refuses(ev.PhaseFinished("A", lease.epoch + 1))


def test_a_request_that_is_repeated_has_the_same_answer() -> None:
    world = busy_world()
    before = image(world.machine)
    (grant,) = world.ask("A", ROLLOUT)
    assert isinstance(grant, cmd.Grant)
    assert grant.lease == cmd.Lease("A", 1, ROLLOUT, 0, 1, ("rollout-2",), load=True, keep=False)
    assert timeless(image(world.machine)) == timeless(before)
    world.tell(ev.PhaseFinished("A", 1))
    world.ignores(ev.PhaseRequested("A", 1, ROLLOUT, 0))


@pytest.mark.parametrize("now", [nan, 9.999, 0.0, -inf])
def test_a_clock_that_goes_back_is_refused(now: float) -> None:
    world = is_running()
    world.tell(ev.JobProfiled("A", 1, 40.0, 40.0, 0.0), 10.0)
    world.now = now
    world.refuses(FINISHED)
    world.refuses(ev.Heartbeat("A", 1))
    world.now = 10.0
    assert kinds(world.tell(FINISHED)) == RELEASE


class Echoes(Cast):
    """Each message comes twice, and after it an older one comes once more."""

    def __init__(self, machine: ClusterMachine, echoes: list[int]) -> None:
        super().__init__(machine)
        self.keep_history = True
        self.echoes = echoes
        self.sent: list[ev.Event] = []
        self.granted: set[cmd.Command] = set()

    def tell(self, event: ev.Event) -> None:
        self.sent.append(event)
        super().tell(event)
        check_all(self.machine.state)
        self.granted.update(c for _, _, commands in self.history for c in commands if isinstance(c, cmd.Grant))
        self.echo(event)
        older = self.sent[self.echoes[len(self.history) % len(self.echoes)] % len(self.sent)]
        if not isinstance(older, ev.NodeEvent):  # a node may well be lost and join more than once
            self.echo(older)

    def echo(self, event: ev.Event) -> None:
        before = image(self.machine)
        try:
            commands = self.machine.handle(self.now, event)
        except IllegalEvent:
            assert image(self.machine) == before
            return
        assert timeless(image(self.machine)) == timeless(before)
        assert self.granted.issuperset(commands)

    def kill(self, job_id: str) -> None:
        actor = self.actors.pop(job_id, None)
        if actor is not None:
            actor.acts.clear()
            self.tell(ev.JobFailed(job_id, actor.attempt, "killed by signal 9"))


@pytest.mark.no_cover
@given(
    slos=st.lists(st.sampled_from([1.0, 1.2, 4.0]), min_size=2, max_size=5),
    staleness=st.integers(0, 1),
    troubles=st.lists(st.tuples(st.sampled_from([20.0, 70.0]), st.integers(0, 9), st.integers(0, 3)), max_size=5),
    echoes=st.lists(st.integers(0, 10_000), min_size=1, max_size=20),
)
@settings(max_examples=examples(60))
def test_late_and_repeated_messages_change_nothing(
    slos: list[float], staleness: int, troubles: list[tuple[float, int, int]], echoes: list[int]
) -> None:
    cast = Echoes(ClusterMachine(ELASTIC, RollmuxPolicy()), echoes)
    for i, slo in enumerate(slos):
        spec = job(f"job{i}", slo=slo, staleness=staleness, iterations=3, cold_start_s=1.0, sync_s=4.0, max_attempts=9)
        cast.submit(30.0 * i, spec)
    for passes_s, pick, what in troubles:
        cast.run(cast.now + passes_s)
        jobs, nodes = list(cast.machine.state.jobs), list(cast.machine.state.book.nodes)
        if what == 0 and jobs:
            cast.kill(jobs[pick % len(jobs)])
        elif what == 1 and jobs:
            cast.tell(ev.JobCancelled(jobs[pick % len(jobs)]))
        elif what == 2 and nodes:
            cast.tell(ev.NodeLost(nodes[pick % len(nodes)]))
        elif what == 3 and jobs:
            record = cast.machine.state.jobs[jobs[pick % len(jobs)]]
            cast.tell(ev.JobProfiled(record.job.id, record.attempt, 40.0, 45.0, 4.0))
    cast.run()
    assert not cast.machine.state.jobs
    assert not cast.machine.state.book.nodes


@pytest.mark.parametrize("launch_s", [0.0, 5.0])
def test_what_a_stopped_attempt_was_doing_is_not_counted_as_done(launch_s: float) -> None:
    """Its node is lost in its first sync, 2 s before the end."""
    cast = Cast(ClusterMachine(ELASTIC, RollmuxPolicy()), Delays(launch_s=launch_s))
    cast.submit(0.0, job("A", iterations=3, sync_s=4.0))
    cast.run(102.0 + launch_s)
    cast.tell(LOST)
    cast.run()
    assert cast.completed["A"] == [102.0 + 2 * launch_s + 104.0 * (i + 1) for i in range(3)]
    assert cast.machine.state.ended == {"A": "finished"}


# -- policies are not trusted ----------------------------------------------------------------------------------------


class Turncoat:
    """A policy that is honest at first. Then its plans hold nodes that nobody gave them."""

    def __init__(self) -> None:
        self.honest = RollmuxPolicy()
        self.turned = False
        self.name = "turncoat"
        self.forecaster = self.honest.forecaster

    def place(self, wanted: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        decision = self.honest.place(wanted, snapshot)
        if self.turned and decision.plan is not None:
            return replace(decision, plan=replace(decision.plan, new_nodes=()))
        return decision


def test_a_plan_that_would_break_a_promise_is_not_applied() -> None:
    policy = Turncoat()
    policy.turned = True
    world = World(policy=policy)
    (queue,) = world.tell(ev.JobSubmitted(job("A")))
    assert isinstance(queue, cmd.Queue)
    assert "I1" in queue.reason
    assert world.state() is Job.QUEUED
    assert not world.machine.state.groups
    assert not world.machine.state.book.nodes
    assert len(world.machine.state.alarms) == 1
    policy.turned = False
    assert kinds(world.tell(ev.JobSubmitted(job("B")))).count(cmd.Admit) == 2


def test_a_move_that_would_break_a_promise_is_not_made() -> None:
    policy = Turncoat()
    world = World(rules=Rules(compaction=False), policy=policy)
    world.run(job("A", slo=1.2), job("B", slo=1.2))
    policy.turned = True
    assert world.tell(ev.JobProfiled("A", 1, 80.0, 20.0, 0.0)) == ()
    assert [record.target for record in world.machine.state.jobs.values()] == [None, None]
    assert len(world.machine.state.alarms) == 1
