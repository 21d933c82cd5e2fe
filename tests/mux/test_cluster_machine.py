"""The whole machine, case by case: the lives of jobs and every transition of the table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from typing import Any

import pytest

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Rules
from rollmux.mux.image import image
from rollmux.mux.job import PhaseSpec
from rollmux.mux.transitions import JOBS, Job, JobOn
from tests.mux.world import (
    ABANDONED,
    CANCELLED,
    FAILED,
    FINISHED,
    HOME,
    JOINED,
    LOST,
    RELEASE,
    REPLACE,
    ROLLOUT,
    STARTED,
    STOPPED,
    SYNC,
    TRAIN,
    World,
    has_lost_a_node_while_another_waits,
    has_one_of_its_nodes,
    is_cancelled,
    is_moving,
    is_overdue,
    is_provisioning,
    is_provisioning_while_another_waits,
    is_queued,
    is_running,
    is_starting,
    job,
    kinds,
    timeless,
    waits_behind_another,
)

# -- a life ----------------------------------------------------------------------------------------------------------


def test_a_job_goes_from_its_submission_through_its_phases_to_its_end() -> None:
    world = World()
    life: list[tuple[ev.Event, tuple[cmd.Command, ...]]] = [
        (
            ev.JobSubmitted(job("A")),
            (cmd.Provision("rollout-0", "rollout"), cmd.Provision("train-0", "train"), cmd.Admit("A", "group-0", HOME)),
        ),
        (ev.NodeJoined("train-0", "train"), ()),
        (ev.NodeJoined("rollout-0", "rollout"), (cmd.Launch("A", 1, HOME),)),
        (ev.JobStarted("A", 1), ()),
        (
            ev.PhaseRequested("A", 1, ROLLOUT, 0),
            (cmd.Grant(cmd.Lease("A", 1, ROLLOUT, 0, 1, ("rollout-0",), load=True, keep=True)),),
        ),
        (ev.PhaseStarted("A", 1), ()),
        (ev.PhaseProgressed("A", 1, 10, 64), ()),
        (ev.PhaseFinished("A", 1), ()),
        (
            ev.PhaseRequested("A", 1, TRAIN, 0),
            (cmd.Grant(cmd.Lease("A", 1, TRAIN, 0, 2, ("train-0",), load=True, keep=True)),),
        ),
        (ev.PhaseStarted("A", 2), ()),
        (ev.PhaseFinished("A", 2), ()),
        (
            ev.PhaseRequested("A", 1, SYNC, 0),
            (cmd.Grant(cmd.Lease("A", 1, SYNC, 0, 3, (), load=False, keep=False)),),
        ),
        (ev.PhaseStarted("A", 3), ()),
        (ev.PhaseFinished("A", 3), ()),
        (
            ev.PhaseRequested("A", 1, ROLLOUT, 1),
            (cmd.Grant(cmd.Lease("A", 1, ROLLOUT, 1, 4, ("rollout-0",), load=False, keep=True)),),
        ),
        (
            ev.JobFinished("A", 1),
            (cmd.ReleaseNode("rollout-0", "rollout"), cmd.ReleaseNode("train-0", "train")),
        ),
    ]
    for event, commands in life:
        assert world.tell(event, 1.0) == commands, event
    assert world.machine.state.ended == {"A": "finished"}
    assert not world.machine.state.jobs
    assert world.machine.next_wake() is None


def test_two_jobs_take_turns_on_shared_nodes() -> None:
    world = World()
    world.run(job("A"), job("B"))
    first = world.begin("A", ROLLOUT)
    assert not first.keep
    assert world.ask("B", ROLLOUT) == ()
    (grant,) = world.tell(ev.PhaseFinished("A", first.epoch))
    assert isinstance(grant, cmd.Grant)
    assert (grant.lease.job_id, grant.lease.nodes) == ("B", first.nodes)
    assert world.begin("A", TRAIN).nodes == ("train-0",)


def test_the_log_says_which_entry_each_event_answers() -> None:
    world = World()
    world.run(job("A"))
    world.iterate("A", 2)
    log = list(world.machine.log)
    granted = {c.lease.epoch: entry.seq for entry in log for c in entry.commands if isinstance(c, cmd.Grant)}
    launched = next(entry.seq for entry in log for c in entry.commands if isinstance(c, cmd.Launch))
    causes = {entry.event: entry.cause for entry in log}
    for event, cause in causes.items():
        if isinstance(event, ev.PhaseStarted | ev.PhaseFinished):
            assert cause == granted[event.epoch]
    assert causes[ev.JobStarted("A", 1)] == launched
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))


def test_what_grows_has_a_limit() -> None:
    world = World(rules=Rules(log_limit=5, decisions_limit=2, ended_limit=3))
    for i in range(6):
        world.tell(ev.JobSubmitted(job(f"job{i}")))
        world.tell(ev.JobCancelled(f"job{i}"))
    assert len(world.machine.log) == 5
    assert list(world.machine.state.ended) == ["job3", "job4", "job5"]
    assert list(world.machine.state.decisions) == ["job4", "job5"]


class Looked(dict[str, None]):
    """Counts how many are looked at."""

    count = 0

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.count += 1
            yield each


def test_who_is_forgotten_is_found_without_a_look_at_all_that_are_remembered() -> None:
    world, known = World(rules=Rules(ended_limit=50)), Looked()
    world.tell(ev.JobSubmitted(job("goes-on")))
    known["goes-on"] = None
    for i in range(60):
        world.tell(ev.JobSubmitted(job(f"job{i}")))
        world.tell(ev.JobCancelled(f"job{i}"))
        known[f"job{i}"] = None
        for name in world.machine.state.forgotten(known):
            del known[name]
    assert known.keys() == {"goes-on", *(f"job{i}" for i in range(10, 60))}
    assert known.count == 2 * 10


# -- every transition ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """How a row of the table comes about, and what is said."""

    before: Callable[[], World]
    event: ev.Event
    said: list[Any]


STEPS: dict[tuple[Job, JobOn], Step] = {
    (Job.QUEUED, JobOn.ADMIT): Step(waits_behind_another, ev.JobCancelled("B"), REPLACE),
    (Job.QUEUED, JobOn.CANCEL): Step(is_queued, CANCELLED, []),
    (Job.QUEUED, JobOn.ABANDON): Step(is_queued, ABANDONED, []),
    (Job.PROVISIONING, JobOn.NODES_READY): Step(has_one_of_its_nodes, JOINED, [cmd.Launch]),
    (Job.PROVISIONING, JobOn.CANCEL): Step(is_provisioning, CANCELLED, RELEASE),
    (Job.PROVISIONING, JobOn.ABANDON): Step(is_provisioning, ABANDONED, RELEASE),
    (Job.PROVISIONING, JobOn.DISPLACE): Step(is_provisioning_while_another_waits, LOST, [*REPLACE, cmd.Queue]),
    (Job.STARTING, JobOn.STARTED): Step(is_starting, STARTED, []),
    (Job.STARTING, JobOn.STOP): Step(is_starting, CANCELLED, [cmd.Stop]),
    (Job.STARTING, JobOn.RESTART): Step(is_starting, FAILED, [cmd.Launch]),
    (Job.STARTING, JobOn.GIVE_UP): Step(lambda: is_starting(max_attempts=1), FAILED, RELEASE),
    (Job.STARTING, JobOn.ABANDON): Step(is_starting, ABANDONED, RELEASE),
    (Job.RUNNING, JobOn.FINISH): Step(is_running, FINISHED, RELEASE),
    (Job.RUNNING, JobOn.STOP): Step(is_running, LOST, [cmd.Stop]),
    (Job.RUNNING, JobOn.RESTART): Step(is_running, FAILED, [cmd.Launch]),
    (Job.RUNNING, JobOn.GIVE_UP): Step(lambda: is_running(max_attempts=1), FAILED, RELEASE),
    (Job.RUNNING, JobOn.ABANDON): Step(is_running, ABANDONED, RELEASE),
    (Job.STOPPING, JobOn.FINISH): Step(is_cancelled, FINISHED, RELEASE),
    (Job.STOPPING, JobOn.RESTART): Step(is_overdue, STOPPED, [cmd.Launch]),
    (Job.STOPPING, JobOn.GIVE_UP): Step(lambda: is_overdue(max_attempts=1), STOPPED, RELEASE),
    (Job.STOPPING, JobOn.GONE_MOVE): Step(is_moving, STOPPED, []),
    (Job.STOPPING, JobOn.GONE_REPLACE): Step(has_lost_a_node_while_another_waits, STOPPED, [*REPLACE, cmd.Queue]),
    (Job.STOPPING, JobOn.GONE_END): Step(is_cancelled, STOPPED, RELEASE),
}


@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row[0].value}, {row[1].value}")
def test_each_row_of_the_table_comes_about(row: tuple[Job, JobOn]) -> None:
    step = STEPS[row]
    world = step.before()
    assert world.state() is row[0]
    assert kinds(world.tell(step.event)) == step.said
    assert world.state() is JOBS[row]


def test_no_row_of_the_table_is_there_in_vain() -> None:
    assert JOBS.keys() == STEPS.keys()


@pytest.mark.parametrize("before", [is_queued, is_provisioning, is_starting, is_running, is_cancelled])
@pytest.mark.parametrize(
    ("event", "on", "late_in"),
    [
        (STARTED, {JobOn.STARTED}, {Job.RUNNING, Job.STOPPING}),
        (FINISHED, {JobOn.FINISH}, set()),
        (FAILED, {JobOn.RESTART, JobOn.GONE_END}, set()),
        (STOPPED, {JobOn.GONE_END}, set()),
        (ABANDONED, {JobOn.ABANDON}, set()),
        (CANCELLED, {JobOn.CANCEL, JobOn.STOP}, {Job.STOPPING}),
    ],
    ids=["started", "finished", "failed", "stopped", "abandoned", "cancelled"],
)
def test_a_message_is_taken_by_the_table_or_comes_late_or_is_refused(
    before: Callable[[], World], event: ev.Event, on: set[JobOn], late_in: set[Job]
) -> None:
    world = before()
    state = world.state()
    following = {JOBS[state, reason] for reason in on if (state, reason) in JOBS}
    if state in late_in:
        world.ignores(event)
    elif following:
        world.tell(event)
        assert world.state() in following
    else:
        world.refuses(event)


# -- submission ------------------------------------------------------------------------------------------------------


def test_a_bad_job_is_refused_with_every_reason_and_not_kept() -> None:
    world = World()
    before = image(world.machine)
    (refused,) = world.tell(ev.JobSubmitted(job("A", slo=0.5, max_attempts=0, rollout=PhaseSpec(nan, 1))))
    assert isinstance(refused, cmd.Refuse)
    assert [reason.split(" ")[0] for reason in refused.reasons] == [
        "job.rollout.duration_s",
        "job.slo",
        "job.max_attempts",
    ]
    assert timeless(image(world.machine)) == timeless(before)
    assert world.tell(ev.JobSubmitted(job("A")))


def test_a_job_submitted_twice_is_one_job_and_another_of_its_name_is_refused() -> None:
    world = is_running()
    world.ignores(ev.JobSubmitted(job("A")))
    world.tell(ev.JobProfiled("A", 1, 40.0, 40.0, 0.0))
    world.ignores(ev.JobSubmitted(job("A")))
    world.refuses(ev.JobSubmitted(job("A", priority=1)))
    world.tell(FINISHED)
    world.refuses(ev.JobSubmitted(job("A")))
