"""Gives jobs abilities of which a workload says nothing: to pause at a price, and to roam."""

from dataclasses import replace

from rollmux.mux.job import JobSpec, PhaseSpec

# The cost of a pause, in addition to moving state as the workload says. At the paper's warm starts (arXiv 2512.11306)
# moving the state of a 32B job off a node and back would take about 3 s in rollout and 12 s in training. How much work
# a paused phase must do again (the KV cache of responses under way, a micro-batch) the paper does not say: it never
# pauses.
PAUSE_S = 10.0

# How many nodes, beyond those that a rollout wants, keep its weights on their hosts, too: few groups have more than
# five nodes.
SPARES = 4


def able(job: JobSpec, pause_s: float = PAUSE_S, spares: int = SPARES) -> JobSpec:
    """The job, whose phases pause at this cost unless they have their own; below 0 they don't pause.

    Its rollout gets so many spare nodes if it names none, and if it always holds as many nodes as it wants.
    """
    whole = job.rollout.nodes == 1 or (job.tail is None and not job.elastic_rollout)
    if spares and whole and not job.rollout_spares:
        job = replace(job, rollout_spares=spares)
    if pause_s < 0:
        return job
    return replace(job, rollout=_pausing(job.rollout, pause_s), train=_pausing(job.train, pause_s))


def _pausing(phase: PhaseSpec, pause_s: float) -> PhaseSpec:
    return phase if phase.pause_s is not None else replace(phase, pause_s=pause_s)
