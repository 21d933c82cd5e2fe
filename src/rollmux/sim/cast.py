"""Jobs and machines that do exactly what they are told, in virtual time.

The cast plays everything outside the controller: nodes that come when asked for, launchers, and jobs whose phases take
the time that their spec plans, or that a script says. It answers each command with the events that a faithful shell
would send. Things that happen at one instant are ordered by submission, then by phase, then by planning.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from time import perf_counter
from typing import NamedTuple, Protocol

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.transitions import Job

_ROLLOUT, _TRAIN, _SYNC = PhaseKind.ROLLOUT, PhaseKind.TRAIN, PhaseKind.SYNC
_STEP = {_ROLLOUT: 0, _TRAIN: 1, _SYNC: 2}

Takes = Callable[[JobSpec, PhaseKind, int], float]


class Observer(Protocol):
    """Watches a cast: is told of every event and every use of nodes."""

    def heard(self, now: float, event: ev.Event, commands: tuple[cmd.Command, ...], took_s: float) -> None:
        """The machine was told of an event, and took `took_s` seconds of real time to answer with these commands."""

    def used(
        self, lease: cmd.Lease, nodes: tuple[str, ...], start_s: float, end_s: float, *, first: bool, last: bool
    ) -> None:
        """Nodes were at work for a lease. `first` and `last`: this was the first, the last stretch of the lease."""


def as_planned(job: JobSpec, kind: PhaseKind, iteration: int) -> float:
    """How long a phase takes by default: exactly as long as its spec plans."""
    return job.sync_s if kind is _SYNC else job.phase(kind).planned_s


@dataclass(frozen=True, slots=True)
class Delays:
    """How long nodes take to come after they were asked for, and a job's processes to start after their launch.

    Processes of a later attempt take `restart_s`, unless the job has its own time; None: as long as the first.
    """

    provision_s: float = 0.0
    launch_s: float = 0.0
    restart_s: float | None = None

    def start_s(self, job: JobSpec, attempt: int) -> float:
        """Seconds from the launch of this attempt until its processes are there."""
        if attempt == 1:
            return self.launch_s
        return job.cold_start_s or (self.launch_s if self.restart_s is None else self.restart_s)


AT_ONCE = Delays()


@dataclass(slots=True)
class Act:
    """A phase under way: `left` node-seconds of work at `since`, and the nodes at work from then on."""

    lease: cmd.Lease
    left: float
    bulk: float  # node-seconds left when the tail begins
    nodes: tuple[str, ...]
    since: float
    takes_s: float  # without switching
    resumed: bool = False
    ends_at: float = inf
    fresh: bool = True  # its nodes have not changed yet


class MovingOff(NamedTuple):
    """State that is being moved off its nodes."""

    lease: cmd.Lease
    nodes: tuple[str, ...]
    since: float


class Actor:
    """One attempt of a job: what it has done, asked for, and is doing."""

    __slots__ = (
        "active_s",
        "acts",
        "ahead_s",
        "asked",
        "attempt",
        "job",
        "kept",
        "moving_off",
        "paused",
        "rank",
        "rolled",
        "synced",
        "trained",
    )

    def __init__(self, job: JobSpec, rank: int, attempt: int, synced: int) -> None:
        self.job, self.rank, self.attempt = job, rank, attempt
        self.rolled = self.trained = self.synced = synced
        self.asked = dict.fromkeys(PhaseKind, synced)
        self.acts: dict[int, Act] = {}
        self.active_s = 0.0  # time in phases of the trained iteration that is to be synced next
        self.ahead_s: list[float] = []  # times of rollouts that are not trained yet, the next to be trained first
        self.kept: dict[PhaseKind, cmd.Lease] = {}  # the latest lease whose state may stay on the nodes
        self.paused: dict[PhaseKind, Act] = {}
        self.moving_off: dict[int, MovingOff] = {}


@dataclass(slots=True, eq=False)
class End:
    """The end of an act at this time, unless the act's nodes change before."""

    cast: "Cast"
    actor: Actor
    act: Act
    at: float

    def __call__(self) -> None:
        if self.act.ends_at == self.at and self.actor.acts.get(self.act.lease.epoch) is self.act:
            self.cast._end(self.actor, self.act)


