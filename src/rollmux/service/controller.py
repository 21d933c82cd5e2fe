"""The rules of the live service, without a clock, a socket or a disk: calls come in with their time, values go out.

What the machine decides is kept in `pending` until the shell has made it durable; nothing that a caller is told may
leave before that (I11). A call may come twice, late, or after the controller was started anew: the answer says what
holds now.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any

from rollmux.errors import IllegalEvent, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.image import image, to_json
from rollmux.mux.job import PhaseKind
from rollmux.mux.job_record import JobRecord
from rollmux.mux.seat import Lane, Seat
from rollmux.mux.transitions import Job, Phase
from rollmux.protocol.job_file import Submission, job_data
from rollmux.protocol.messages import (
    Ask,
    Attach,
    Attached,
    Done,
    Heard,
    Held,
    Leave,
    Listen,
    Orders,
    Profile,
    Report,
    Said,
    Turn,
)
from rollmux.service.history import History
from rollmux.service.journal import Batch, Owned, Record, checksum
from rollmux.service.live import Live

# How often jobs are looked for that have gone silent.
LOOK_S = 5.0
# Where an image holds the history, beside the machine's state.
HISTORY = "history"

# Commands that are carried out beside the jobs: by a launcher, or by whoever gets nodes.
Errand = cmd.Launch | cmd.Stop | cmd.Provision | cmd.ReleaseNode

# Submissions of forgotten jobs that are removed with one batch: it is not to take longer for them.
FORGET_AT_ONCE = 50

# What frees nodes: it holds once every process of the job has said so. Where they differ the first of these counts: who
# has shrunk still works on some of its nodes.
_BY_ALL: dict[Said, Callable[[str, int], ev.Event]] = {
    Said.SHRUNK: ev.PhaseShrunk,
    Said.FAILED: lambda job_id, epoch: ev.PhaseFailed(job_id, epoch, "a process of the job gave it up"),
    Said.PAUSED: ev.PhasePaused,
    Said.OFFLOADED: ev.PhaseOffloaded,
    Said.FINISHED: ev.PhaseFinished,
}


ANOTHER_LIFE = "its script was started again"
# Of what a process says of its failure, so many characters are passed on.
MOST_REASON = 1000


class NoSuchJob(RollmuxError):
    """There is no such job, or it is not the caller's: which of the two is not said."""


