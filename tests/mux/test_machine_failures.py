"""The whole machine when jobs fail, nodes go and leases run out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import OVERDUE
from rollmux.mux.cluster_state import Rules
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.invariants import check_seat
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.mux.order import Order
from rollmux.mux.placed import Placement
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.seat import Progress, Seat
from rollmux.mux.transitions import Job, Phase
from rollmux.mux.weave import Ledger, Timing, Weave
from tests.mux.world import (
    CANCELLED,
    ELASTIC,
    FAILED,
    FINISHED,
    FINITE,
    HOME,
    JOINED,
    LEASES,
    LOST,
    RELEASE,
    REPLACE,
    ROLLOUT,
    STARTED,
    STOPPED,
    SYNC,
    TRAIN,
    World,
    is_cancelled,
    is_moving,
    is_provisioning,
    is_running,
    is_starting,
    job,
    kinds,
)

# -- failures --------------------------------------------------------------------------------------------------------


def test_a_failed_job_starts_again_from_its_last_sync_and_its_neighbours_go_on() -> None:
    world = World()
    world.run(job("A"), job("B"))
    world.iterate("A", 2)
    world.do("A", ROLLOUT, 2)
    held = world.begin("A", TRAIN, 2)
    world.do("B", ROLLOUT)
    assert world.ask("B", TRAIN) == ()
    grant, launch = world.tell(FAILED)
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.nodes) == ("B", held.nodes)
    assert launch == cmd.Launch("A", 2, HOME)
    world.tell(ev.JobStarted("A", 2))
    world.refuses(ev.PhaseRequested("A", 2, TRAIN, 2))
    assert world.do("A", ROLLOUT, 2) == ()
    assert world.record().progress.synced == 2


def test_a_job_ends_when_its_last_attempt_has_failed() -> None:
    world = is_running(max_attempts=3)
    assert world.tell(FAILED) == (cmd.Launch("A", 2, HOME),)
    world.tell(ev.JobStarted("A", 2))
    assert world.tell(ev.JobFailed("A", 2, "signal 9")) == (cmd.Launch("A", 3, HOME),)
    assert kinds(world.tell(ev.JobFailed("A", 3, "no space left on device"))) == RELEASE
    assert world.machine.state.ended["A"] == "failed 3 times, at last: no space left on device"


def test_a_failed_phase_counts_against_nobody_and_may_be_asked_for_again() -> None:
    world = World()
    world.run(job("A"), job("B"))
    lease = world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    (grant,) = world.tell(ev.PhaseFailed("A", lease.epoch, "raised ValueError"))
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "B"
    assert (world.record().progress.rolled, world.record().failures, world.record().attempt) == (0, 0, 1)
    world.ignores(ev.PhaseFinished("A", lease.epoch))
    assert world.ask("A", ROLLOUT) == ()
    (again,) = world.tell(ev.PhaseFinished("B", grant.lease.epoch))
    assert isinstance(again, cmd.Grant)
    assert (again.lease.job_id, again.lease.iteration) == ("A", 0)


def test_messages_of_an_attempt_that_is_over_change_nothing() -> None:
    world = is_running()
    lease = world.begin("A", ROLLOUT)
    world.tell(FAILED)
    world.tell(ev.JobStarted("A", 2))
    world.begin("A", ROLLOUT)
    for event in (
        STARTED,
        FINISHED,
        FAILED,
        STOPPED,
        ev.JobProfiled("A", 1, 1.0, 1.0, 1.0),
        ev.PhaseRequested("A", 1, ROLLOUT, 0),
        ev.PhaseStarted("A", lease.epoch),
        ev.PhaseProgressed("A", lease.epoch, 9, 10),
        ev.PhaseShrunk("A", lease.epoch),
        ev.PhaseFinished("A", lease.epoch),
        ev.PhaseFailed("A", lease.epoch, "raised ValueError"),
        ev.PhaseOffloaded("A", lease.epoch),
        ev.Heartbeat("A", lease.epoch),
    ):
        world.ignores(event)


def test_messages_of_a_job_that_is_over_change_nothing() -> None:
    world = is_running()
    lease = world.begin("A", ROLLOUT)
    world.tell(FINISHED)
    for event in (
        STARTED,
        FINISHED,
        FAILED,
        STOPPED,
        CANCELLED,
        ev.JobProfiled("A", 1, 1.0, 1.0, 1.0),
        ev.PhaseRequested("A", 1, TRAIN, 0),
        ev.PhaseFinished("A", lease.epoch),
        ev.Heartbeat("A", lease.epoch),
        ev.NodeLost("rollout-0"),
        ev.Tick(),
    ):
        world.ignores(event)
    assert world.tell(JOINED) == (cmd.ReleaseNode("train-0", "train"),)


@pytest.mark.parametrize("before", [is_starting, is_running])
def test_a_cancelled_job_holds_its_nodes_until_its_processes_are_gone(before: Callable[[], World]) -> None:
    world = before()
    (stop,) = world.tell(CANCELLED)
    assert stop == cmd.Stop("A", 1, "cancelled")
    world.ignores(CANCELLED)
    assert world.machine.next_wake() == world.now + 10.0
    world.ignores(ev.Tick())
    assert kinds(world.tell(ev.Tick(), 10.0)) == RELEASE  # nobody confirmed it in time
    assert world.machine.state.ended == {"A": "cancelled"}


def test_what_a_cancelled_job_holds_goes_to_the_next_once_it_gives_it_back() -> None:
    world = World()
    world.run(job("A"), job("B"))
    lease = world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    assert world.tell(CANCELLED) == (cmd.Revoke("A", lease.epoch, "cancelled"), cmd.Stop("A", 1, "cancelled"))
    world.refuses(ev.PhaseRequested("A", 1, ROLLOUT, 0))
    (grant,) = world.tell(ev.PhaseFinished("A", lease.epoch))
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "B"
    assert world.record("A").progress.rolled == 0  # it was done without a lease


def test_a_job_that_waits_in_line_and_is_cancelled_waits_no_more() -> None:
    world = World()
    world.run(job("A"), job("B"), job("C"))
    lease = world.begin("B", ROLLOUT)
    world.ask("A", ROLLOUT)
    world.ask("C", ROLLOUT)
    assert kinds(world.tell(CANCELLED)) == [cmd.Stop]
    (grant,) = world.tell(ev.PhaseFinished("B", lease.epoch))
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "C"


def test_a_job_cancelled_while_it_is_stopped_for_another_reason_ends() -> None:
    world = is_moving()
    assert world.tell(CANCELLED) == ()
    assert kinds(world.tell(STOPPED)) == RELEASE
    assert world.machine.state.ended == {"A": "cancelled"}


# -- nodes -----------------------------------------------------------------------------------------------------------


def back_in_line(
    cluster: Cluster, other: tuple[float, float], done_s: float, gone_after_s: float
) -> tuple[World, Group]:
    """A has 5,600 s for 20 iterations, and did 10 in so many before it lost its node. The group in which it is then,
    with the other or without."""
    world = World(cluster, Rules(compaction=False))
    if cluster is FINITE:
        for node in ("rollout-0", "rollout-1", "train-0", "train-1"):
            world.tell(ev.NodeJoined(node, node.partition("-")[0]))
    a = job("A", rollout=PhaseSpec(100.0, 1), train=PhaseSpec(100.0, 1), slo=1.4, iterations=20, cold_start_s=10.0)
    world.run(a)
    record = world.record()
    assert record.placement is not None
    (node,) = record.placement.rollout
    world.tell(ev.NodeCordoned(node))
    rollout, train = (PhaseSpec(seconds, 1) for seconds in other)
    world.run(job("B", rollout=rollout, train=train, slo=3.0, iterations=500))
    record.progress.rolled = record.progress.trained = record.progress.synced = 10
    record.progress.since = world.now = done_s
    world.tell(ev.NodeLost(node))
    world.tell(STOPPED, gone_after_s)
    return world, world.machine.state.groups[record.group_id]


@pytest.mark.parametrize(
    ("cluster", "gone_after_s", "company"), [(ELASTIC, 900.0, 0), (ELASTIC, 2000.0, 1), (FINITE, 900.0, 1)]
)
def test_a_job_that_lost_its_node_goes_where_it_keeps_what_is_left_of_its_slo(
    cluster: Cluster, gone_after_s: float, company: int
) -> None:
    """Beside B it takes more than the 209 s that it has for each of the rest.

    Where there is no other place, or no place helps any more, it is put like a newcomer, and does not wait.
    """
    world, group = back_in_line(cluster, (105.0, 120.0), 2600.0, gone_after_s)
    assert len(group.members) == 1 + company
    assert (group.id in world.machine.state.strained) == bool(company)


def test_a_job_that_lost_its_node_is_not_put_where_it_would_use_up_what_it_had_gained() -> None:
    """It has 358 s for each of the rest. Beside B it would take 310, more than the 280 that it may as a newcomer."""
    _, group = back_in_line(ELASTIC, (190.0, 120.0), 2000.0, 10.0)
    assert [member.job.id for member in group.members] == ["A"]


def test_a_job_that_lost_its_node_is_let_ahead_if_what_is_left_of_it_is_done_before_the_first_in_line_starts() -> None:
    world = World(FINITE, Rules(compaction=False))
    for node in ("rollout-0", "rollout-1", "train-0", "train-1"):
        world.tell(ev.NodeJoined(node, node.partition("-")[0]))
    a = job("A", rollout=PhaseSpec(80.0, 1), train=PhaseSpec(20.0, 1), slo=1.05, iterations=100)
    world.run(a, replace(a, id="B", iterations=50))
    world.tell(ev.JobSubmitted(job("wide", rollout=PhaseSpec(50.0, 2), train=PhaseSpec(50.0, 2), slo=1.05, priority=5)))
    record = world.record("A")
    assert record.placement is not None
    (node,) = record.placement.rollout
    record.progress.rolled = record.progress.trained = record.progress.synced = 99
    record.progress.since = world.now
    world.tell(ev.NodeLost(node))
    world.tell(STOPPED)
    assert world.machine.state.backlog == ["wide", "A"]
    world.tell(ev.NodeJoined(node, "rollout"))
    assert world.machine.state.backlog == ["wide"]


def test_a_job_whose_node_is_lost_before_it_comes_gets_other_nodes_at_once() -> None:
    world = is_provisioning()
    assert kinds(world.tell(LOST)) == REPLACE
    assert world.record().attempt == 1
    assert set(world.machine.state.book.nodes).isdisjoint(HOME.all_nodes)
    world.ignores(LOST)


@pytest.mark.parametrize("before", [is_starting, is_running])
def test_a_job_whose_node_is_lost_is_stopped_and_goes_elsewhere(before: Callable[[], World]) -> None:
    world = before()
    assert world.tell(LOST) == (cmd.Stop("A", 1, "node train-0 is lost"),)
    world.ignores(LOST)
    assert kinds(world.tell(STOPPED)) == REPLACE
    world.nodes_come()
    world.tell(ev.JobStarted("A", 2))
    assert set(world.begin("A", ROLLOUT).nodes).isdisjoint(HOME.all_nodes)
    assert world.record().failures == 0


def test_everyone_on_a_lost_node_is_stopped_and_nobody_else() -> None:
    world = World()
    world.run(job("A"), job("B"), job("C", slo=1.0))
    assert world.record("C").group_id != world.record("B").group_id
    commands = world.tell(LOST)
    assert [(type(c), getattr(c, "job_id", "")) for c in commands] == [(cmd.Stop, "A"), (cmd.Stop, "B")]
    assert world.state("C") is Job.RUNNING


def test_a_cancelled_job_whose_node_is_lost_just_ends() -> None:
    world = is_cancelled()
    assert world.tell(LOST) == ()
    assert kinds(world.tell(STOPPED)) == RELEASE
    assert world.machine.state.ended == {"A": "cancelled"}


def racks(count: int, max_group: int) -> World:
    """A cluster of so many rollout nodes and so many training nodes, which stay."""
    world = World(FINITE, policy=RollmuxPolicy(max_group=max_group))
    for i in range(count):
        world.tell(ev.NodeJoined(f"r{i}", "rollout"))
        world.tell(ev.NodeJoined(f"t{i}", "train"))
    return world


def test_a_job_without_a_node_goes_back_to_its_place_in_line() -> None:
    world = racks(2, max_group=1)
    world.run(job("A"), job("B"))
    world.tell(ev.JobSubmitted(job("C")))
    world.tell(ev.NodeLost("r0"))
    world.tell(STOPPED)
    assert world.machine.state.backlog == ["A", "C"]
    commands = world.tell(ev.JobFinished("B", 1))
    assert [c.job_id for c in commands if isinstance(c, cmd.Admit)] == ["A"]


def test_a_cordoned_node_keeps_its_jobs_and_takes_no_more_until_that_is_lifted() -> None:
    world = racks(2, max_group=2)
    world.run(job("A"))
    assert world.tell(ev.NodeCordoned("r0")) == ()
    world.ignores(ev.NodeCordoned("r0"))
    world.iterate("A")
    world.run(job("B"))
    assert world.record("B").placement == Placement(("r1",), ("t1",))
    world.tell(ev.JobFinished("B", 1))
    world.ignores(ev.NodeJoined("r0", "rollout"))  # a late repeat of its first message
    world.tell(ev.NodeUncordoned("r0"))
    world.ignores(ev.NodeUncordoned("r0"))
    world.run(job("C"))
    assert world.record("C").placement == Placement(("r0",), ("t0",))


def test_a_lost_node_that_is_cordoned_takes_no_jobs_when_it_is_back() -> None:
    world = racks(1, max_group=1)
    world.run(job("A"))
    world.tell(ev.NodeLost("r0"))
    assert world.tell(ev.NodeCordoned("r0")) == ()
    world.tell(ev.NodeJoined("r0", "rollout"))
    assert kinds(world.tell(STOPPED)) == [cmd.Queue]
    assert kinds(world.tell(ev.NodeUncordoned("r0"))) == [cmd.Admit, cmd.Launch]


@pytest.mark.parametrize("when", ["it is idle", "its job is being stopped", "its job is gone"])
def test_a_cordoned_node_that_is_lost_takes_no_jobs_when_it_is_back(when: str) -> None:
    """It was forgotten as soon as nobody was pinned to it: whoever drained a node and restarted it got jobs on it."""
    world = racks(1, max_group=1)
    if when != "it is idle":
        world.run(job("A"))
    world.tell(ev.NodeCordoned("r0"))
    world.tell(ev.NodeLost("r0"))
    if when == "its job is gone":
        world.tell(STOPPED)
    world.ignores(ev.NodeLost("r0"))
    world.tell(ev.NodeJoined("r0", "rollout"))
    if when == "its job is being stopped":
        world.tell(STOPPED)
    if when == "it is idle":
        world.tell(ev.JobSubmitted(job("A")))
    assert world.state() is Job.QUEUED
    assert kinds(world.tell(ev.NodeUncordoned("r0"))) == [cmd.Admit, cmd.Launch]


def test_a_lost_node_that_was_cordoned_is_forgotten_once_that_is_lifted() -> None:
    world = racks(1, max_group=1)
    for event in (ev.NodeCordoned("r0"), ev.NodeLost("r0"), ev.NodeUncordoned("r0")):
        world.tell(event)
    assert "r0" not in world.machine.state.book.nodes
    world.tell(ev.NodeJoined("r0", "rollout"))
    world.run(job("A"))


def test_a_cordoned_node_that_is_lost_may_come_back_in_another_pool_and_is_cordoned_there() -> None:
    """As one that is not cordoned may: it was refused."""
    world = racks(1, max_group=1)
    world.tell(ev.NodeCordoned("r0"))
    world.tell(ev.NodeLost("r0"))
    world.tell(ev.NodeJoined("r0", "train"))
    world.tell(ev.NodeLost("t0"))
    world.tell(ev.NodeJoined("r1", "rollout"))
    world.tell(ev.JobSubmitted(job("A")))
    assert world.state() is Job.QUEUED
    assert kinds(world.tell(ev.NodeUncordoned("r0"))) == [cmd.Admit, cmd.Launch]


def test_an_idle_cordoned_node_is_not_used() -> None:
    world = racks(1, max_group=1)
    world.tell(ev.NodeCordoned("t0"))
    (queue,) = world.tell(ev.JobSubmitted(job("A")))
    assert isinstance(queue, cmd.Queue)
    assert kinds(world.tell(ev.NodeUncordoned("t0"))) == [cmd.Admit, cmd.Launch]


# -- leases ----------------------------------------------------------------------------------------------------------


def leased(*crew: JobSpec, timing: Timing = LEASES) -> World:
    world = World(rules=Rules(timing=timing))
    world.run(*(crew or (job("A"), job("B"))))
    return world


def test_a_sign_of_life_renews_a_lease_and_silence_ends_it() -> None:
    world = leased()
    (grant,) = world.ask("A", ROLLOUT)
    assert isinstance(grant, cmd.Grant)
    epoch = grant.lease.epoch
    for sign in (
        ev.PhaseStarted("A", epoch),
        ev.Heartbeat("A", epoch),
        ev.PhaseProgressed("A", epoch, 1, 10),
        ev.Heartbeat("A", epoch),
    ):
        assert world.machine.next_wake() == world.now + 15.0
        assert world.tell(sign, 14.0) == ()
        world.ignores(ev.Tick())
    assert world.tell(ev.Tick(), 15.0) == (cmd.Revoke("A", epoch, "no sign of life from its holder"),)
    world.ignores(ev.Heartbeat("A", epoch))
    assert world.machine.next_wake() == world.now + 10.0


def test_state_that_stayed_has_as_long_to_leave_as_its_job_says_that_takes_and_the_drain_time_twice() -> None:
    """It had the latter alone: a healthy job with much state lost its attempt whenever somebody came beside it."""
    long: dict[str, Any] = {"rollout": PhaseSpec(500.0, 1, offload_s=60.0), "train": PhaseSpec(500.0, 1)}
    world = leased(job("A", **long))
    world.do("A", ROLLOUT)
    world.tell(ev.JobSubmitted(job("B", **long)))
    (offload,) = world.tell(ev.JobStarted("B", 1))
    assert isinstance(offload, cmd.Offload)
    assert world.machine.next_wake() == world.now + 70.0
    world.tell(ev.Tick(), 70.0)
    assert world.state() is Job.RUNNING
    assert world.machine.next_wake() == world.now + 10.0
    world.tell(ev.PhaseOffloaded("A", offload.epoch), 9.0)
    assert world.machine.next_wake() is None


def test_state_that_stayed_has_no_longer_to_leave_than_its_phase_takes_whatever_was_measured() -> None:
    """One offload that had taken hours once, and whoever came beside that job waited as long once it was dead (L2)."""
    long: dict[str, Any] = {"rollout": PhaseSpec(500.0, 1), "train": PhaseSpec(500.0, 1)}
    world = leased(job("A", **long))
    world.do("A", ROLLOUT)
    world.tell(ev.JobSubmitted(job("B", **long)))
    world.tell(ev.JobProfiled("A", 1, 500.0, 500.0, 0.0, (0.0, 50_000.0)))
    (offload,) = world.tell(ev.JobStarted("B", 1))
    assert isinstance(offload, cmd.Offload)
    assert world.machine.next_wake() == world.now + 510.0


def test_signs_of_life_that_come_together_count_for_the_leases_that_are_there() -> None:
    world = leased()
    over = ev.Heartbeat("A", world.begin("A", ROLLOUT).epoch)
    world.tell(ev.PhaseFinished("A", over.epoch))
    mine = ev.Heartbeat("A", world.begin("A", TRAIN).epoch)
    strangers = (over, ev.Heartbeat("B", mine.epoch), ev.Heartbeat("A", 99), ev.Heartbeat("nobody", mine.epoch))
    world.ignores(ev.Heartbeats(strangers))
    assert world.tell(ev.Heartbeats((*strangers, mine)), 9.0) == ()
    assert world.machine.next_wake() == world.now + 15.0


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_signs_of_life_are_remembered_though_some_that_come_with_them_are_too_late(order: tuple[str, str]) -> None:
    world = leased()
    world.do("B", ROLLOUT)
    beats = {name: ev.Heartbeat(name, world.begin(name, kind).epoch) for name, kind in (("A", ROLLOUT), ("B", TRAIN))}
    world.tell(beats["B"], 14.0)
    world.tell(ev.Tick(), 1.0)
    world.ignores(beats["A"])
    heard = ev.Heartbeats(tuple(beats[name] for name in order))
    seq = world.machine.state.ledger.seq
    assert world.tell(heard, 1.0) == ()
    assert world.machine.state.ledger.seq == seq + 1  # so that it is journaled


def test_without_expiry_nobody_has_to_be_woken() -> None:
    world = is_running()
    world.begin("A", ROLLOUT)
    assert world.machine.next_wake() is None
    world.now = 1e9
    world.ignores(ev.Tick())


def test_an_expired_holder_is_revoked_then_ended_and_the_next_has_its_nodes() -> None:
    world = leased()
    lease = world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    assert kinds(world.tell(ev.Tick(), 15.0)) == [cmd.Revoke]
    world.ignores(ev.Tick())
    stop, grant, launch = world.tell(ev.Tick(), 10.0)
    assert isinstance(stop, cmd.Stop)
    assert (stop.job_id, stop.attempt) == ("A", 1)
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.nodes) == ("B", lease.nodes)
    assert grant.lease.epoch > lease.epoch
    assert launch == cmd.Launch("A", 2, HOME)
    world.ignores(ev.PhaseFinished("A", lease.epoch))
    world.ignores(STOPPED)


def test_what_is_finished_after_the_lease_does_not_count_and_is_done_again() -> None:
    world = leased()
    lease = world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    world.tell(ev.Tick(), 15.0)
    world.refuses(ev.PhaseRequested("A", 1, ROLLOUT, 0))
    (grant,) = world.tell(ev.PhaseFinished("A", lease.epoch), 5.0)
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "B"
    assert world.record("A").progress.rolled == 0
    assert world.ask("A", ROLLOUT) == ()
    (again,) = world.tell(ev.PhaseFinished("B", grant.lease.epoch))
    assert isinstance(again, cmd.Grant)
    assert (again.lease.job_id, again.lease.iteration) == ("A", 0)


def test_a_holder_that_never_answers_uses_up_its_attempts() -> None:
    world = leased(job("A", max_attempts=2))
    world.begin("A", ROLLOUT)
    assert kinds(world.tell(ev.Tick(), 15.0)) == [cmd.Revoke]
    assert kinds(world.tell(ev.Tick(), 10.0)) == [cmd.Stop, cmd.Launch]
    world.tell(ev.JobStarted("A", 2))
    world.begin("A", ROLLOUT)
    assert kinds(world.tell(ev.Tick(), 15.0)) == [cmd.Revoke]
    assert kinds(world.tell(ev.Tick(), 10.0)) == [cmd.Stop, *RELEASE]
    assert world.machine.state.ended["A"].startswith("failed 2 times")


def both_held(**more: Any) -> tuple[World, cmd.Lease, cmd.Lease]:
    """A job that trains and rolls out ahead, another that waits for both; the training's holder is overdue by now."""
    world = leased(job("A", staleness=1, slo=8.0, **more), job("B", slo=8.0))
    world.do("A", ROLLOUT)
    world.do("B", ROLLOUT)
    train = world.begin("A", TRAIN)
    rollout = world.begin("A", ROLLOUT, 1)
    assert world.ask("B", TRAIN) == ()
    assert world.tell(ev.Heartbeat("A", rollout.epoch), 14.0) == ()
    assert kinds(world.tell(ev.Tick(), 1.0)) == [cmd.Revoke]
    assert world.tell(ev.Heartbeat("A", rollout.epoch), 9.0) == ()
    return world, train, rollout


