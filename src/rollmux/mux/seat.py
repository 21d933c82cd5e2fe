"""A running job's seat in its group: one lane for each kind of phase, and how far its iterations have come."""

from dataclasses import dataclass, field
from math import inf

from rollmux.errors import IllegalEvent
from rollmux.mux.commands import Lease
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.linked import held_ms, pause_of, to_ms
from rollmux.mux.order import Claim, Pause, next_due
from rollmux.mux.placed import Placement
from rollmux.mux.transitions import HOLDING, Phase

_ROLLOUT, _TRAIN = PhaseKind.ROLLOUT, PhaseKind.TRAIN


def in_ms(now: float) -> int:
    """A moment in whole milliseconds, as orders by urgency count time."""
    return round(now * 1000)


# The part of the recent pace that the latest iteration is.
RECENT_PART = 0.3


@dataclass(slots=True)
class Progress:
    """What a job has committed: rollouts, trainings and syncs done, and the time that they and the waiting took.

    Time is counted up to the latest sync, so that both sides of a slowdown are of the same iterations. What an attempt
    did in vain, and the wait for the next one, count as time and not as work. Work is what the same phases would have
    taken alone, where rollouts run beside training as far as the job's staleness lets them.
    """

    rolled: int = 0
    trained: int = 0
    synced: int = 0
    active_s: float = 0.0  # work of the complete iterations; also a clock of its own, which says when the latest synced
    since: float | None = None  # when the present attempt asked for its first phase, or synced last
    recent_s: float = 0.0  # how long an iteration of this attempt takes, the latest counting most
    slowest_s: float = 0.0  # how long the slowest iteration of this attempt took
    elapsed_s: float = 0.0  # from the first phase that was ever asked for to the latest sync
    synced_since_launch: bool = False
    pending_s: float = 0.0  # work in the training and the sync of the iteration under way
    ahead_s: list[float] = field(default_factory=list)  # work in each rollout that is not synced yet
    counted_until: float | None = None  # up to when `elapsed_s` counts
    rolled_at: float = 0.0  # by the clock of `active_s`, when the rollout of the latest iteration was done
    synced_at: list[float] = field(default_factory=list)  # by that clock, earlier syncs: as many as the staleness

    def committed(self, kind: PhaseKind) -> int:
        """How many phases of this kind are done."""
        if kind is _ROLLOUT:
            return self.rolled
        return self.trained if kind is _TRAIN else self.synced

    def back_to_commit(self) -> None:
        """An attempt ended: what it did after its last sync is lost."""
        self.rolled = self.trained = self.synced
        self.since = None
        self.pending_s, self.ahead_s = 0.0, []
        self.synced_since_launch = False

    def begin(self, now: float) -> None:
        """An iteration begins, or is under way already."""
        if self.since is None:
            self.since = now
        if self.counted_until is None:
            self.counted_until = now

    def sync(self, now: float, staleness: int) -> None:
        """An iteration is done."""
        self.synced += 1
        self.synced_at.append(self.active_s)
        may_begin = self.synced_at.pop(0) if len(self.synced_at) > staleness else 0.0
        self.rolled_at = max(self.rolled_at, may_begin) + self.ahead_s.pop(0)
        self.active_s = max(self.active_s, self.rolled_at) + self.pending_s
        self.pending_s = 0.0
        if self.counted_until is not None:
            self.elapsed_s += now - self.counted_until
        if self.since is not None:
            self._took(now - self.since)
        self.since = self.counted_until = now
        self.synced_since_launch = True

    def _took(self, iteration_s: float) -> None:
        if not self.synced_since_launch:
            self.recent_s = self.slowest_s = iteration_s
        self.recent_s += RECENT_PART * (iteration_s - self.recent_s)
        self.slowest_s = max(self.slowest_s, iteration_s)

    @property
    def slowdown(self) -> float | None:
        """Time taken over time alone: what the SLO limits. None before the first iteration."""
        return self.elapsed_s / self.active_s if self.active_s else None


