"""What the cluster remembers of one job from its submission to its end."""

from dataclasses import dataclass, field

from rollmux.errors import IllegalEvent
from rollmux.mux.budget import limit_now_s
from rollmux.mux.commands import Queue
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import Placement
from rollmux.mux.seat import Progress
from rollmux.mux.transitions import Job, JobOn, next_job


@dataclass(slots=True)
class JobRecord:
    """A job that has not ended.

    `group_id` and `placement` are where it is or will be launched; `target` is where it moves at its next safe point.
    While it is being stopped, `then` is what follows once it is gone and `stop_by` when it is gone at the latest.
    """

    job: JobSpec
    submitted: JobSpec
    number: int
    submitted_at: float
    state: Job = Job.QUEUED
    attempt: int = 1
    failures: int = 0
    group_id: str = ""
    placement: Placement | None = None
    target: tuple[str, Placement] | None = None
    then: JobOn | None = None
    stop_by: float = 0.0
    moving_because: str = ""
    told: Queue | None = None  # what its owner was told last about its waiting
    settled_until: float = 0.0  # the job is not moved again before this moment
    launched_by: int = 0  # the event that led to the present launch
    began: float | None = None  # when it first ran
    progress: Progress = field(default_factory=Progress)

    def move(self, on: JobOn) -> None:
        self.state = next_job(self.state, on, self.job.id)

    def is_current(self, attempt: int) -> bool:
        """False for a message of an attempt that is over (I7); one from an attempt to come is illegal."""
        if attempt > self.attempt:
            raise IllegalEvent(f"job {self.job.id} speaks of attempt {attempt}, but the latest is {self.attempt}")
        return attempt == self.attempt

    def limit_s(self, now: float, lost_s: float = 0.0) -> float | None:
        """The slowest pace from here on that keeps the SLO if the job loses `lost_s` now; None if that is unknown."""
        if self.began is None:
            return None
        progress = self.progress
        since = progress.since
        spent_s = (now if since is None else since) - self.began
        return limit_now_s(self.job, progress.synced, spent_s + lost_s)

    @property
    def remaining(self) -> int | None:
        """Iterations still to do, where the owner said how many there are."""
        if self.job.iterations is None:
            return None
        return max(0, self.job.iterations - self.progress.synced)
