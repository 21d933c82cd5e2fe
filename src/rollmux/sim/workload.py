"""A workload: which jobs arrive when, and how long each would run alone."""

from dataclasses import dataclass

from rollmux.mux.job import JobSpec

HOUR_S = 3600.0
MAX_HOURS = 100_000.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of a workload. `duration_s` is its running time on nodes of its own, all phases at their bounds."""

    at_s: float
    duration_s: float
    job: JobSpec

    @property
    def iterations(self) -> int:
        """The work: how many iterations the job does in its running time alone."""
        return max(1, round(self.duration_s / self.job.solo_s))


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals in the order of their times."""

    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def first_s(self) -> float:
        """When the first job arrives."""
        return self.arrivals[0].at_s if self.arrivals else 0.0

    @property
    def end_s(self) -> float:
        """When the last job would have ended, had every job run alone from its arrival on."""
        return max((arrival.at_s + arrival.duration_s for arrival in self.arrivals), default=0.0)