def test_what_else_an_overdue_attempt_holds_is_nobodys_before_it_is_gone() -> None:
    world, train, rollout = both_held()
    revoke, stop, grant = world.tell(ev.Tick(), 1.0)
    assert revoke == cmd.Revoke("A", rollout.epoch, OVERDUE)
    assert stop == cmd.Stop("A", 1, OVERDUE)
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.nodes) == ("B", train.nodes)  # it has been waited for long enough
    assert world.state("A") is Job.STOPPING
    assert world.record("A").failures == 0
    world.ignores(ev.Tick())
    world.refuses(ev.PhaseRequested("A", 1, TRAIN, 0))
    assert world.tell(STOPPED) == (cmd.Launch("A", 2, HOME),)
    assert (world.state("A"), world.record("A").failures) == (Job.STARTING, 1)


def test_an_overdue_attempt_that_nobody_can_stop_is_over_after_the_drain() -> None:
    world, _, _ = both_held()
    assert kinds(world.tell(ev.Tick(), 1.0)) == [cmd.Revoke, cmd.Stop, cmd.Grant]
    world.ignores(ev.Tick())
    assert world.machine.next_wake() == world.now + 10.0
    assert world.tell(ev.Tick(), 10.0) == (cmd.Launch("A", 2, HOME),)


