"""The whole state of a machine as one immutable value: to compare, to write down, and to go on from.

A machine restored from an image answers every further event as the saved one would. The log and the explanations of
past decisions are history, not state: the journal keeps those.
"""

from dataclasses import dataclass
from typing import Any

from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import ClusterState, Rules
from rollmux.mux.codec import decode, encode
from rollmux.mux.commands import Queue
from rollmux.mux.exchanges import Swap
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.job_record import JobRecord
from rollmux.mux.node_book import NodeRecord, NodeState
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.policies import Policy
from rollmux.mux.seat import Lane, Progress, Seat
from rollmux.mux.transitions import Job, JobOn, Phase
from rollmux.mux.weave import Weave

VERSION = 5  # the first one with a cluster
READ = (4, 5)


@dataclass(frozen=True, slots=True)
class LaneImage:
    kind: PhaseKind
    state: Phase
    iteration: int
    epoch: int
    deadline: float
    asked: int
    started_at: float | None
    worked_s: float
    left_ms: int
    resumed: bool
    granted_by: int
    done: int
    total: int
    freeing: tuple[str, ...]
    load: bool
    keep: bool
    wanted: bool
    held: tuple[str, ...]
    tail: bool
    rounds: int
    latest: int
    ends_at: int
    pausable: bool
    pausing: bool


@dataclass(frozen=True, slots=True)
class SeatImage:
    job: JobSpec
    attempt: int
    placement: Placement
    number: int
    aim_ms: int
    due_ms: int
    lanes: tuple[LaneImage, ...]


@dataclass(frozen=True, slots=True)
class WeaveImage:
    group_id: str
    seats: tuple[SeatImage, ...]
    queues: tuple[tuple[str, tuple[tuple[str, PhaseKind], ...]], ...]
    tails: tuple[tuple[str, PhaseKind], ...]


@dataclass(frozen=True, slots=True)
class ProgressImage:
    rolled: int
    trained: int
    synced: int
    active_s: float
    since: float | None
    recent_s: float
    slowest_s: float
    elapsed_s: float
    synced_since_launch: bool
    pending_s: float = 0.0
    counted_until: float | None = None
    ahead_s: tuple[float, ...] | None = None
    rolled_at: float = 0.0
    synced_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class JobImage:
    job: JobSpec
    submitted: JobSpec
    number: int
    submitted_at: float
    state: Job
    attempt: int
    failures: int
    group_id: str
    placement: Placement | None
    target: tuple[str, Placement] | None
    then: JobOn | None
    stop_by: float
    moving_because: str
    told: Queue | None
    settled_until: float
    launched_by: int
    began: float | None
    progress: ProgressImage


@dataclass(frozen=True, slots=True)
class GroupImage:
    id: str
    order: Order
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class NodeImage:
    node: str
    pool: str
    state: NodeState
    group_id: str | None
    cordoned: bool


@dataclass(frozen=True, slots=True)
class MachineImage:
    version: int
    now: float
    seq: int
    epoch: int
    next_group: int
    next_node: int
    nodes: tuple[NodeImage, ...]
    jobs: tuple[JobImage, ...]
    groups: tuple[GroupImage, ...]
    weaves: tuple[WeaveImage, ...]
    backlog: tuple[str, ...]
    strained: tuple[str, ...]
    changed: tuple[str, ...]
    swaps: tuple[tuple[str, Swap], ...]
    swaps_until: float
    followed: int
    ended: tuple[tuple[str, str], ...]
    cluster: Cluster | None = None  # None in version 4: it is the one that the journal was begun with


def image(machine: ClusterMachine) -> MachineImage:
    """The machine's present state."""
    state = machine.state
    return MachineImage(
        VERSION,
        state.now,
        state.ledger.seq,
        state.ledger.epoch,
        state.next_group,
        state.book.next_node,
        tuple(NodeImage(n, r.pool, r.state, r.group_id, r.cordoned) for n, r in state.book.nodes.items()),
        tuple(_copy(JobImage, record, progress=_progress_image(record.progress)) for record in state.jobs.values()),
        tuple(GroupImage(g.id, g.order, g.members) for g in state.groups.values()),
        tuple(_weave_image(group_id, weave) for group_id, weave in state.weaves.items()),
        tuple(state.backlog),
        tuple(state.strained),
        tuple(state.changed),
        tuple(state.swaps.items()),
        state.swaps_until,
        state.followed,
        tuple(state.ended.items()),
        state.cluster,
    )


