"""The rules of the live service, without a clock, a socket or a disk: calls come in with their time, values go out.

The events that the machine has taken are kept in `pending` until the host has made them durable; no answer may leave
before that (I11). A call may come twice, late, or after the controller was started anew: the answer says what holds
now.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any

from rollmux.errors import IllegalEvent, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.image import image, to_json
from rollmux.mux.transitions import Job
from rollmux.protocol.history import ANOTHERS
from rollmux.protocol.job_file import Submission, job_data
from rollmux.protocol.messages import Done
from rollmux.service.history import History
from rollmux.service.journal import Batch, Owned, Record, checksum
from rollmux.service.live import Live, gone
from rollmux.service.processes import Processes
from rollmux.service.tally import Tally

# How often the controller looks for jobs that have gone silent.
LOOK_S = 5.0
# The key under which an image holds the history, beside the machine's state.
HISTORY = "history"

# Commands that the jobs' own processes don't carry out: `Errands` does, with the launcher.
Errand = cmd.Launch | cmd.Stop | cmd.Provision | cmd.ReleaseNode

# The most submissions of forgotten jobs that one batch removes: the batch is not to take longer for them.
FORGET_AT_ONCE = 50


class NoSuchJob(RollmuxError):
    """There is no such job, or it is not the caller's: which of the two is not said."""