def test_an_overdue_attempt_that_is_cancelled_while_it_is_stopped_is_the_last() -> None:
    world, _, _ = both_held()
    world.tell(ev.Tick(), 1.0)
    assert world.tell(CANCELLED) == ()
    world.tell(STOPPED)
    assert world.machine.state.ended == {"A": "cancelled"}


def test_an_overdue_attempt_whose_node_is_lost_while_it_is_stopped_starts_elsewhere() -> None:
    world, _, _ = both_held()
    world.tell(ev.Tick(), 1.0)
    assert cmd.Launch("A", 2, HOME) not in world.tell(LOST)
    assert kinds(world.tell(STOPPED))[-1] is cmd.Admit
    placement = world.record("A").placement
    assert placement is not None
    assert "train-0" not in placement.all_nodes


def test_a_dead_holder_that_is_being_stopped_and_given_up_is_worth_a_record_though_nothing_is_said() -> None:
    world = leased(job("A"))
    world.begin("A", ROLLOUT)
    world.tell(ev.Tick(), 15.0)
    world.tell(CANCELLED, 5.0)
    seq = world.machine.state.ledger.seq
    assert world.tell(ev.Tick(), 5.0) == ()
    assert world.machine.state.ledger.seq == seq + 1
    assert world.machine.state.weaves[world.record().group_id].leases == {}