def restore(saved: MachineImage, cluster: Cluster, policy: Policy, rules: Rules | None = None) -> ClusterMachine:
    """A machine that goes on from this state; `cluster` is for an image that does not have its own."""
    machine = ClusterMachine(saved.cluster or cluster, policy, rules)
    state = machine.state
    state.now, state.next_group = saved.now, saved.next_group
    state.ledger.seq, state.ledger.epoch = saved.seq, saved.epoch
    state.book.restore(
        {n.node: NodeRecord(n.pool, n.state, n.group_id, n.cordoned) for n in saved.nodes}, saved.next_node
    )
    state.backlog, state.ended = list(saved.backlog), dict(saved.ended)
    state.strained = dict.fromkeys(saved.strained)
    state.changed = dict.fromkeys(saved.changed)
    state.swaps, state.swaps_until = dict(saved.swaps), saved.swaps_until
    state.followed = saved.followed
    for job in saved.jobs:
        state.jobs[job.job.id] = _copy(JobRecord, job, progress=_restore_progress(job))
        if job.state is Job.STOPPING:
            state.stopped[job.job.id] = None
    for group in saved.groups:
        state.groups[group.id] = Group(group.id, group.members, group.order)
    for weave in saved.weaves:
        _restore_weave(state, weave)
    return machine


def to_json(saved: MachineImage) -> Any:
    """The image as plain JSON data."""
    return encode(MachineImage, saved)


def from_json(data: Any) -> MachineImage:
    return decode(MachineImage, data)


def _copy(kind: Any, source: Any, **replaced: Any) -> Any:
    """The same fields in another class."""
    names = kind.__dataclass_fields__
    return kind(**{name: replaced.get(name, getattr(source, name)) for name in names})


def _progress_image(progress: Progress) -> ProgressImage:
    lists = {"ahead_s": tuple(progress.ahead_s), "synced_at": tuple(progress.synced_at)}
    image: ProgressImage = _copy(ProgressImage, progress, **lists)
    return image


def _restore_progress(saved: JobImage) -> Progress:
    """Earlier images have the time of all phases in one sum, with rollouts that ran beside training counted in."""
    seen, job = saved.progress, saved.job
    progress: Progress = _copy(Progress, seen, ahead_s=list(seen.ahead_s or ()), synced_at=list(seen.synced_at))
    if seen.ahead_s is None:
        progress.active_s *= job.solo_s / (job.solo_s + job.ramp_s)
        progress.rolled_at = progress.active_s
        progress.ahead_s = [seen.pending_s, *[0.0] * seen.rolled][: seen.rolled - seen.synced]
        progress.pending_s = 0.0
    return progress


def _weave_image(group_id: str, weave: Weave) -> WeaveImage:
    return WeaveImage(
        group_id,
        tuple(
            _copy(SeatImage, seat, lanes=tuple(_copy(LaneImage, lane) for lane in seat.lanes.values()))
            for seat in weave.seats.values()
        ),
        tuple((node, tuple(map(_name, queue))) for node, queue in weave.turns.queues.items()),
        tuple(map(_name, weave.tails)),
    )


def _name(lane: Lane) -> tuple[str, PhaseKind]:
    return lane.seat.job.id, lane.kind


def _restore_weave(state: ClusterState, saved: WeaveImage) -> None:
    weave = Weave(state.groups[saved.group_id].order, state.ledger, state.rules.timing)
    turns = weave.turns
    for node, _ in saved.queues:
        turns.holders[node], turns.queues[node] = None, []
    for one in saved.seats:
        progress = state.jobs[one.job.id].progress
        seat = Seat(one.job, one.attempt, one.placement, one.number, progress, one.aim_ms)
        seat.due_ms = one.due_ms
        weave.seats[one.job.id] = seat
        for lane in seat.lanes.values():
            if lane.nodes:
                turns.enter(lane)
    for one in saved.seats:  # only now: a lane that enters may change those that are there
        for lane_image in one.lanes:
            lane = weave.seats[one.job.id].lanes[lane_image.kind]
            for name in LaneImage.__dataclass_fields__:
                setattr(lane, name, getattr(lane_image, name))
            for node in lane.held:
                turns.holders[node] = lane
    for node, queue in saved.queues:
        turns.queues[node] = [weave.seats[job_id].lanes[kind] for job_id, kind in queue]
    weave.tails = [weave.seats[job_id].lanes[kind] for job_id, kind in saved.tails]
    weave.restore_leases()
    state.weaves[saved.group_id] = weave
