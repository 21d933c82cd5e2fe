"""What a job's processes say of their work, and what they are told. A part of the `Controller`.

A call may come twice, late, or after the controller was started anew: the answer says what holds now. A word that frees
nodes counts once every process of the job has said it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.mux.job import PhaseKind
from rollmux.mux.job_record import JobRecord
from rollmux.mux.seat import Lane, Seat
from rollmux.mux.transitions import Job, Phase
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
from rollmux.service.live import Live, gone, passed_on

if TYPE_CHECKING:
    from rollmux.service.controller import Controller

# Words that free nodes: they hold once every process of the job has said one. If the processes differ, the first of
# these counts: a process that has shrunk still works on some of its nodes.
_BY_ALL: dict[Said, Callable[[str, int], ev.Event]] = {
    Said.SHRUNK: ev.PhaseShrunk,
    Said.FAILED: lambda job_id, epoch: ev.PhaseFailed(job_id, epoch, "a process of the job gave it up"),
    Said.PAUSED: ev.PhasePaused,
    Said.OFFLOADED: ev.PhaseOffloaded,
    Said.FINISHED: ev.PhaseFinished,
}

# If a process has said this of a lease, these words of it come late, and don't count.
_LESS: dict[Said | None, frozenset[Said]] = {
    Said.OFFLOADED: frozenset(Said),
    Said.FINISHED: frozenset(Said) - {Said.OFFLOADED},
    Said.FAILED: frozenset({Said.SHRUNK, Said.OFFLOADED}),
    Said.PAUSED: frozenset({Said.SHRUNK}),
}

_AT_REST = (Phase.PARKED, Phase.OFFLOADING)

ANOTHER_LIFE = "its script was started again"
# The most leases that a call may name: looking at each takes a moment, in which nobody else is heard.
MOST_LEASES = 100


class Processes:
    """Answers the calls of jobs' processes."""

    def __init__(self, controller: "Controller") -> None:
        self._controller = controller
        self._state = controller.machine.state

    def attach(self, now: float, job_id: str, call: Attach) -> Attached:
        """A process is there. It starts a job without a launcher; if it was started again, the attempt has failed."""
        live, record = self._controller.live(job_id), self._state.jobs.get(job_id)
        live.require_rank(call.rank)
        if call.processes != live.submission.ranks:
            count = live.submission.ranks
            raise IllegalEvent(f"job {job_id} was submitted with {count} processes, this one says {call.processes}")
        if record is None:
            how = self._state.ended.get(job_id, "over")
            helps = "; give this one another name" if call.attempt is None else ""  # it was started by hand
            raise IllegalEvent(f"job {job_id} has ended: {how}{helps}")
        if call.attempt is not None and not record.is_current(call.attempt):
            raise IllegalEvent(f"attempt {call.attempt} of job {job_id} is over: the present one is {record.attempt}")
        live.is_there()
        launched = bool(live.submission.command)
        if not launched and not live.came:
            live.came = True
            self._controller.keep(job_id)
        if not launched and record.state is Job.RUNNING and live.is_another(call, record.progress):
            self._replaced(now, record, live, call.rank)
            if live.failed:
                return Attached(
                    0, reason=f"{live.failed}: those that are left of the processes before are to end first"
                )
        if not launched and record.state is Job.STARTING:
            self._controller.tell(now, ev.JobStarted(job_id, record.attempt))
        record = self._state.jobs.get(job_id)
        if record is None or record.state is not Job.RUNNING or record.placement is None:
            live.waits[call.rank] = call.instance, now
            return Attached(0, reason=self._why_not_running(job_id))
        live.attached(call.rank, call.instance)
        live.alive(now, call.rank, 0.0)
        live.left.discard(call.rank)
        where = record.placement
        timing, synced = self._state.rules.timing, record.progress.synced
        return Attached(
            record.attempt,
            where.rollout,
            where.train,
            synced,
            timing.lease_s,
            drain_s=timing.drain_s,
            rollout_holds=record.job.holds(PhaseKind.ROLLOUT, len(where.rollout)),
        )

    def hung_up(self, now: float, job_id: str, call: Attach | Ask | Listen) -> None:
        """A process broke off its call, as all do that end, and no other one of the job is there. It may come back."""
        record = self._state.jobs.get(job_id)
        if record is not None and call.attempt in (None, record.attempt):
            self._deserted(now, record, "its script hung up")

    def _deserted(self, now: float, record: JobRecord, why: str) -> None:
        """Notes that no process of the job is there, unless the job was told to end so that it can begin elsewhere."""
        if record.state is not Job.STOPPING:
            self._controller.live(record.job.id).deserted = now, why

    def _replaced(self, now: float, record: JobRecord, live: Live, rank: int) -> None:
        """A process was started again: the one before is gone. Others may still be at work: they are told to end."""
        live.left.add(rank)
        if not live.failed:
            live.failed = ANOTHER_LIFE
            self._controller.order(record.job.id)
        if live.left >= live.ranks:
            self._controller.tell(now, gone(record, live.failed))

    def ask(self, now: float, job_id: str, call: Ask) -> Turn:
        """The lease for a phase, or why it is not there yet."""
        live = self._controller.live(job_id)
        live.require_rank(call.rank)
        _require_few(call.finished)
        if not live.speaks(call.rank, call.instance):
            raise IllegalEvent(f"rank {call.rank} of job {job_id}: {ANOTHER_LIFE}")
        live.is_there()
        self._say(now, job_id, live, call.finished, call.rank)
        seat = self._seat(job_id, call.attempt)
        if call.iteration < seat.progress.committed(call.kind):
            return Turn(None, done=True)
        leased = [lane for lane in seat.lanes.values() if lane.holding and lane.state not in _AT_REST]
        mine = [lane for lane in leased if live.is_done(call.rank, lane.epoch)]
        if mine:
            return Turn(None, reason=f"other processes of the job are not done with {mine[0]}")
        lane = seat.lanes[call.kind]
        if lane.iteration != call.iteration or not (lane.state is Phase.WAITING or _has_its_turn(lane)):
            self._controller.tell(now, ev.PhaseRequested(job_id, call.attempt, call.kind, call.iteration))
        if not _has_its_turn(lane):
            return self.waiting(now, lane, self._controller.names(live.tenant))
        live.leased = True
        return Turn(_held(lane))

    def report(self, now: float, job_id: str, call: Report) -> Heard:
        """What has become of a lease; whether it counts."""
        live = self._controller.live(job_id)
        live.require_rank(call.rank)
        if not live.speaks(call.rank, call.instance):
            return Heard(holds=False, committed=False)
        live.is_there()
        lane = self._state.lane(job_id, call.epoch)
        kind, iteration = (lane.kind, _iteration(lane)) if lane is not None else (None, -1)
        if call.said is Said.PROGRESSED:
            self._controller.tell(now, ev.PhaseProgressed(job_id, call.epoch, call.done, call.total))
        elif call.said is not Said.STARTED:
            off = call.said is Said.FINISHED and call.left and lane is not None and lane.state is Phase.FENCED
            said = Said.OFFLOADED if off else call.said
            self._say(now, job_id, live, (call.epoch,), call.rank, said, call.reason)
        elif lane is not None:
            self._controller.tell(now, ev.PhaseStarted(job_id, call.epoch))
        after = self._state.lane(job_id, call.epoch)
        committed = kind is not None and self._committed(job_id, kind) > iteration
        return Heard(after is not None and after.state is not Phase.FENCED, committed)

    def listen(self, now: float, job_id: str, call: Listen, again: bool = False) -> Orders:
        """Hears a sign of life for leases, one for each call, and answers all that the job holds now. `again`: the call
        is looked at once more, and has given its sign before.
        """
        live = self._controller.live(job_id)
        live.require_rank(call.rank)
        _require_few((*call.epochs, *call.finished))
        record = self._state.jobs.get(job_id)
        if record is None or not record.is_current(call.attempt):
            why = live.is_over(call.attempt) if record else self._state.ended.get(job_id, "the job is over")
            return Orders(live.version, call.attempt, stop=why)
        if not live.speaks(call.rank, call.instance):
            return Orders(live.version, call.attempt, stop=ANOTHER_LIFE)
        if again:
            return self.orders(job_id)
        live.is_there()
        self._say(now, job_id, live, call.finished, call.rank)
        if live.alive(now, call.rank, self._state.rules.timing.lease_s):
            for epoch in call.epochs:
                beat = ev.Heartbeat(job_id, epoch)
                if self._state.lane(job_id, epoch) is None:
                    self._controller.tell(now, beat)
                else:
                    self._controller.beats[epoch] = beat
        return self.orders(job_id)

    def orders(self, job_id: str) -> Orders:
        """What a job is to do, as far as is known now."""
        live, record = self._controller.live(job_id), self._state.jobs.get(job_id)
        if record is None:
            return Orders(live.version, 0, stop=self._state.ended.get(job_id, "the job is over"))
        stop = "it is to end, or to go elsewhere" if record.state is Job.STOPPING else live.failed
        held = tuple(_held(lane, live.given_up.get(lane.epoch, "")) for lane in self._holding(record))
        return Orders(live.version, record.attempt, held, stop, self._state.rules.timing.lease_s)

    def leave(self, now: float, job_id: str, call: Leave) -> Done:
        """A process of the job ends, and is off its nodes. If a launcher started the processes, the launcher says when
        all are gone; else the last process does. If one has failed, the others are told to end too.
        """
        live, record = self._controller.live(job_id), self._state.jobs.get(job_id)
        if call.rank is not None:
            live.require_rank(call.rank)
            if not call.attempt:
                return self._gives_up(now, record, live, call)
            if not live.speaks(call.rank, call.instance):
                return Done()
        if record is None or not record.is_current(call.attempt):
            return Done()
        live.left |= live.ranks if call.rank is None else {call.rank}
        rests = [lane.epoch for lane in self._holding(record) if lane.state in (*_AT_REST, Phase.FENCED)]
        for rank in live.left:
            self._say(now, job_id, live, rests, rank, Said.OFFLOADED)
        if not live.submission.command:
            if call.failed and not live.failed:
                live.failed = passed_on(call.failed)
                self._controller.order(job_id)
            if live.left >= live.ranks:
                self._deserted(now, record, f"its script ended ({live.failed})")
                self._controller.tell(now, gone(record, live.failed))
        return Done()

    def _gives_up(self, now: float, record: JobRecord | None, live: Live, call: Leave) -> Done:
        """A process ends before it has heard that the job has a place, which it may have by now. If the job has had a
        lease, it stays in line for the script's next life.
        """
        rank = call.rank or 0
        if record is None or live.submission.command:
            return Done()
        job_id = record.job.id
        if live.instances.get(rank) == call.instance:
            return self.leave(now, job_id, replace(call, attempt=record.attempt))
        if live.waits.get(rank, (call.instance, now))[0] != call.instance:
            return Done()
        live.waits.pop(rank, None)
        if record.state in (Job.QUEUED, Job.PROVISIONING) and not live.leased:
            why = f"its script ended while it waited for a place: {passed_on(call.failed)}"
            self._controller.tell(now, ev.JobAbandoned(job_id, record.attempt, why))
        return Done()

    def profile(self, now: float, job_id: str, call: Profile) -> Done:
        self._controller.live(job_id)
        seconds = call.rollout_s, call.train_s, call.sync_s, call.rollout_switch_s, call.train_switch_s
        sizes = call.rollout_bytes, call.train_bytes, call.process_bytes
        self._controller.tell(now, ev.JobProfiled(job_id, call.attempt, *seconds, *sizes))
        return Done()

    def _seat(self, job_id: str, attempt: int) -> Seat:
        record = self._state.jobs.get(job_id)
        if record is None or not record.is_current(attempt) or record.state is not Job.RUNNING:
            why = self._why_not_running(job_id)
            raise IllegalEvent(f"attempt {attempt} of job {job_id} can't go on: {why}")
        return self._state.seat(record)

    def _why_not_running(self, job_id: str) -> str:
        state = self._state
        record = state.jobs.get(job_id)
        if record is None:
            return f"it has ended: {state.ended.get(job_id, 'long ago')}"
        if (waits := state.waits(record)) is not None:
            return f"number {waits.position} in line: {waits.reason}"
        return f"the job is {record.state.value}"

    def _holding(self, record: JobRecord) -> list[Lane]:
        """The lanes of the job that hold leases."""
        return [lane for lane in self._state.lanes(record) if lane.holding]

    def _committed(self, job_id: str, kind: PhaseKind) -> int:
        record = self._state.jobs.get(job_id)
        return 0 if record is None else record.progress.committed(kind)

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
            lane = self._state.lane(job_id, epoch)
            if said is Said.FINISHED and lane is not None and lane.state in _AT_REST:
                continue  # the phase counts, which this process has not heard: the others will not say it again
            parked = lane is not None and lane.state is Phase.PARKED
            if said is Said.OFFLOADED and parked and rank not in live.left:
                continue  # nobody has asked to move state off: the process says it again when somebody does
            heard = live.said.setdefault(epoch, {}) if lane is not None else {}  # of no lease nothing is kept
            if said not in _LESS.get(heard.get(rank), ()):
                heard[rank] = said
            if said is Said.FAILED and lane is not None and epoch not in live.given_up:
                live.given_up[epoch] = f"process {rank} of the job has given it up: {passed_on(reason)}"
                self._controller.order(job_id)
            if lane is None or (len(heard) >= live.submission.ranks and _is_said(lane, heard) and not parked):
                counts = next(each for each in _BY_ALL if each in heard.values())
                if counts is Said.OFFLOADED and lane is not None and lane.state is Phase.PAUSING:
                    counts = Said.FINISHED  # all were done before they could pause
                if counts is not Said.FINISHED or not _may_lie_there(lane):
                    self._controller.tell(now, _BY_ALL[counts](job_id, epoch))
                live.said[epoch] = {} if counts is not Said.SHRUNK else _gone(heard)
                if live.submission.ranks > 1:
                    self._controller.woken.add(job_id)  # processes that were done before wait to hear if it counts
        for epoch in [each for each in live.said if not live.said[each] or self._state.lane(job_id, each) is None]:
            del live.said[epoch]
            live.given_up.pop(epoch, None)

    def waiting(self, now: float, lane: Lane, name: Callable[[str], str] = str) -> Turn:
        """Why a phase waits: the jobs that hold its nodes. `name` gives the name of a job that may be told."""
        weave = self._state.weaves[self._state.jobs[lane.seat.job.id].group_id]
        if lane.wanted:
            return Turn(None, reason="its state is being moved off the nodes first", holders=(lane.seat.job.id,))
        wanted = set(lane.nodes)
        before = [held for held in weave.leases.values() if wanted & set(held.held) and held is not lane]
        names = tuple(dict.fromkeys(name(held.seat.job.id) for held in before))
        holders = ", ".join(_said_of(held, name) for held in before)
        reason = f"waits for {holders}" if before else "others are before it in line"
        ends = [held.ends_at / 1000 - now for held in before if held.ends_at]
        return Turn(None, reason=reason, holders=names, expected_s=max(0.0, *ends) if ends else None)