def test_in_a_strict_order_a_fenced_holder_that_asked_ahead_has_had_its_turn() -> None:
    world = World(rules=Rules(timing=LEASES), policy=RollmuxPolicy(order=Order.ROUND_ROBIN))
    world.run(job("A", iterations=9))
    world.do("A", ROLLOUT)  # its state stays on the node
    world.do("A", TRAIN)
    world.do("A", SYNC)
    world.run(job("B"))
    assert world.ask("A", ROLLOUT, 1) == ()  # granted once it is moved off
    lane = world.machine.state.seat(world.record("A")).lanes[ROLLOUT]
    rounds, epoch = lane.rounds, lane.epoch
    world.tell(ev.Tick(), 10.0)
    assert lane.state is Phase.FENCED
    world.refuses(ev.PhaseRequested("A", 1, ROLLOUT, 1))
    world.tell(ev.PhaseOffloaded("A", epoch))
    assert lane.rounds == rounds


@pytest.mark.parametrize("order", Order)
def test_a_tail_that_fails_is_done_again_after_those_whom_it_has_let_in(order: Order) -> None:
    """In a strict order too: they began in their turn, though it now comes after one that is due again."""
    tail = Tail(requests=10, requests_per_node=5, bulk_s=30.0, trigger=0.8, move_s=0.0)
    world = World(rules=Rules(timing=LEASES), policy=RollmuxPolicy(order=order))
    world.run(*[job(name, rollout=PhaseSpec(50.0, 2), tail=tail, elastic_rollout=True) for name in "AB"])
    rollout = world.begin("A", ROLLOUT)
    assert world.ask("B", ROLLOUT) == ()
    (shrink,) = world.tell(ev.PhaseProgressed("A", rollout.epoch, 8, 10))
    assert isinstance(shrink, cmd.Shrink)
    (grant,) = world.tell(ev.PhaseShrunk("A", rollout.epoch))
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.nodes) == ("B", shrink.free)
    world.tell(ev.PhaseStarted("B", grant.lease.epoch))
    (grown,) = world.tell(ev.PhaseFailed("A", rollout.epoch, "gave up"))
    assert isinstance(grown, cmd.Extend)
    assert world.ask("A", ROLLOUT) == ()
    (again,) = world.tell(ev.PhaseFinished("B", grant.lease.epoch))
    assert isinstance(again, cmd.Grant)
    assert (again.lease.job_id, again.lease.iteration) == ("A", 0)


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("order", Order)
def test_a_rollout_that_has_begun_on_some_of_its_nodes_and_is_fenced_gets_no_more_of_them(
    order: Order, cancelled: bool
) -> None:
    tail = Tail(requests=10, requests_per_node=5, bulk_s=30.0, trigger=0.8, move_s=0.0)
    world = World(rules=Rules(timing=LEASES), policy=RollmuxPolicy(order=order))
    world.run(*[job(name, rollout=PhaseSpec(50.0, 2), tail=tail, elastic_rollout=True) for name in "ABC"])
    first = world.begin("A", ROLLOUT)
    assert world.ask("B", ROLLOUT) == world.ask("C", ROLLOUT) == ()
    world.tell(ev.PhaseProgressed("A", first.epoch, 8, 10))
    (grant,) = world.tell(ev.PhaseShrunk("A", first.epoch))
    assert isinstance(grant, cmd.Grant)
    assert grant.lease.job_id == "B"
    if cancelled:
        world.tell(ev.JobCancelled("B"))
    else:
        world.tell(ev.Heartbeat("A", first.epoch), 14.0)
        world.tell(ev.Tick(), 1.0)
    assert world.tell(ev.PhaseFinished("A", first.epoch)) == ()
    (after,) = [c for c in world.tell(ev.JobFailed("B", 1, "gone")) if isinstance(c, cmd.Grant)]
    assert after.lease.job_id == "C"
    assert len(after.lease.nodes) == 2


