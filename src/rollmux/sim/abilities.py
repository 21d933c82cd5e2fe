"""What jobs can do beside computing, where a workload does not say: pause at a price, and roam."""

from dataclasses import replace

from rollmux.mux.job import JobSpec, PhaseSpec

# Beside what a workload says of moving state. At the paper's warm starts (arXiv 2512.11306) moving the state of a 32B
# job off a node and back would take about 3 s in rollout and 12 s in training; what a paused phase must do again (the
# KV cache of responses under way, a micro-batch), the paper does not say, for it never pauses.
PAUSE_S = 10.0

# The nodes beyond those that a rollout wants on whose hosts its weights wait too: few groups have more than five.
SPARES = 4


def able(job: JobSpec, pause_s: float = PAUSE_S, spares: int = SPARES) -> JobSpec:
    """The job, whose phases pause at this cost where they don't say; below 0 they don't pause.

    Its rollout may have so many spare nodes where it names none, if it always holds as many as it wants.
    """
    whole = job.rollout.nodes == 1 or (job.tail is None and not job.elastic_rollout)
    if spares and whole and not job.rollout_spares:
        job = replace(job, rollout_spares=spares)
    if pause_s < 0:
        return job
    return replace(job, rollout=_pausing(job.rollout, pause_s), train=_pausing(job.train, pause_s))


def _pausing(phase: PhaseSpec, pause_s: float) -> PhaseSpec:
    return phase if phase.pause_s is not None else replace(phase, pause_s=pause_s)
