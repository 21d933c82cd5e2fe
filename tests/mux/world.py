"""A machine driven event by event for the case-by-case tests, and the states that they start from."""

from dataclasses import replace
from typing import Any

import pytest

from rollmux.errors import IllegalEvent
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool, elastic, finite
from rollmux.mux.image import MachineImage, image
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.placed import Placement
from rollmux.mux.policies import Policy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing

CHEAP = NodeType("cheap", 8, 1.85, 96 * GB, 1000 * GB)
DEAR = NodeType("dear", 8, 5.28, 80 * GB, 1000 * GB)
ELASTIC, FINITE = elastic(CHEAP, DEAR), finite(CHEAP, DEAR)
ROLLOUT, TRAIN, SYNC = PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC
LEASES = Timing(lease_s=15.0, drain_s=10.0)
HOME = Placement(("rollout-0",), ("train-0",))


def job(name: str, **more: Any) -> JobSpec:
    """Several of these share one rollout node and one training node."""
    given: dict[str, Any] = {"rollout": PhaseSpec(50.0, 1), "train": PhaseSpec(50.0, 1), "slo": 4.0, **more}
    return JobSpec(id=name, **given)


class World:
    """A machine driven event by event, every invariant checked after each."""

    def __init__(self, cluster: Cluster = ELASTIC, rules: Rules | None = None, policy: Policy | None = None) -> None:
        self.machine = ClusterMachine(cluster, policy or RollmuxPolicy(), rules)
        self.now = 0.0

    def tell(self, event: ev.Event, after_s: float = 0.0) -> tuple[cmd.Command, ...]:
        self.now += after_s
        commands = self.machine.handle(self.now, event)
        check_all(self.machine.state)
        return commands

    def record(self, job_id: str = "A") -> JobRecord:
        return self.machine.state.jobs[job_id]

    def state(self, job_id: str = "A") -> Job:
        known = self.machine.state.jobs.get(job_id)
        return Job.ENDED if known is None else known.state

    def nodes_come(self) -> None:
        for node, known in list(self.machine.state.book.nodes.items()):
            self.tell(ev.NodeJoined(node, known.pool))

    def run(self, *crew: JobSpec) -> None:
        """These jobs run."""
        for spec in crew:
            self.tell(ev.JobSubmitted(spec))
            self.nodes_come()
            self.tell(ev.JobStarted(spec.id, 1))

    def ask(self, job_id: str, kind: PhaseKind, iteration: int = 0) -> tuple[cmd.Command, ...]:
        return self.tell(ev.PhaseRequested(job_id, self.record(job_id).attempt, kind, iteration))

    def begin(self, job_id: str, kind: PhaseKind, iteration: int = 0) -> cmd.Lease:
        """A phase that is granted at once, and begins."""
        (grant,) = self.ask(job_id, kind, iteration)
        assert isinstance(grant, cmd.Grant)
        self.tell(ev.PhaseStarted(job_id, grant.lease.epoch))
        return grant.lease

    def do(self, job_id: str, kind: PhaseKind, iteration: int = 0) -> tuple[cmd.Command, ...]:
        return self.tell(ev.PhaseFinished(job_id, self.begin(job_id, kind, iteration).epoch), 1.0)

    def iterate(self, job_id: str, count: int = 1) -> None:
        for iteration in range(count):
            for kind in PhaseKind:
                self.do(job_id, kind, iteration)

    def refuses(self, event: ev.Event) -> None:
        """It raises, and nothing changes."""
        before = image(self.machine)
        with pytest.raises(IllegalEvent):
            self.machine.handle(self.now, event)
        assert image(self.machine) == before

    def ignores(self, event: ev.Event) -> None:
        """It says nothing, and nothing changes."""
        before = image(self.machine)
        assert self.machine.handle(self.now, event) == ()
        assert image(self.machine) == before


def timeless(state: MachineImage) -> MachineImage:
    """The state without the number and the time of the last event."""
    return replace(state, seq=0, now=0.0)


def kinds(commands: tuple[cmd.Command, ...]) -> list[type]:
    return [type(command) for command in commands]


CAPPED = Cluster(Pool("rollout", CHEAP, max_nodes=1), Pool("train", DEAR, max_nodes=1))


def is_queued() -> World:
    world = World(FINITE)
    world.tell(ev.JobSubmitted(job("A")))
    return world


def is_provisioning() -> World:
    world = World()
    world.tell(ev.JobSubmitted(job("A")))
    return world


def has_one_of_its_nodes() -> World:
    world = is_provisioning()
    assert world.tell(ev.NodeJoined("rollout-0", "rollout")) == ()
    return world


def is_starting(**more: Any) -> World:
    world = World()
    world.tell(ev.JobSubmitted(job("A", **more)))
    world.nodes_come()
    return world


def is_running(**more: Any) -> World:
    world = World()
    world.run(job("A", **more))
    return world


def is_cancelled() -> World:
    world = is_running()
    world.tell(ev.JobCancelled("A"))
    return world


def is_overdue(**more: Any) -> World:
    """It is being stopped, as it trains no more; its rollout's state is still on the node."""
    world = World(rules=Rules(timing=LEASES))
    world.run(job("A", **more))
    world.do("A", ROLLOUT)
    world.begin("A", TRAIN)
    world.tell(ev.Tick(), LEASES.lease_s)
    world.tell(ev.Tick(), LEASES.drain_s)
    return world


def waits_behind_another() -> World:
    world = World(CAPPED, policy=RollmuxPolicy(max_group=1))
    world.tell(ev.JobSubmitted(job("B")))
    world.tell(ev.JobSubmitted(job("A")))
    return world


def is_provisioning_while_another_waits() -> World:
    world = World(CAPPED, policy=RollmuxPolicy(max_group=1))
    world.tell(ev.JobSubmitted(job("A")))
    world.tell(ev.JobSubmitted(job("urgent", priority=5)))
    return world


def has_lost_a_node_while_another_waits() -> World:
    world = is_provisioning_while_another_waits()
    world.nodes_come()
    world.tell(ev.JobStarted("A", 1))
    world.tell(ev.NodeLost("rollout-0"))
    return world


def is_moving() -> World:
    world = World(rules=Rules(compaction=False))
    world.run(job("B", slo=1.2), job("A", slo=1.2))
    world.tell(ev.JobProfiled("B", 1, 80.0, 20.0, 0.0))
    return world


RELEASE: list[Any] = [cmd.ReleaseNode] * 2
REPLACE: list[Any] = [*RELEASE, cmd.Provision, cmd.Provision, cmd.Admit]
JOINED, LOST = ev.NodeJoined("train-0", "train"), ev.NodeLost("train-0")
CANCELLED, FINISHED, FAILED = ev.JobCancelled("A"), ev.JobFinished("A", 1), ev.JobFailed("A", 1, "signal 9")
ABANDONED = ev.JobAbandoned("A", 1, "its script was killed")
STARTED, STOPPED = ev.JobStarted("A", 1), ev.JobStopped("A", 1)