@pytest.mark.parametrize("order", Order)
def test_a_tail_that_fails_is_done_again_though_its_training_shares_a_node_with_it(order: Order) -> None:
    """In a strict order the training's turn would be due before the rollout that has to be done again before it."""
    tail = Tail(requests=10, requests_per_node=5, bulk_s=30.0, trigger=0.8, move_s=0.0)
    seats = {
        name: Seat(
            job(name, rollout=PhaseSpec(50.0, nodes), tail=tail), 1, Placement(rolls, ("a",)), number, Progress()
        )
        for number, (name, nodes, rolls) in enumerate((("A", 2, ("a", "b")), ("B", 1, ("b",))))
    }
    weave = Weave(order, Ledger(), Timing())
    for seat in seats.values():
        weave.join(0.0, seat)

    def tell(event: ev.PhaseEvent) -> list[cmd.Command]:
        weave.ledger.seq += 1
        return list(weave.handle(float(weave.ledger.seq), event) or [])

    (rollout,) = tell(ev.PhaseRequested("A", 1, ROLLOUT, 0))
    assert isinstance(rollout, cmd.Grant)
    tell(ev.PhaseStarted("A", rollout.lease.epoch))
    tell(ev.PhaseRequested("B", 1, ROLLOUT, 0))
    tell(ev.PhaseProgressed("A", rollout.lease.epoch, 8, 10))
    (other,) = tell(ev.PhaseShrunk("A", rollout.lease.epoch))
    assert isinstance(other, cmd.Grant)
    assert other.lease.job_id == "B"
    tell(ev.PhaseFailed("A", rollout.lease.epoch, "gave up"))
    tell(ev.PhaseRequested("A", 1, ROLLOUT, 0))
    tell(ev.PhaseStarted("B", other.lease.epoch))
    granted = tell(ev.PhaseFinished("B", other.lease.epoch))
    granted += tell(ev.PhaseRequested("B", 1, TRAIN, 0))
    jobs = [grant.lease.job_id for grant in granted if isinstance(grant, cmd.Grant)]
    assert jobs
    while weave.leases:  # whoever was let in first, the other comes after it
        (epoch, lane), *_ = weave.leases.items()
        tell(ev.PhaseStarted(lane.seat.job.id, epoch))
        granted = tell(ev.PhaseFinished(lane.seat.job.id, epoch))
        jobs += [grant.lease.job_id for grant in granted if isinstance(grant, cmd.Grant)]
    assert sorted(jobs) == ["A", "B"]