EndInC = Callable[[float, Actor, Act], bool]


class Cast:
    """Drives a machine through virtual time."""

    actor_type: type[Actor] = Actor

    def __init__(
        self,
        machine: ClusterMachine,
        delays: Delays = AT_ONCE,
        takes: Takes = as_planned,
        observer: Observer | None = None,
    ) -> None:
        self.machine, self.delays = machine, delays
        self.takes, self.observer = takes, observer
        self.now = 0.0
        self.actors: dict[str, Actor] = {}
        self.specs: dict[str, JobSpec] = {}
        self.ranks: dict[str, int] = {}
        self.coming = 0  # jobs that are still to be submitted
        self.started: dict[str, float] = {}  # when each job first ran
        self.active_s: dict[str, float] = {}  # time in the phases of complete iterations
        self.ended: dict[str, float] = {}  # when each job finished, was dismissed or was given up
        self.failed: set[str] = set()  # those that were given up
        self.completed: dict[str, list[float]] = {}  # when each iteration of each job was complete
        self.history: list[tuple[float, ev.Event, tuple[cmd.Command, ...]]] = []
        self.keep_history = False
        self.played_in_c: EndInC | None = None  # ends a phase faster than `_end`; False if it can't
        self.heap: list[tuple[float, int, int, int, Callable[[], None]]] = []
        self.numbers = count(1)

    def submit(self, at: float, job: JobSpec) -> None:
        """The job arrives at this time."""
        rank = self.ranks[job.id] = len(self.specs)
        self.specs[job.id] = job
        self.completed[job.id] = []
        self.coming += 1

        def come() -> None:
            self.coming -= 1
            self.tell(ev.JobSubmitted(job))

        self._later(at, rank, -1, come)

    def dismiss(self, at: float, job_id: str) -> None:
        """The job goes at this time, whatever it has done by then."""

        def go() -> None:
            record = self.machine.state.jobs.get(job_id)
            if record is None:
                return
            self.ended[job_id] = self.now
            if record.state is Job.RUNNING:
                self._leave_stage(job_id)
                self.tell(ev.JobFinished(job_id, record.attempt))
            else:
                self.tell(ev.JobCancelled(job_id))

        self._later(at, self.ranks[job_id], 4, go)

    def lose(self, node: str, back_after_s: float | None = None) -> None:
        """A node is lost now; it may come back."""
        pool = self.machine.state.book.nodes[node].pool
        self.tell(ev.NodeLost(node))
        if back_after_s is not None:
            self._later(self.now + back_after_s, -1, 0, lambda: self.tell(ev.NodeJoined(node, pool)))

    def fail(self, job_id: str, reason: str) -> None:
        """A running job's processes end now with its work undone."""
        attempt = self.actors[job_id].attempt
        self._leave_stage(job_id)
        self.tell(ev.JobFailed(job_id, attempt, reason))
        if job_id not in self.machine.state.jobs:
            self.failed.add(job_id)
            self.ended[job_id] = self.now

    def give_up(self, job_id: str) -> None:
        """The job ends now with its work undone, whatever it is doing."""
        self.failed.add(job_id)
        self.ended[job_id] = self.now
        self.tell(ev.JobCancelled(job_id))

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        """Plans anything else to happen at this time."""
        self._later(at_s, -1, -1, happen)

    def done(self, job_id: str) -> int:
        """Iterations that the job has completed."""
        return len(self.completed[job_id])

    def iteration_s(self, job_id: str) -> float:
        """The mean time of the job's iterations since it first ran; 0 if it has done none."""
        completed = self.completed[job_id]
        return (completed[-1] - self.started[job_id]) / len(completed) if completed else 0.0

    @property
    def over(self) -> bool:
        """Whether every job has come and gone."""
        return not self.coming and not self.machine.state.jobs

    @property
    def to_come(self) -> int:
        """How many happenings are still planned."""
        return len(self.heap)

    def run(self, until: float = inf, happenings: int | None = None) -> None:
        """Lets time pass until nothing is left to happen, or a time or a number of happenings is reached."""
        heap = self.heap
        while heap and heap[0][0] <= until and happenings != 0:
            self.now, _, _, _, happen = heappop(heap)
            happen()
            if happenings is not None:
                happenings -= 1
        if until < inf:
            self.now = max(self.now, until)

    def tell(self, event: ev.Event) -> None:
        """Tells the machine an event, and carries out its commands."""
        start_s = perf_counter()
        if isinstance(event, ev.JobSubmitted) and (reasons := self.machine.why_not(event.job)):
            commands: tuple[cmd.Command, ...] = (cmd.Refuse(event.job.id, reasons),)
        else:
            commands = self.machine.handle(self.now, event)
        if self.keep_history:
            self.history.append((self.now, event, commands))
        self._carry_out(event, commands, perf_counter() - start_s)

    def _carry_out(self, event: ev.Event, commands: tuple[cmd.Command, ...], took_s: float) -> None:
        if self.observer is not None:
            self.observer.heard(self.now, event, commands, took_s)
        for command in commands:
            do = _DO.get(type(command))
            if do is not None:
                do(self, command)

    def _later(self, at: float, rank: int, step: int, happen: Callable[[], None]) -> None:
        heappush(self.heap, (at, rank, step, next(self.numbers), happen))

    def _provision(self, command: cmd.Provision) -> None:
        joined = ev.NodeJoined(command.node, command.pool)
        self._later(self.now + self.delays.provision_s, -1, 0, lambda: self.tell(joined))

    def _launch(self, command: cmd.Launch) -> None:
        job_id, attempt = command.job_id, command.attempt
        rank, synced = self.ranks[job_id], self.machine.state.jobs[job_id].progress.synced
        self.actors[job_id] = actor = self.actor_type(self.specs[job_id], rank, attempt, synced)
        self._enter(actor)

        def start() -> None:
            if self.actors.get(job_id) is actor:
                self.started.setdefault(job_id, self.now)
                self.tell(ev.JobStarted(job_id, attempt))
                self._go_on(actor)

        self._later(self.now + self.delays.start_s(actor.job, attempt), rank, -1, start)

    def _enter(self, actor: Actor) -> None:
        """An attempt's processes are being started."""

    def _stop(self, command: cmd.Stop) -> None:
        if self._leave_stage(command.job_id):
            gone = ev.JobStopped(command.job_id, command.attempt)
            self._later(self.now, self.ranks[command.job_id], 3, lambda: self.tell(gone))

    def _leave_stage(self, job_id: str) -> bool:
        """Ends the job's processes, whatever they are doing; False if there are none."""
        actor = self.actors.pop(job_id, None)
        if actor is None:
            return False
        for act in actor.acts.values():
            self._used(act)
        actor.acts.clear()
        self._used_moving_off(actor)
        return True

    def _used(self, act: Act, last: bool = False) -> None:
        """Tells the observer that the act's nodes were at work since they last changed."""
        if self.observer is not None and act.nodes and self.now > act.since:
            self.observer.used(act.lease, act.nodes, act.since, self.now, first=act.fresh, last=last)
        act.fresh = False

    def _used_moving_off(self, actor: Actor, *epochs: int) -> None:
        """State is off its nodes now: that of these leases, or all that is on its way, as the job has ended."""
        for epoch in epochs or tuple(actor.moving_off):
            moved = actor.moving_off.pop(epoch, None)
            if moved is not None and self.observer is not None and self.now > moved.since:
                lease = replace(moved.lease, keep=False)
                self.observer.used(lease, moved.nodes, moved.since, self.now, first=False, last=True)

    def _go_on(self, actor: Actor) -> None:
        """The job asks for whatever it may do next."""
        if self.actors.get(actor.job.id) is not actor:
            return
        if actor.trained == actor.synced < actor.rolled:
            self._ask(actor, _TRAIN, actor.trained)
        last = actor.job.iterations
        if actor.rolled <= actor.synced + actor.job.staleness and (last is None or actor.rolled < last):
            self._ask(actor, _ROLLOUT, actor.rolled)

    def _ask(self, actor: Actor, kind: PhaseKind, iteration: int) -> None:
        if actor.asked[kind] == iteration:
            actor.asked[kind] = iteration + 1
            self.tell(ev.PhaseRequested(actor.job.id, actor.attempt, kind, iteration))

    def _grant(self, command: cmd.Grant) -> None:
        lease = command.lease
        actor = self.actors[lease.job_id]
        job, kind, epoch = actor.job, lease.kind, lease.epoch
        if lease.keep:
            actor.kept[kind] = lease
        self.tell(ev.PhaseStarted(job.id, epoch))
        takes_s = float(self.takes(job, kind, lease.iteration))
        if lease.resumed:
            phase, before = job.phase(kind), actor.paused.pop(kind)
            again_s = phase.load_s + (phase.pause_s or 0.0)
            if before.lease.keep and not lease.keep:
                again_s += phase.offload_s  # its state was to stay on the nodes, and now must leave
            left = before.left + again_s * len(lease.nodes)
            act = Act(lease, left, before.bulk, lease.nodes, self.now, before.takes_s, resumed=True)
            actor.acts[epoch] = act
        elif kind is _SYNC:
            actor.acts[epoch] = act = Act(lease, takes_s, 0.0, (), self.now, takes_s)
        else:
            phase = job.phase(kind)
            load_s = phase.load_s if lease.load else 0.0
            held_s = load_s + takes_s + (0.0 if lease.keep else phase.offload_s)
            bulk_s = job.tail.bulk_s * takes_s / phase.duration_s if job.tail else held_s
            nodes = max(phase.nodes, len(lease.nodes))  # more nodes than it wants make no phase faster
            actor.acts[epoch] = act = Act(
                lease, held_s * nodes, (held_s - load_s - bulk_s) * nodes, lease.nodes, self.now, takes_s
            )
        self._plan_end(actor, act)

    def _plan_end(self, actor: Actor, act: Act) -> None:
        at_work = len(act.nodes) or 1
        act.ends_at = ends_at = self.now + act.left / at_work
        if ends_at == self.now and act.lease.kind is _SYNC:
            self._end(actor, act)  # a sync that takes no time is part of the training's end
            return
        self._later(ends_at, actor.rank, _STEP[act.lease.kind], End(self, actor, act, ends_at))
        if actor.job.tail is not None and act.lease.kind is _ROLLOUT and (act.left >= act.bulk or act.resumed):
            begins_at = self.now + max(0.0, act.left - act.bulk) / at_work
            self._later(begins_at, actor.rank, 3, lambda: self._tail(actor, act))

    def _tail(self, actor: Actor, act: Act) -> None:
        tail = actor.job.tail
        reached = act.left - len(act.nodes) * (self.now - act.since) <= act.bulk + 1e-6
        if tail is not None and reached and actor.acts.get(act.lease.epoch) is act:
            done = ceil(tail.trigger * tail.requests)
            self.tell(ev.PhaseProgressed(actor.job.id, act.lease.epoch, done, tail.requests))

    def _end(self, actor: Actor, act: Act) -> None:
        if self.played_in_c is not None and self.played_in_c(self.now, actor, act):
            return
        job_id, kind = actor.job.id, act.lease.kind
        del actor.acts[act.lease.epoch]
        self._used(act, last=True)
        if kind is _ROLLOUT:
            actor.ahead_s.append(act.takes_s)
            actor.rolled += 1
        elif kind is _TRAIN:
            actor.active_s += actor.ahead_s.pop(0) + act.takes_s
            actor.trained += 1
        else:
            actor.active_s += act.takes_s
            actor.synced += 1
            self.completed[job_id].append(self.now)
            self.active_s[job_id] = self.active_s.get(job_id, 0.0) + actor.active_s
            actor.active_s = 0.0
        self.tell(ev.PhaseFinished(job_id, act.lease.epoch))
        if kind is _TRAIN:
            self._ask(actor, _SYNC, actor.synced)
        elif actor.synced == actor.job.iterations and job_id in self.actors:
            self._finish(actor)
        else:
            self._go_on(actor)

    def _finish(self, actor: Actor) -> None:
        job_id = actor.job.id
        del self.actors[job_id]
        self._used_moving_off(actor)
        self.ended[job_id] = self.now
        self.tell(ev.JobFinished(job_id, actor.attempt))

    def _pause(self, command: cmd.Pause) -> None:
        actor = self.actors[command.job_id]
        act = actor.acts[command.epoch]
        if act.ends_at <= self.now:
            return  # the phase is done already
        self._used(act)
        act.left -= len(act.nodes) * (self.now - act.since)
        act.nodes, act.ends_at = (), inf
        actor.moving_off[command.epoch] = MovingOff(act.lease, command.nodes, self.now)
        offload_s = actor.job.phase(act.lease.kind).offload_s

        def paused() -> None:
            if actor.acts.pop(command.epoch, None) is not act:
                return
            self._used_moving_off(actor, command.epoch)
            actor.paused[act.lease.kind] = act
            self.tell(ev.PhasePaused(command.job_id, command.epoch))

        if offload_s:
            self._later(self.now + offload_s, actor.rank, _STEP[act.lease.kind], paused)
        else:
            paused()

    def _extend(self, command: cmd.Extend) -> None:
        actor = self.actors[command.job_id]
        act = actor.acts[command.epoch]
        self._used(act)
        act.left -= len(act.nodes) * (self.now - act.since)
        act.since, act.nodes = self.now, act.nodes + command.nodes
        self._plan_end(actor, act)

    def _shrink(self, command: cmd.Shrink) -> None:
        actor = self.actors[command.job_id]
        act = actor.acts[command.epoch]
        self._used(act)
        # The tail is as long on fewer nodes: it is bound by its longest responses.
        left_s = (act.left - len(act.nodes) * (self.now - act.since)) / len(act.nodes)
        left_s += actor.job.tail.move_s if actor.job.tail else 0.0
        act.left, act.nodes, act.since, act.bulk = left_s * len(command.keep), command.keep, self.now, inf
        self._plan_end(actor, act)
        self.tell(ev.PhaseShrunk(command.job_id, command.epoch))

    def _offload(self, command: cmd.Offload) -> None:
        actor = self.actors[command.job_id]
        lease = next(lease for lease in actor.kept.values() if lease.epoch == command.epoch)
        actor.moving_off[command.epoch] = MovingOff(lease, command.nodes, self.now)

        def offloaded() -> None:
            self._used_moving_off(actor, command.epoch)
            self.tell(ev.PhaseOffloaded(command.job_id, command.epoch))

        self._later(self.now + actor.job.phase(lease.kind).offload_s, actor.rank, 3, offloaded)


_DO: dict[type, Callable[..., None]] = {
    cmd.Provision: Cast._provision,
    cmd.Launch: Cast._launch,
    cmd.Stop: Cast._stop,
    cmd.Grant: Cast._grant,
    cmd.Pause: Cast._pause,
    cmd.Extend: Cast._extend,
    cmd.Shrink: Cast._shrink,
    cmd.Offload: Cast._offload,
}