def _require_few(epochs: Sequence[int]) -> None:
    if len(epochs) > MOST_LEASES:
        raise IllegalEvent(f"{len(epochs)} leases in one call: no process has more than {MOST_LEASES}")


def _said_of(lane: Lane, name: Callable[[str], str]) -> str:
    job_id = lane.seat.job.id
    return str(lane) if name(job_id) == job_id else f"a {lane.kind.value} of {name(job_id)}"


def _has_its_turn(lane: Lane) -> bool:
    """Whether the lane holds a lease for the phase that the job asked for last."""
    return lane.holding and not lane.wanted and lane.state is not Phase.FENCED


def _is_said(lane: Lane, heard: dict[int, Said]) -> bool:
    """Whether the words of all ranks mean the same. Where state may stay, FINISHED does not say that it has left the
    nodes: if some ranks gave up, a rank that said FINISHED has yet to move its state off.
    """
    words = set(heard.values())
    return not lane.keep or len(words) == 1 or Said.FINISHED not in words


def _may_lie_there(lane: Lane | None) -> bool:
    """Whether the lease is over while its state may still be on the nodes. Then FINISHED commits nothing, and the job
    has yet to say that the state has left.
    """
    return lane is not None and lane.keep and lane.state is Phase.FENCED


def _gone(heard: dict[int, Said]) -> dict[int, Said]:
    """What still counts after a tail has moved together: a rank that is off all of the phase's nodes stays off."""
    return {rank: said for rank, said in heard.items() if said is not Said.SHRUNK}


def _iteration(lane: Lane) -> int:
    """Which iteration the lease is for: if its state must be moved off first, the next may be asked for already."""
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