class Refused(RollmuxError):
    """A job that can't be taken, for all these reasons."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


class MachineFailed(RollmuxError):
    """The machine broke off amid an event: its state is not to be trusted, and nothing may follow from it."""


class Controller:
    """Answers the calls of owners, and by `processes` those of jobs."""

    def __init__(
        self,
        machine: ClusterMachine,
        owned: Iterable[tuple[str, Submission]] = (),
        history: History | None = None,
        forgotten: Iterable[str] = (),
        came: Collection[str] = (),
    ) -> None:
        self.machine = machine
        self.processes = Processes(self)
        self.history = history or History(machine.state)
        self.jobs = {submission.job.id: Live(submission, tenant) for tenant, submission in owned}
        self.pending: list[Record] = []  # not durable yet
        self.owned: list[Owned] = []
        self.forgotten = dict.fromkeys(forgotten)  # jobs whose submissions the journal need not keep any more
        self.errands: list[Errand] = []
        self.woken: set[str] = set()  # jobs with news: their parked calls are to be looked at again
        self.beats: dict[int, ev.Heartbeat] = {}  # signs of life since the last tick, by lease
        self._wake_at = -inf  # before this time the machine needs no tick
        self._next_look = 0.0  # when to look again for jobs that have gone silent
        self.tally = Tally()
        for job_id, live in self.jobs.items():
            live.version = machine.state.ledger.seq + 1  # above whatever an earlier life has told
            live.came = job_id in came
            if (record := machine.state.jobs.get(job_id)) is not None:
                live.leased = record.progress.counted_until is not None  # it has asked for a lease
                is_sent_on = record.state is Job.STOPPING or record.attempt - record.failures > 1  # to begin elsewhere
                live.is_missed = live.came and not live.leased and not is_sent_on

    # -- what the host calls -----------------------------------------------------------------------------------------

    def tell(self, now: float, event: ev.Event) -> tuple[cmd.Command, ...]:
        """Gives the machine an event, which is to be made durable before anything that follows from it leaves.

        Raises IllegalEvent if it is not possible now, and MachineFailed if the machine broke off in it: then there is
        no record of it.
        """
        ledger = self.machine.state.ledger
        before = ledger.seq
        try:
            commands = self.machine.handle(now, event)
            if ledger.seq != before:
                self._taken(now, event, commands)
        except IllegalEvent:
            raise
        except Exception as error:
            raise MachineFailed(f"{type(error).__name__} at {type(event).__name__}") from error
        return commands

    def _taken(self, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        record = Record(self.machine.state.ledger.seq, now, event, checksum(commands))
        if not isinstance(event, ev.Heartbeats):  # signs of life only put off what is due
            self._wake_at = now
        if isinstance(event, ev.JobFailed) and event.job_id in self.jobs:
            self.jobs[event.job_id].over(event.attempt, event.reason)
        job_id = getattr(event, "job_id", "")
        if job_id in self.jobs and job_id not in self.machine.state.jobs:
            self.jobs[job_id].begin_anew()  # it may have had thousands of processes, and is remembered for months
        self._route(commands)
        self.history.heard(now, event, commands)
        self.tally.note(event, commands)
        self.pending.append(record)

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
                self.woken.add(command.lease.job_id)  # only the parked `ask` hears of it: the orders are as before
                continue
            job_id = getattr(command, "job_id", None)
            if job_id in self.jobs:
                ordered[job_id] = None
                if isinstance(command, cmd.Stop):
                    self.jobs[job_id].over(command.attempt, command.reason)
                if isinstance(command, cmd.Launch):
                    self.jobs[job_id].begin_anew()
        for job_id in ordered:
            self.order(job_id)

    def order(self, job_id: str) -> None:
        """The job's orders are other ones than before: its parked calls are to hear them."""
        live = self.jobs[job_id]
        live.version = max(live.version + 1, self.machine.state.ledger.seq)
        self.woken.add(job_id)

    def _end_the_silent(self, now: float) -> None:
        """Ends jobs whose processes are gone. If they have no launcher and hold no lease, nobody else would notice."""
        timing = self.machine.state.rules.timing
        for job_id, record in list(self.machine.state.jobs.items()):
            live = self.jobs[job_id]
            if live.submission.command or record.state is Job.STOPPING:
                continue
            live.look_out(now)
            if why := live.is_abandoned(record, now, timing):
                self.tell(now, ev.JobAbandoned(job_id, record.attempt, why))
            elif record.state in (Job.STARTING, Job.RUNNING) and (why := live.is_gone(now, timing)):
                done = record.state is Job.RUNNING and record.remaining == 0 and not live.failed
                self.tell(now, gone(record, "" if done else why))

    # -- what owners call --------------------------------------------------------------------------------------------

    def submit(self, now: float, tenant: str, submission: Submission) -> None:
        """Takes a job, or raises Refused. The same job may be submitted again by the same tenant."""
        job_id = submission.job.id
        known = self.jobs.get(job_id)
        if known is not None:
            known.require_same(tenant, submission)
            if job_id in self.machine.state.ended:
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
            self.keep(job_id)

    def keep(self, job_id: str) -> None:
        """Keeps what a later life of the controller is to know of the job, beside what the machine knows."""
        live = self.jobs[job_id]
        self.owned.append(Owned(job_id, live.tenant, job_data(live.submission), live.came))

    def cancel(self, now: float, job_id: str) -> Done:
        self.tell(now, ev.JobCancelled(job_id))
        return Done()

    def live(self, job_id: str, tenant: str | None = None) -> Live:
        """The job. Raises NoSuchJob if there is none of this name that this tenant may see (None: may see all)."""
        live = self.jobs.get(job_id)
        if live is None or tenant not in (None, live.tenant):
            raise NoSuchJob(f"there is no job {job_id!r}")
        return live

    def ended(self, tenant: str | None) -> list[str]:
        """The jobs of this tenant (None: of all) that have ended and are remembered, the latest last."""
        return [each for each in self.machine.state.ended if self.is_of(each, tenant)]

    def is_of(self, job_id: str, tenant: str | None) -> bool:
        """Whether the job is this tenant's (None: anybody's)."""
        live = self.jobs.get(job_id)
        return tenant is None or (live is not None and live.tenant == tenant)

    def names(self, tenant: str | None) -> Callable[[str], str]:
        """By which name this tenant hears of a job: its own name only if it is the tenant's (None: always)."""
        return lambda job_id: job_id if self.is_of(job_id, tenant) else ANOTHERS

    def since(self, job_id: str) -> float:
        """When this job was submitted: earlier news are of an older job of the same name, perhaps another tenant's."""
        account = self.history.books.accounts.get(job_id)
        return -inf if account is None else account.submitted

    def _forget_the_oldest(self) -> None:
        """Forgets the ended jobs that the machine remembers no more."""
        for job_id in self.machine.state.forgotten(self.jobs):
            del self.jobs[job_id]
            self.forgotten[job_id] = None
