"""What the service knows of a job beside the machine: who speaks for it, what each process has said, who shows life.

All but the submission, its owner and `came` is forgotten when the controller ends: jobs say again what is needed of it.
"""

from dataclasses import dataclass, field, replace

from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.mux.job_record import JobRecord
from rollmux.mux.seat import Progress
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing
from rollmux.plain import plain
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import MOST_REASON, Attach, Said

# A job without a launcher that shows no life for so many leases, and for at least so long, is gone.
SILENT_LEASES, SILENT_S = 10, 600.0
# Within this time all scripts that called the controller before call the one that was started anew: a call that was
# parked is given up after 40 s, and repeated within 5.
AWAY_S = 60.0


@dataclass(slots=True)
class Live:
    """One job. Only `submission`, `tenant` and `came` outlive the controller."""

    submission: Submission
    tenant: str
    came: bool = False  # its script, which no launcher started, has called
    version: int = 0  # of the job's orders: the latest event that changed them
    instances: dict[int, str] = field(default_factory=dict)  # which life of the script speaks for a rank
    said: dict[int, dict[int, Said]] = field(default_factory=dict)  # of a lease, by each rank, till all have
    given_up: dict[int, str] = field(default_factory=dict)  # leases under which a process works no more, and why
    heard: dict[int, float] = field(default_factory=dict)  # when each rank last showed life, the longest ago first
    since: float | None = None  # when the first rank did, or was looked for in vain
    left: set[int] = field(default_factory=set)  # ranks that are gone
    failed: str = ""  # why the first rank left, if its work was not done
    waits: dict[int, tuple[str, float]] = field(
        default_factory=dict
    )  # lives of the script that wait for a place, and when each was last heard
    deserted: tuple[float, str] | None = None  # since when no process is there, and why; no call has come since
    leased: bool = False  # it has heard of a lease, so that something may have been done
    is_missed: bool = False  # it came to an earlier life of the controller, had no lease, and has not called this one
    missed_since: float | None = None  # when this life of the controller first looked for it
    latest_over: tuple[int, str] = (0, "")  # the latest attempt that is over, and why

    def alive(self, now: float, rank: int, lease_s: float) -> bool:
        """This rank shows life; returns whether all ranks have done so lately. As long as one never has, the time since
        the first rank's first sign counts.
        """
        self.heard.pop(rank, None)
        self.heard[rank] = now
        since = self._since(now)
        are_all = len(self.heard) == self.submission.ranks
        return now - (next(iter(self.heard.values())) if are_all else since) <= lease_s

    def silent_for(self, now: float) -> float:
        """How long no rank that is still there has shown life; if none ever has, since when this was asked first."""
        heard = [at for rank, at in self.heard.items() if rank not in self.left]
        return now - max(heard, default=self._since(now))

    def is_gone(self, now: float, timing: Timing) -> str:
        """Why the job's processes are given up for lost, else "". Once one has failed, the others get little time."""
        patience_s = timing.lease_s + timing.drain_s if self.failed else _patience_s(timing)
        silent_s = self.silent_for(now)
        if silent_s <= patience_s:
            return ""
        return self.failed or f"none of its processes has shown life for {silent_s:.0f} s"

    def is_there(self) -> None:
        """A process calls."""
        self.deserted, self.is_missed = None, False

    def look_out(self, now: float) -> None:
        """Looks for a script that may have ended while there was no controller: it could hang up on nobody."""
        if self.is_missed:
            self.missed_since = now if self.missed_since is None else self.missed_since
            if now - self.missed_since > AWAY_S:
                self.deserted, self.is_missed = (now, "its script was gone when the controller came back"), False

    def is_abandoned(self, record: JobRecord, now: float, timing: Timing) -> str:
        """Why nobody is going to run the job, else "". A job that has had no lease gets little time: nothing is lost
        with it. A job that waits for a place, and is heard no more, gets as much as one that has its place. If a script
        was waited for in vain, there is no other attempt: the wait for it would be in vain too.
        """
        patience_s = self._return_s(timing)
        if self.deserted is not None and not self.leased and now - self.deserted[0] > patience_s:
            return f"{self.deserted[1]} before its first lease, and nobody came back within {patience_s:.0f} s"
        silent_s = now - max((at for _, at in self.waits.values()), default=now)
        if silent_s > _patience_s(timing):
            return f"its script waited for a place, and has shown no life for {silent_s:.0f} s"
        if record.state is Job.STARTING and not self.heard and self.silent_for(now) > _patience_s(timing):
            again, why = (" again", f": {self.is_over(record.attempt - 1)}") if record.attempt > 1 else ("", "")
            return f"its script was not started{again} within {_patience_s(timing):.0f} s{why}"
        return ""

    def waited_for(self, record: JobRecord, timing: Timing) -> str:
        """Why the job has its place and no processes; and how long its script has, unless a launcher starts it."""
        by_hand, patience_s = not self.submission.command, self._return_s(timing)
        if record.state is Job.RUNNING and by_hand and self.deserted is not None:
            return f"{self.deserted[1]}: it has {patience_s:.0f} s to be started again"
        if record.state is not Job.STARTING:
            return ""
        told = [self.is_over(record.attempt - 1)] if record.attempt > 1 else []
        if by_hand:
            told.append(f"its script has {patience_s:.0f} s to be started" + (" again" if told else ""))
        return ": ".join(told)

    def over(self, attempt: int, why: str) -> None:
        """This attempt has come to its end, or is to: the reason that is given first counts."""
        if attempt > self.latest_over[0]:
            self.latest_over = attempt, why

    def is_over(self, attempt: int) -> str:
        """That this attempt is, and why if that is known."""
        known, why = self.latest_over
        return f"attempt {attempt} is over" + (f" ({why})" if why and known == attempt else "")

    def speaks(self, rank: int, instance: str) -> bool:
        """Whether this life of the script speaks for the rank, and not one of before."""
        return not instance or self.instances.get(rank, instance) == instance

    def attached(self, rank: int, instance: str) -> None:
        """This life of the script speaks for the rank from here on; what another has said counts no more."""
        if self.instances.get(rank) != instance:
            for said in self.said.values():
                said.pop(rank, None)
        self.instances[rank] = instance

    @property
    def ranks(self) -> set[int]:
        return set(range(self.submission.ranks))

    def is_another(self, call: Attach, progress: Progress) -> bool:
        """Whether this is another life of the script than the one that the attempt began with.

        A controller that was started anew knows it by the job's progress: if a rollout is done and not synced, a
        process had attached before. A process may not join an attempt that ends, either.
        """
        known = self.instances.get(call.rank)
        return known != call.instance if known is not None else bool(self.failed) or progress.rolled > progress.synced

    def _return_s(self, timing: Timing) -> float:
        """How long the job may be without a process."""
        if self.deserted is not None and not self.leased:
            return timing.lease_s + timing.drain_s
        return _patience_s(timing)

    def _since(self, now: float) -> float:
        self.since = now if self.since is None else self.since
        return self.since

    def begin_anew(self) -> None:
        """Another attempt begins: what was heard of the one before does not count any more."""
        self.failed, self.since = "", None
        for heard in (self.instances, self.heard, self.left, self.waits):
            heard.clear()

    def require_same(self, tenant: str, submission: Submission) -> None:
        """Raises IllegalEvent unless the job is submitted again by its owner, and without a change."""
        if (self.tenant, self.submission) == (tenant, submission):
            return
        known, helps = f"there has been a job {submission.job.id!r}", "give this one another name"
        before, now = self.submission.processes, submission.processes
        if (self.tenant, self.submission) == (tenant, replace(submission, processes=before)):
            both = f"{known} with processes = {before}, and this one says {now}"
            raise IllegalEvent(f"{both}: let each of its processes say the same (`connect(processes=...)`), or {helps}")
        raise IllegalEvent(f"{known}: {helps}")

    def require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.submission.ranks:
            count = self.submission.ranks
            raise IllegalEvent(f"rank {rank} of a job that was submitted with {count} processes: ranks count from 0")

    def is_done(self, rank: int, epoch: int) -> bool:
        """Whether this process no longer works under the lease."""
        return self.said.get(epoch, {}).get(rank) in (Said.FINISHED, Said.PAUSED, Said.FAILED, Said.OFFLOADED)


def _patience_s(timing: Timing) -> float:
    return max(SILENT_LEASES * timing.lease_s, SILENT_S)


def gone(record: JobRecord, failed: str) -> ev.Event:
    """What the end of a job's processes means to the machine."""
    if record.state is Job.STOPPING:
        return ev.JobStopped(record.job.id, record.attempt)
    if failed:
        return ev.JobFailed(record.job.id, record.attempt, passed_on(failed))
    return ev.JobFinished(record.job.id, record.attempt)


def passed_on(why: str) -> str:
    """As much of a job's own words as others hear: whoever operates the cluster reads them in a terminal."""
    return plain(why[:MOST_REASON])