class Refused(RollmuxError):
    """A job that can't be taken, for all these reasons."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


class Controller:
    """Answers the calls of jobs and owners."""

    def __init__(
        self,
        machine: ClusterMachine,
        owned: Iterable[tuple[str, Submission]] = (),
        history: History | None = None,
        forgotten: Iterable[str] = (),
    ) -> None:
        self.machine = machine
        self.history = history or History(machine.state)
        self.jobs = {submission.job.id: Live(submission, tenant) for tenant, submission in owned}
        self.pending: list[Record] = []  # not durable yet
        self.owned: list[Owned] = []
        self.forgotten = dict.fromkeys(forgotten)  # their submissions are of no use any more
        self.errands: list[Errand] = []
        self.woken: set[str] = set()  # jobs to which something new may be said
        self.beats: dict[int, ev.Heartbeat] = {}  # signs of life since the last tick, by lease
        self._wake_at = -inf  # no tick is due before
        self._next_look = 0.0  # for jobs that have gone silent
        self.noted: Callable[[float, ev.Event, Sequence[cmd.Command]], object] = _unheard  # hears what changes
        for live in self.jobs.values():
            live.version = machine.state.ledger.seq + 1  # above whatever an earlier life has told

    # -- what the shell does -----------------------------------------------------------------------------------------

    def tell(self, now: float, event: ev.Event) -> tuple[cmd.Command, ...]:
        """One event for the machine; it is to be made durable before anything that follows from it leaves."""
        ledger = self.machine.state.ledger
        before = ledger.seq
        commands = self.machine.handle(now, event)
        if ledger.seq != before:
            if not isinstance(event, ev.Heartbeats):  # they only put off what is due
                self._wake_at = now
            self.pending.append(Record(ledger.seq, now, event, checksum(commands)))
            self._route(commands)
            self.history.heard(now, event, commands)
            self.noted(now, event, commands)
        return commands

    def tick(self, now: float) -> None:
        """Time has passed. Signs of life count from here on, all in one record; then leases that have run out end."""
        if self.beats:
            beats, self.beats = tuple(self.beats.values()), {}
            self.tell(now, ev.Heartbeats(beats))
        if now >= self._wake_at:
            wake = self.machine.next_wake()
            self._wake_at = inf if wake is None else wake
            if self._wake_at <= now:
                self.tell(now, ev.Tick())
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._end_the_silent(now)

    def image(self) -> Any:
        """Everything that a restart would have to make anew from the records, as plain data."""
        return {**to_json(image(self.machine)), HISTORY: self.history.saved()}

    def take(self) -> tuple[Batch, list[Errand], set[str]]:
        """What is to be made durable, and what may go on once it is."""
        forgotten = tuple(islice(self.forgotten, FORGET_AT_ONCE))
        for job_id in forgotten:
            del self.forgotten[job_id]
        batch = Batch(tuple(self.pending), tuple(self.owned), forgotten)
        errands, woken = self.errands, self.woken
        self.pending, self.owned, self.errands, self.woken = [], [], [], set()
        return batch, errands, woken

    def _route(self, commands: Sequence[cmd.Command]) -> None:
        ordered = dict[str, None]()
        for command in commands:
            if isinstance(command, Errand):
                self.errands.append(command)
            if isinstance(command, cmd.Grant):
                self.woken.add(command.lease.job_id)  # who asked hears of that
                continue
            job_id = getattr(command, "job_id", None)
            if job_id in self.jobs:
                ordered[job_id] = None
                if isinstance(command, cmd.Launch):
                    self.jobs[job_id].begin_anew()
        for job_id in ordered:
            self._order(job_id)

    def _order(self, job_id: str) -> None:
        """There is something else to tell the job than before."""
        live = self.jobs[job_id]
        live.version = max(live.version + 1, self.machine.state.ledger.seq)
        self.woken.add(job_id)

    def _end_the_silent(self, now: float) -> None:
        """Where no launcher watches a job's processes, nobody else notices that they are gone and hold nothing."""
        timing = self.machine.state.rules.timing
        for job_id, record in list(self.machine.state.jobs.items()):
            live = self.jobs[job_id]
            if live.submission.command or record.state not in (Job.STARTING, Job.RUNNING):
                continue
            why = live.is_gone(now, timing)
            if why:
                done = record.state is Job.RUNNING and record.remaining == 0 and not live.failed
                self.tell(now, gone(record, "" if done else why))

    # -- what owners call --------------------------------------------------------------------------------------------

    def submit(self, now: float, tenant: str, submission: Submission) -> None:
        """Takes a job, or raises Refused. The same job may be submitted again by the same tenant."""
        job_id = submission.job.id
        known = self.jobs.get(job_id)
        if known is not None and (known.tenant != tenant or known.submission != submission):
            raise IllegalEvent(f"there has been a job {job_id!r}: give this one another name")
        if known is not None and job_id in self.machine.state.ended:
            return  # submitted twice, and done already
        reasons = self.machine.why_not(submission.job)
        if reasons:
            raise Refused(reasons)  # the journal never hears of it
        if known is None:
            self._forget_the_oldest()
            self.forgotten.pop(job_id, None)
            self.jobs[job_id] = Live(submission, tenant)
        try:
            self.tell(now, ev.JobSubmitted(submission.job))
        except IllegalEvent:
            if known is None:
                del self.jobs[job_id]
            raise
        if known is None:
            self.owned.append(Owned(job_id, tenant, job_data(submission)))

    def cancel(self, now: float, job_id: str) -> Done:
        self.tell(now, ev.JobCancelled(job_id))
        return Done()

    def live(self, job_id: str, tenant: str | None = None) -> Live:
        """The job; NoSuchJob where there is none that this tenant may see (None: all)."""
        live = self.jobs.get(job_id)
        if live is None or tenant not in (None, live.tenant):
            raise NoSuchJob(f"there is no job {job_id!r}")
        return live

    # -- what a job's processes call ---------------------------------------------------------------------------------

    def attach(self, now: float, job_id: str, call: Attach) -> Attached:
        """A process is there. A job without a launcher starts with it; one that comes back has failed before."""
        live, record = self.live(job_id), self._record(job_id)
        live.require_rank(call.rank)
        if call.processes != live.submission.processes:
            count = live.submission.processes
            raise IllegalEvent(f"job {job_id} was submitted with {count} processes, this one says {call.processes}")
        if record is None:
            how = self.machine.state.ended.get(job_id, "over")
            raise IllegalEvent(f"job {job_id} has ended: {how}")
        if call.attempt is not None and not record.is_current(call.attempt):
            raise IllegalEvent(f"attempt {call.attempt} of job {job_id} is over: the present one is {record.attempt}")
        launched = bool(live.submission.command)
        if not launched and record.state is Job.RUNNING and live.is_another(call, record.progress):
            self.tell(now, ev.JobFailed(job_id, record.attempt, ANOTHER_LIFE))
        if not launched and record.state is Job.STARTING:
            self.tell(now, ev.JobStarted(job_id, record.attempt))
        record = self._record(job_id)
        if record is None or record.state is not Job.RUNNING or record.placement is None:
            return Attached(0, reason=self._why_not_running(job_id))
        live.attached(call.rank, call.instance)
        live.alive(now, call.rank, 0.0)
        live.left.discard(call.rank)
        where = record.placement
        lease_s = self.machine.state.rules.timing.lease_s
        return Attached(record.attempt, where.rollout, where.train, record.progress.synced, lease_s)

    def ask(self, now: float, job_id: str, call: Ask) -> Turn:
        """The lease for a phase, or why it is not there yet."""
        live = self.live(job_id)
        live.require_rank(call.rank)
        if not live.speaks(call.rank, call.instance):
            raise IllegalEvent(f"rank {call.rank} of job {job_id}: {ANOTHER_LIFE}")
        self._say(now, job_id, live, call.finished, call.rank)
        seat = self._seat(job_id, call.attempt)
        if call.iteration < seat.committed(call.kind):
            return Turn(None, done=True)
        mine = [lane for lane in seat.lanes.values() if lane.holding and live.is_done(call.rank, lane.epoch)]
        if mine:
            return Turn(None, reason=f"other processes of the job are not done with {mine[0]}")
        lane = seat.lanes[call.kind]
        if lane.iteration != call.iteration or not (lane.state is Phase.WAITING or _has_its_turn(lane)):
            self.tell(now, ev.PhaseRequested(job_id, call.attempt, call.kind, call.iteration))
        return Turn(_held(lane)) if _has_its_turn(lane) else self.waiting(now, lane)

    def report(self, now: float, job_id: str, call: Report) -> Heard:
        """What has become of a lease; whether it counts."""
        live = self.live(job_id)
        live.require_rank(call.rank)
        if not live.speaks(call.rank, call.instance):
            return Heard(holds=False, committed=False)
        lane = self._lane(job_id, call.epoch)
        kind, iteration = (lane.kind, _iteration(lane)) if lane is not None else (None, -1)
        if call.said is Said.PROGRESSED:
            self.tell(now, ev.PhaseProgressed(job_id, call.epoch, call.done, call.total))
        elif call.said is not Said.STARTED:
            self._say(now, job_id, live, (call.epoch,), call.rank, call.said, call.reason)
        elif lane is not None:
            self.tell(now, ev.PhaseStarted(job_id, call.epoch))
        after = self._lane(job_id, call.epoch)
        committed = kind is not None and self._committed(job_id, kind) > iteration
        return Heard(after is not None and after.state is not Phase.FENCED, committed)

    def listen(self, now: float, job_id: str, call: Listen) -> Orders:
        """Signs of life for leases, and all that the job holds now."""
        live = self.live(job_id)
        live.require_rank(call.rank)
        record = self._record(job_id)
        if record is None or not record.is_current(call.attempt):
            why = "this attempt is over" if record else self.machine.state.ended.get(job_id, "the job is over")
            return Orders(live.version, call.attempt, stop=why)
        if not live.speaks(call.rank, call.instance):
            return Orders(live.version, call.attempt, stop=ANOTHER_LIFE)
        self._say(now, job_id, live, call.finished, call.rank)
        if live.alive(now, call.rank, self.machine.state.rules.timing.lease_s):
            for epoch in call.epochs:
                beat = ev.Heartbeat(job_id, epoch)
                if self._lane(job_id, epoch) is None:
                    self.tell(now, beat)
                else:
                    self.beats[epoch] = beat
        return self.orders(job_id)

    def orders(self, job_id: str) -> Orders:
        """What a job is to do, as far as is known now."""
        live, record = self.live(job_id), self._record(job_id)
        if record is None:
            return Orders(live.version, 0, stop=self.machine.state.ended.get(job_id, "the job is over"))
        stop = "it is to end, or to go elsewhere" if record.state is Job.STOPPING else live.failed
        weave = self.machine.state.weaves.get(record.group_id)
        seat = weave.seats.get(job_id) if weave is not None else None
        lanes = seat.lanes.values() if seat is not None else ()
        held = tuple(_held(lane, live.given_up.get(lane.epoch, "")) for lane in lanes if lane.holding)
        return Orders(live.version, record.attempt, held, stop)

    def leave(self, now: float, job_id: str, call: Leave) -> Done:
        """A process of the job ends. Where a launcher started it, that is what says when all of them are gone; else
        the last one does. Where one has failed the others are told to end too.
        """
        live, record = self.live(job_id), self._record(job_id)
        if call.rank is not None:
            live.require_rank(call.rank)
            if not live.speaks(call.rank, call.instance):
                return Done()
        if record is not None and record.is_current(call.attempt) and not live.submission.command:
            ranks = set(range(live.submission.processes))
            live.left |= ranks if call.rank is None else {call.rank}
            if call.failed and not live.failed:
                live.failed = call.failed
                self._order(job_id)
            if live.left >= ranks:
                self.tell(now, gone(record, live.failed))
        return Done()

    def profile(self, now: float, job_id: str, call: Profile) -> Done:
        self.live(job_id)
        seconds = call.rollout_s, call.train_s, call.sync_s, call.rollout_switch_s, call.train_switch_s
        sizes = call.rollout_bytes, call.train_bytes, call.process_bytes
        self.tell(now, ev.JobProfiled(job_id, call.attempt, *seconds, *sizes))
        return Done()

    # -- what these share --------------------------------------------------------------------------------------------

    def _forget_the_oldest(self) -> None:
        """What the machine remembers no more of jobs that are over, nobody does."""
        state = self.machine.state
        if len(self.jobs) > len(state.jobs) + len(state.ended):
            for job_id in [each for each in self.jobs if each not in state.jobs and each not in state.ended]:
                del self.jobs[job_id]
                self.forgotten[job_id] = None

    def _record(self, job_id: str) -> JobRecord | None:
        return self.machine.state.jobs.get(job_id)

    def _seat(self, job_id: str, attempt: int) -> Seat:
        record = self._record(job_id)
        if record is None or not record.is_current(attempt) or record.state is not Job.RUNNING:
            why = self._why_not_running(job_id)
            raise IllegalEvent(f"attempt {attempt} of job {job_id} can't go on: {why}")
        return self.machine.state.seat(record)

    def _why_not_running(self, job_id: str) -> str:
        state = self.machine.state
        record = state.jobs.get(job_id)
        if record is None:
            return f"it has ended: {state.ended.get(job_id, 'long ago')}"
        if record.told is not None:
            return f"number {record.told.position} in line: {record.told.reason}"
        return f"the job is {record.state.value}"

    def _lane(self, job_id: str, epoch: int) -> Lane | None:
        """The lane of the job that holds this lease now."""
        record = self._record(job_id)
        weave = self.machine.state.weaves.get(record.group_id) if record is not None else None
        lane = weave.leases.get(epoch) if weave is not None else None
        return lane if lane is not None and lane.seat.job.id == job_id else None

    def _committed(self, job_id: str, kind: PhaseKind) -> int:
        record = self._record(job_id)
        if record is None:
            return 0
        progress = record.progress
        return {
            PhaseKind.ROLLOUT: progress.rolled,
            PhaseKind.TRAIN: progress.trained,
            PhaseKind.SYNC: progress.synced,
        }[kind]

    def _say(
        self,
        now: float,
        job_id: str,
        live: Live,
        epochs: Iterable[int],
        rank: int,
        said: Said = Said.FINISHED,
        reason: str = "",
    ) -> None:
        """This process says what became of these leases; it holds once all processes of the job have said something."""
        for epoch in epochs:
            lane = self._lane(job_id, epoch)
            if said is Said.FINISHED and lane is not None and lane.state in (Phase.PARKED, Phase.OFFLOADING):
                continue  # it counts already, and this process has not heard of it: the others will not say it again
            heard = live.said.setdefault(epoch, {})
            if heard.get(rank) is not Said.FINISHED and not (said is Said.SHRUNK and rank in heard):
                heard[rank] = said
            if said is Said.FAILED and lane is not None and epoch not in live.given_up:
                live.given_up[epoch] = f"process {rank} of the job has given it up: {reason[:MOST_REASON]}"
                self._order(job_id)
            if lane is None or len(heard) >= live.submission.processes:
                counts = next(each for each in _BY_ALL if each in heard.values())
                live.said[epoch] = {} if counts is not Said.SHRUNK else _gone(heard)
                self.tell(now, _BY_ALL[counts](job_id, epoch))
        for epoch in [each for each in live.said if not live.said[each] or self._lane(job_id, each) is None]:
            del live.said[epoch]
            live.given_up.pop(epoch, None)

    def waiting(self, now: float, lane: Lane, name: Callable[[str], str] = str) -> Turn:
        """Who is before a phase that waits: those who hold its nodes. `name` is what may be said of a job."""
        weave = self.machine.state.weaves[self.machine.state.jobs[lane.seat.job.id].group_id]
        if lane.wanted:
            return Turn(None, reason="its state is being moved off the nodes first", holders=(lane.seat.job.id,))
        wanted = set(lane.nodes)
        before = [held for held in weave.leases.values() if wanted & set(held.held) and held is not lane]
        names = tuple(dict.fromkeys(name(held.seat.job.id) for held in before))
        holders = ", ".join(_said_of(held, name) for held in before)
        reason = f"waits for {holders}" if before else "others are before it in line"
        ends = [held.ends_at / 1000 - now for held in before if held.ends_at]
        return Turn(None, reason=reason, holders=names, expected_s=max(0.0, *ends) if ends else None)