@pytest.mark.parametrize("order", Order)
def test_a_tail_that_ran_ahead_and_fails_does_not_touch_the_training_before_it(order: Order) -> None:
    tail = Tail(requests=10, requests_per_node=5, bulk_s=30.0, trigger=0.8, move_s=0.0)
    seats = {
        name: Seat(
            job(name, rollout=PhaseSpec(50.0, nodes), tail=tail, staleness=1),
            1,
            Placement(rolls, ("t",)),
            number,
            Progress(),
        )
        for number, (name, nodes, rolls) in enumerate((("A", 2, ("a", "b")), ("B", 1, ("b",))))
    }
    weave = Weave(order, Ledger(), Timing())
    for seat in seats.values():
        weave.join(0.0, seat)

    def tell(event: ev.PhaseEvent) -> None:
        weave.ledger.seq += 1
        weave.handle(float(weave.ledger.seq), event)
        for seat in seats.values():
            check_seat(weave, seat)

    def begin(name: str, kind: PhaseKind, iteration: int) -> int:
        tell(ev.PhaseRequested(name, 1, kind, iteration))
        epoch = seats[name].lanes[kind].epoch
        tell(ev.PhaseStarted(name, epoch))
        return epoch

    for name in "AB":
        tell(ev.PhaseFinished(name, begin(name, ROLLOUT, 0)))
    training, ahead = begin("A", TRAIN, 0), begin("A", ROLLOUT, 1)
    tell(ev.PhaseRequested("B", 1, TRAIN, 0))
    tell(ev.PhaseRequested("B", 1, ROLLOUT, 1))
    tell(ev.PhaseProgressed("A", ahead, 8, 10))
    tell(ev.PhaseShrunk("A", ahead))
    tell(ev.PhaseFailed("A", ahead, "gave up"))
    tell(ev.PhaseFinished("A", training))
    assert seats["B"].lanes[TRAIN].state is Phase.GRANTED


