"""How long phases really take, compared with the bound that their owners declare.

A rollout lasts as long as its longest response, so its length follows the tail of the response lengths; training goes
with the tokens of the batch. Each job draws its own scale, each iteration its own length, and both depend only on the
seed, the job and the iteration: every policy meets the same durations. None is longer than the bound.
"""

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.sim.cast import Takes, as_planned

# The part of its bound that a rollout takes, at each quantile. With several hundred responses to a batch of prompts the
# longest is often near the limit: most rollouts take two thirds to nine tenths of the bound, a few all of it.
ROLLOUT_QUANTILES = (
    (0.0, 0.45),
    (0.1, 0.58),
    (0.25, 0.66),
    (0.5, 0.75),
    (0.75, 0.84),
    (0.9, 0.92),
    (0.98, 1.0),
    (1.0, 1.0),
)
TRAIN_QUANTILES = ((0.0, 0.50), (0.25, 0.62), (0.5, 0.70), (0.75, 0.78), (0.95, 0.90), (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Quantiles of both phases, how much jobs differ, and how a job's responses grow over its life.

    With `drift` a job begins at `1 - drift` of its length and reaches all of it after `drift_iterations`.
    """

    rollout: tuple[tuple[float, float], ...]
    train: tuple[tuple[float, float], ...]
    spread: float = 0.0
    drift: float = 0.0
    drift_iterations: int = 100


BOUND = "bound"  # every phase takes the longest that its owner declares

DISTRIBUTIONS: dict[str, Distribution | None] = {
    BOUND: None,
    "tail": Distribution(ROLLOUT_QUANTILES, TRAIN_QUANTILES, spread=0.15),
    "drift": Distribution(ROLLOUT_QUANTILES, TRAIN_QUANTILES, spread=0.15, drift=0.4),
}


def quantile(table: tuple[tuple[float, float], ...], at: float) -> float:
    """The value at this quantile, by linear interpolation in the table."""
    i = min(max(1, bisect(table, (at, float("inf")))), len(table) - 1)
    (q0, v0), (q1, v1) = table[i - 1], table[i]
    return v0 + (v1 - v0) * (at - q0) / (q1 - q0)


def durations(name: str, seed: int) -> Takes:
    """How long each phase takes under this distribution."""
    distribution = DISTRIBUTIONS[name]
    if distribution is None:
        return as_planned
    return _Drawn(distribution, seed).takes


class _Drawn:
    """Draws a scale once for each job, and a length for each phase."""

    def __init__(self, distribution: Distribution, seed: int) -> None:
        self.distribution, self.seed = distribution, seed
        self.scales: dict[str, float] = {}
        self.uniform: Callable[[str], float] = lambda key: Random(f"{seed}/{key}").random()

    def takes(self, job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        if kind is PhaseKind.SYNC:
            return job.sync_s
        known = self.distribution
        scale = self.scales.get(job.id)
        if scale is None:
            scale = self.scales[job.id] = 1 - known.spread * self.uniform(job.id)
        table = known.rollout if kind is PhaseKind.ROLLOUT else known.train
        part = quantile(table, self.uniform(f"{job.id}/{kind.value}/{iteration}"))
        grown = 1 - known.drift * max(0.0, 1 - iteration / known.drift_iterations)
        # Whole milliseconds, like the forecasts: sums of them are the same in any order.
        return round(job.phase(kind).duration_s * part * scale * grown, 3)