class Lane(Claim):
    """One kind of phase of one job: its state, and its lease while it has one."""

    __slots__ = (
        "alone",
        "asked",
        "can_pause",
        "deadline",
        "done",
        "epoch",
        "freeing",
        "granted_by",
        "iteration",
        "keep",
        "kind",
        "left_ms",
        "load",
        "rest_ms",
        "resumed",
        "seat",
        "started_at",
        "state",
        "total",
        "wanted",
        "whole_ms",
        "worked_s",
    )

    def __init__(self, seat: "Seat", kind: PhaseKind, nodes: tuple[str, ...], number: int) -> None:
        rolls = kind is _ROLLOUT
        wants = seat.job.holds(kind, len(nodes))
        super().__init__(nodes, (number, 0 if rolls else 1), rolls and seat.job.elastic_rollout, wants)
        self.seat = seat
        self.kind = kind
        self.state = Phase.IDLE
        self.iteration = self.epoch = -1
        self.deadline = inf
        self.started_at: float | None = None  # when its work under the present lease began
        self.worked_s = 0.0  # how long it worked before its pauses
        self.resumed = False  # whether the phase has paused and goes on
        self.whole_ms = self.rest_ms = 0  # the whole phase, and from its start to the sync's end, as planned
        self.can_pause = self.pause_of(seat.job)  # what a pause takes, where it holds its nodes beside others
        self.left_ms = 0  # how long it will hold its nodes once it has them, as planned
        self.asked = 0  # the event that put it into line
        self.granted_by = 0  # the event that led to the grant
        self.done = self.total = 0  # responses of a rollout
        self.freeing: tuple[str, ...] = ()  # nodes that a tail was told to free
        self.load = self.keep = False
        self.alone = True  # nobody else is pinned to these nodes
        self.wanted = False  # asked for again while its state is being moved off

    @property
    def holding(self) -> bool:
        return self.state in HOLDING

    @property
    def pausable(self) -> bool:
        """Whether it may be told to pause now."""
        return self.pause is not None

    @pausable.setter
    def pausable(self, now: bool) -> None:
        self.pause = self.can_pause if now else None

    def pause_of(self, job: JobSpec) -> Pause | None:
        return None if self.kind is PhaseKind.SYNC else pause_of(job.phase(self.kind))

    def lease(self) -> Lease:
        seat = self.seat
        return Lease(
            seat.job.id,
            seat.attempt,
            self.kind,
            self.iteration,
            self.epoch,
            self.held,
            self.load,
            self.keep,
            self.resumed,
        )

    def __str__(self) -> str:
        return f"{self.kind.value}({self.iteration}) of job {self.seat.job.id}"


class Seat:
    """A running attempt of a job in its group."""

    __slots__ = ("aim_ms", "attempt", "due_ms", "job", "lanes", "number", "placement", "progress")

    def __init__(
        self, job: JobSpec, attempt: int, placement: Placement, number: int, progress: Progress, aim_ms: int = 0
    ) -> None:
        self.job = job
        self.aim_ms = aim_ms  # how far apart its iterations are due
        self.due_ms = 0  # when the iteration under way is due
        self.attempt = attempt
        self.placement = placement
        self.number = number  # its rank among the jobs that joined the group
        self.progress = progress
        self.lanes = {
            _ROLLOUT: Lane(self, _ROLLOUT, placement.rollout, number),
            _TRAIN: Lane(self, _TRAIN, placement.train, number),
            PhaseKind.SYNC: Lane(self, PhaseKind.SYNC, (), number),
        }

    @property
    def quiet(self) -> bool:
        """Whether the job is between iterations: it holds and awaits nothing, and all it rolled out is synced."""
        for lane in self.lanes.values():
            if lane.state is not Phase.IDLE and lane.state is not Phase.PARKED:
                return False
        return self.progress.rolled == self.progress.synced

    def plan(self) -> None:
        """Counts anew how long the phases hold their nodes: the job was measured, or has other neighbours."""
        rest_ms = 0
        for kind in (PhaseKind.SYNC, _TRAIN, _ROLLOUT):
            lane = self.lanes[kind]
            sync = kind is PhaseKind.SYNC
            lane.whole_ms = to_ms(self.job.sync_s) if sync else held_ms(self.job.phase(kind), not lane.alone)
            rest_ms += lane.whole_ms
            lane.rest_ms = rest_ms
            lane.can_pause = lane.pause_of(self.job)
            if lane.pausable:
                lane.pausable = True  # for a holder too: an image says only whether it may pause

    def commit(self, kind: PhaseKind, worked_s: float, now: float) -> None:
        """One phase of this kind is done."""
        progress = self.progress
        if kind is _ROLLOUT:
            progress.rolled += 1
            progress.ahead_s.append(worked_s)
            return
        progress.pending_s += worked_s
        if kind is _TRAIN:
            progress.trained += 1
        else:
            progress.sync(now, self.job.staleness)
            self.due_ms = next_due(self.due_ms, in_ms(now), self.aim_ms)

    def require_turn(self, kind: PhaseKind, iteration: int) -> None:
        """I5: rollout(k) → train(k) → sync(k) → rollout(k+1), except for rollouts that staleness lets run ahead."""
        progress = self.progress
        if kind is _ROLLOUT:
            in_order = iteration == progress.rolled and iteration <= progress.synced + self.job.staleness
        elif kind is _TRAIN:
            in_order = iteration == progress.trained == progress.synced and iteration < progress.rolled
        else:
            in_order = iteration == progress.synced and iteration < progress.trained
        if not in_order:
            raise IllegalEvent(
                f"job {self.job.id} asked for {kind.value}({iteration}) with {progress.rolled} rollouts, "
                f"{progress.trained} trainings and {progress.synced} syncs done: phases of an iteration go in order"
            )
