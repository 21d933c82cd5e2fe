"""How slowly a job may go on: what its SLO allows over its whole life, less what it has used up.

An SLO bounds the mean iteration time. A job that says how many iterations it has may therefore make up for time that a
move or a crowd cost it, and may spend what it gained while it was alone.
"""

from rollmux.mux.job import JobSpec

# Kept back for waits that no steady pace shows: this part of an iteration for each that is left, one in all at most.
RESERVE_PART = 0.05
# A limit that would rise by less than STEP stays as it is; a limit that falls does so by MARGIN more than it must.
STEP = 0.02
MARGIN = 0.005
# A job that has gained much could be slowed very much at its end. Its limit is at most so many times the one that its
# SLO sets, for when the job ends the others meet anew.
LOOSEST = 1.5


def limit_now_s(job: JobSpec, synced: int, spent_s: float) -> float | None:
    """The slowest pace from here on that keeps the SLO; None where the number of iterations is not known.

    `spent_s` is the job's time from its first start to its latest sync, with whatever else it is about to lose.
    """
    if job.iterations is None or synced >= job.iterations:
        return None
    return (job.limit_s * job.iterations - spent_s) / (job.iterations - synced)


def followed(old_s: float, now_s: float, job: JobSpec, left: int) -> float:
    """The limit to go by: it falls at once, and rises only by a step or more and with something kept back."""
    if now_s < old_s and old_s > job.solo_s:
        return max(now_s * (1 - MARGIN), job.solo_s)
    kept_back_s = job.solo_s * min(1.0, left * RESERVE_PART) / left
    higher_s = min(now_s - kept_back_s, job.limit_s * LOOSEST)
    return higher_s if higher_s > old_s * (1 + STEP) else old_s
