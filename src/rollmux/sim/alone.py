"""How long a job takes on nodes of its own, phase by phase: its slowdown is measured against this."""

from collections import deque

from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.sim.cast import Takes


def steady_s(job: JobSpec, iterations: int, takes: Takes) -> tuple[float, float]:
    """The job's mean iteration once rollouts run ahead, and how much longer the first takes: nothing overlaps yet."""
    if not iterations:
        return job.solo_s, job.ramp_s
    train_s = takes(job, PhaseKind.TRAIN, 0) + takes(job, PhaseKind.SYNC, 0)
    ramp_s = min(takes(job, PhaseKind.ROLLOUT, 0), train_s)
    return (alone_s(job, iterations, takes) - ramp_s) / iterations, ramp_s


def alone_s(job: JobSpec, iterations: int, takes: Takes) -> float:
    """The time of so many iterations. A rollout may be ahead of the last sync by as many as the job's staleness."""
    rolled_s = 0.0
    synced_s = deque([0.0] * (job.staleness + 1), job.staleness + 1)
    for iteration in range(iterations):
        rolled_s = max(rolled_s, synced_s[0]) + takes(job, PhaseKind.ROLLOUT, iteration)
        trained_s = max(rolled_s, synced_s[-1]) + takes(job, PhaseKind.TRAIN, iteration)
        synced_s.append(trained_s + takes(job, PhaseKind.SYNC, iteration))
    return synced_s[-1]