def given_up(weave: Weave) -> list[cmd.Command]:
    """C is silent for longer than a lease, and still there after what it gets to vanish in."""
    weave.handle(50.0, ev.Heartbeat("A", 1))
    weave.expire(51.0)
    return weave.give_up(62.0, "C")


IN_THE_WAY: dict[str, Callable[[Weave], list[cmd.Command]]] = {
    "its processes are gone": lambda weave: weave.leave(9.0, "C"),
    "it was waited for long enough": given_up,
    "it waits no more": lambda weave: weave.fence(9.0, "C", "moves"),
}


@pytest.mark.parametrize("goes", IN_THE_WAY)
@pytest.mark.parametrize("order", [Order.FIFO, Order.URGENCY])
def test_a_tail_moves_together_once_nothing_else_keeps_the_next_job_waiting(order: Order, goes: str) -> None:
    """B needs a node of the tail's, and one that C has, or is to have before it."""
    tail = Tail(requests=10, requests_per_node=5, bulk_s=30.0, trigger=0.8, move_s=0.0)
    is_waiting = goes == "it waits no more"
    weave = Weave(order, Ledger(), LEASES)
    for number, (name, rolls) in enumerate({"A": "ab", "D": "d", "C": "cd" if is_waiting else "c", "B": "bc"}.items()):
        spec = job(name, rollout=PhaseSpec(50.0, len(rolls)), tail=tail if name == "A" else None)
        weave.join(0.0, Seat(spec, 1, Placement(tuple(rolls), (f"t{name}",)), number, Progress()))

    def tell(event: ev.PhaseEvent) -> list[cmd.Command]:
        weave.ledger.seq += 1
        return list(weave.handle(float(weave.ledger.seq), event) or [])

    granted = [grant for name in weave.seats for grant in tell(ev.PhaseRequested(name, 1, ROLLOUT, 0))]
    leases = {grant.lease.job_id: grant.lease for grant in granted if isinstance(grant, cmd.Grant)}
    assert sorted(leases) == (["A", "D"] if is_waiting else ["A", "C", "D"])
    for name, lease in leases.items():
        tell(ev.PhaseStarted(name, lease.epoch))
    assert tell(ev.PhaseProgressed("A", leases["A"].epoch, 8, 10)) == []
    told = IN_THE_WAY[goes](weave)
    assert [command for command in told if isinstance(command, cmd.Shrink)] == [
        cmd.Shrink("A", leases["A"].epoch, ("a",), ("b",))
    ]


