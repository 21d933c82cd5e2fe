"""Workloads made from a seed: the RollMux paper's four simulated ones, its production trace, and bursts.

The same generator, seed, jobs and hours give the same workload. Figures are those of arXiv 2512.11306. Its traces are
not public, so arrivals and durations are drawn such that counts and means are the paper's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import exp, isfinite, log
from random import Random
from statistics import NormalDist

from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.sim.production import production_jobs
from rollmux.sim.workload import HOUR_S, MAX_HOURS, Arrival, Workload

# profile: (rollout, train) seconds of small, medium and large jobs; the paper's simulated workloads
RANGES = {
    "balanced": (((50, 100), (50, 100)), ((100, 200), (100, 200)), ((200, 300), (200, 300))),
    "rollout-heavy": (((100, 200), (25, 50)), ((200, 400), (50, 100)), ((400, 600), (100, 200))),
    "train-heavy": (((25, 50), (100, 200)), ((50, 100), (200, 400)), ((100, 200), (400, 600))),
}
PROFILES = (*RANGES, "mixed")

# Hours a job runs alone: mean and longest of the simulated workloads, mean of the production trace.
SIMULATED_MEAN_H, SIMULATED_LONGEST_H = 14.4, 142.9
PRODUCTION_MEAN_H = 27.9

# The standard deviation of a duration's logarithm. The paper gives none; 1.5 puts the median at two fifths of the
# mean, and one or two jobs in a hundred at the longest.
SPREAD = 1.5

BURSTS, BURST_H = 4, 0.25
MAX_JOBS = 1_000_000

_TYPES = production_jobs(slo=1.5)


def draw_job(rng: Random, name: str, profile: str) -> JobSpec:
    """One job of this profile, with one node of each pool and an SLO from U(1, 2); `mixed` draws the profile too."""
    kind = rng.choice(sorted(RANGES)) if profile == "mixed" else profile
    rollout, train = rng.choice(RANGES[kind])
    return JobSpec(name, PhaseSpec(rng.uniform(*rollout), 1), PhaseSpec(rng.uniform(*train), 1), rng.uniform(1, 2))


def draw_production_job(rng: Random, name: str) -> JobSpec:
    """One of the ten production workloads, all equally likely: the paper ranks them but gives no frequencies.

    Half of a warm switch's time goes to loading, half to offloading.
    """
    job = rng.choice(_TYPES)
    return replace(
        job,
        id=f"{job.id}-{name}",
        rollout=_both_ways(job.rollout),
        train=_both_ways(job.train),
        slo=rng.uniform(1, 2),
    )


def _both_ways(phase: PhaseSpec) -> PhaseSpec:
    half = phase.switch_s / 2
    return replace(phase, load_s=half, offload_s=half)


def clipped_mean(mu: float, sigma: float, longest: float) -> float:
    """The mean of a lognormal variable whose values above `longest` are cut down to it."""
    normal, end = NormalDist(mu, sigma), log(longest)
    below = NormalDist(mu + sigma**2, sigma).cdf(end)  # the part of the mean that lies below the cut
    return exp(mu + sigma**2 / 2) * below + longest * (1 - normal.cdf(end))


@cache
def log_median(sigma: float, longest: float) -> float:
    """The `mu` with which a lognormal variable, clipped at `longest` > 2, has mean 1; found by halving."""
    low, high = -(sigma**2) / 2, log(longest)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if clipped_mean(middle, sigma, longest) < 1 else (low, middle)
    return low


def draw_hours(rng: Random, jobs: int, mean_h: float) -> list[float]:
    """How long each job runs alone. The longest is the same multiple of the mean as in the simulated workloads.

    One duration is drawn from each of equally likely slices of the distribution, so every seed comes close to the mean:
    drawn independently, the means of 300 jobs would differ by a quarter from seed to seed, and so would every cost.
    """
    longest = SIMULATED_LONGEST_H / SIMULATED_MEAN_H
    logs = NormalDist(log_median(SPREAD, longest), SPREAD)
    parts = (min(max((slice_ + rng.random()) / jobs, 1e-12), 1 - 1e-12) for slice_ in range(jobs))
    hours = [mean_h * min(exp(logs.inv_cdf(part)), longest) for part in parts]
    rng.shuffle(hours)
    return hours


def _anywhere(rng: Random, jobs: int, hours: float) -> list[float]:
    """Arrivals of a Poisson process, given their number."""
    return sorted(rng.uniform(0, hours) for _ in range(jobs))


def _in_bursts(rng: Random, jobs: int, hours: float) -> list[float]:
    """Every job in one of a few short bursts, which begin at even distances."""
    gap = hours / BURSTS
    return sorted(rng.randrange(BURSTS) * gap + rng.uniform(0, min(BURST_H, gap)) for _ in range(jobs))


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of workload, with its default number of jobs and hours."""

    name: str
    jobs: int
    hours: float
    mean_h: float
    draw: Callable[[Random, str], JobSpec]
    arrive: Callable[[Random, int, float], list[float]] = _anywhere

    def __call__(self, seed: int = 0, jobs: int | None = None, hours: float | None = None) -> Workload:
        """The workload of this seed. More hours spread the arrivals; durations stay as they are."""
        jobs, hours = self.jobs if jobs is None else jobs, self.hours if hours is None else hours
        self._check(jobs, hours)
        rng = Random(seed)
        times = zip(self.arrive(rng, jobs, hours), draw_hours(rng, jobs, self.mean_h), strict=True)
        arrivals = (
            Arrival(at_h * HOUR_S, duration_h * HOUR_S, self.draw(rng, f"job-{number}"))
            for number, (at_h, duration_h) in enumerate(times, 1)
        )
        return Workload(self.name, tuple(arrivals))

    def _check(self, jobs: int, hours: float) -> None:
        problems = []
        if not 1 <= jobs <= MAX_JOBS:
            problems.append(Problem("jobs", jobs, f"from 1 to {MAX_JOBS}", f"{self.jobs} is this workload's own"))
        if not (isfinite(hours) and 0 < hours <= MAX_HOURS):
            limit = f"above 0 and at most {MAX_HOURS:g}"
            problems.append(Problem("hours", hours, limit, f"{self.hours:g} is this workload's own"))
        if problems:
            raise InvalidSpec(f"workload {self.name!r}", tuple(problems))


def _simulated(profile: str) -> Generator:
    return Generator(profile, 300, 580.0, SIMULATED_MEAN_H, partial(draw_job, profile=profile))


GENERATORS = {
    generator.name: generator
    for generator in (
        *map(_simulated, ("mixed", *RANGES)),
        Generator("production", 200, 370.2, PRODUCTION_MEAN_H, draw_production_job),
        Generator("burst", 200, 96.0, SIMULATED_MEAN_H, partial(draw_job, profile="mixed"), _in_bursts),
    )
}
