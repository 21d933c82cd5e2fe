"""What a pause costs, where a workload does not say."""

from dataclasses import replace

from rollmux.mux.job import JobSpec, PhaseSpec

# Beside what a workload says of moving state. At the paper's warm starts (arXiv 2512.11306) moving the state of a 32B
# job off a node and back would take about 3 s in rollout and 12 s in training; what a paused phase must do again (the
# KV cache of responses under way, a micro-batch), the paper does not say, for it never pauses.
PAUSE_S = 10.0


def able_to_pause(job: JobSpec, pause_s: float) -> JobSpec:
    """The job, whose phases pause at this cost where they don't say; below 0 they don't pause."""
    if pause_s < 0:
        return job
    return replace(job, rollout=_able(job.rollout, pause_s), train=_able(job.train, pause_s))


def _able(phase: PhaseSpec, pause_s: float) -> PhaseSpec:
    return phase if phase.pause_s is not None else replace(phase, pause_s=pause_s)