def wait_for(world: World, job_id: str) -> float:
    """Wakes the machine when it wants to be woken, until the job is granted nodes; returns when that is."""
    for _ in range(20):
        wake = world.machine.next_wake()
        assert wake is not None, f"nothing will ever give job {job_id} its turn"
        assert wake > world.now, f"it is {world.now}, and the machine wants to be woken at {wake}"
        if any(isinstance(c, cmd.Grant) and c.lease.job_id == job_id for c in world.tell(ev.Tick(), wake - world.now)):
            return world.now
    raise AssertionError(f"job {job_id} still waits")


def dies_before_it_starts(world: World) -> str:
    world.ask("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    return "B"


def dies_in_its_rollout(world: World) -> str:
    world.begin("A", ROLLOUT)
    world.ask("B", ROLLOUT)
    return "B"


def dies_in_its_training(world: World) -> str:
    world.do("A", ROLLOUT)
    world.do("B", ROLLOUT)
    world.begin("A", TRAIN)
    world.ask("B", TRAIN)
    return "B"


def dies_parked_where_another_comes(world: World) -> str:
    world.tell(ev.JobFinished("B", 1))
    world.do("A", ROLLOUT)
    world.run(job("C"))
    world.ask("C", ROLLOUT)
    return "C"


Death = Callable[[World], str]
DEATHS: list[Death] = [
    dies_before_it_starts,
    dies_in_its_rollout,
    dies_in_its_training,
    dies_parked_where_another_comes,
]


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("timing", [Timing(15.0, 10.0), Timing(60.0, 0.5), Timing(10.0, 10.0)], ids=str)
def test_nobody_waits_on_a_dead_holder_longer_than_its_lease_and_the_drain(death: Death, timing: Timing) -> None:
    world = leased(timing=timing)
    waits = death(world)
    asked = world.now
    assert wait_for(world, waits) <= asked + timing.lease_s + timing.drain_s


@pytest.mark.parametrize("death", DEATHS[:3])
@pytest.mark.parametrize("event", [CANCELLED, LOST], ids=["its owner cancels it", "a node of its is lost"])
@given(after_s=st.floats(0.5, 24.5))
@settings(max_examples=25)
def test_nobody_waits_longer_because_the_dead_holder_is_to_be_stopped(
    death: Death, event: ev.Event, after_s: float
) -> None:
    world = World(rules=Rules(timing=LEASES))
    apart = PhaseSpec(50.0, 2)  # its second rollout node is its own
    world.run(job("B"), job("A", rollout=apart))
    lost = next(n for n in world.machine.state.book.nodes if n not in HOME.all_nodes)
    waits = death(world)
    asked = world.now
    while (wake := world.machine.next_wake()) is not None and wake <= asked + after_s:
        world.tell(ev.Tick(), wake - world.now)
    world.tell(ev.NodeLost(lost) if event is LOST else event, asked + after_s - world.now)
    assert wait_for(world, waits) <= asked + 25.0