def _unheard(now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
    """Nobody counts what happens."""


def gone(record: JobRecord, failed: str) -> ev.Event:
    """What the end of a job's processes means to the machine."""
    if record.state is Job.STOPPING:
        return ev.JobStopped(record.job.id, record.attempt)
    if failed:
        return ev.JobFailed(record.job.id, record.attempt, failed[:MOST_REASON])
    return ev.JobFinished(record.job.id, record.attempt)


def _said_of(lane: Lane, name: Callable[[str], str]) -> str:
    job_id = lane.seat.job.id
    return str(lane) if name(job_id) == job_id else f"a {lane.kind.value} of {name(job_id)}"


def _has_its_turn(lane: Lane) -> bool:
    """Whether it holds a lease for the phase that it was asked for last."""
    return lane.holding and not lane.wanted and lane.state is not Phase.FENCED


def _gone(heard: dict[int, Said]) -> dict[int, Said]:
    """Of a tail that has moved together, those that are off all of its nodes go on being so."""
    return {rank: said for rank, said in heard.items() if said is not Said.SHRUNK}


def _iteration(lane: Lane) -> int:
    """What its lease was granted for: one that must be moved off first may have been asked for the next already."""
    return lane.iteration - lane.wanted


def _held(lane: Lane, given_up: str = "") -> Held:
    return Held(
        lane.epoch,
        lane.kind,
        _iteration(lane),
        lane.state.value,
        lane.held,
        lane.load,
        lane.keep,
        lane.resumed,
        lane.freeing,
        given_up,
    )
