"""How long the latest phases of some jobs took: from this their pace beside each other can be forecast."""

from collections.abc import Collection, Iterable, Mapping

from rollmux.mux.forecast import Taken
from rollmux.mux.job import PhaseKind
from rollmux.service.history.spans import Span

# How many iterations of each job are taken to tell how its phases vary; with fewer than the least, this may be chance.
MOST, LEAST = 32, 4
# How phases that count have ended: a phase that has paused is in several spans.
_COUNT = ("finished", "paused")
_KINDS = tuple(kind.value for kind in PhaseKind)

_Seconds = dict[tuple[int, int], dict[str, float]]  # by attempt (another one does an iteration anew), iteration; kind


def taken_lately(latest_first: Iterable[Span], jobs: Collection[str]) -> Mapping[str, tuple[Taken, ...]] | None:
    """The latest whole iterations of each of these jobs; None if one of them has made too few.

    A job's first iteration is left out: it compiles, and fills caches.
    """
    found: dict[str, _Seconds] = {job: {} for job in jobs}
    open_jobs = set(jobs)
    for span in latest_first:
        if span.job not in open_jobs or span.kind not in _KINDS or span.how not in _COUNT or not span.iteration:
            continue
        mine, key = found[span.job], (span.attempt, span.iteration)
        if key not in mine and len(mine) > MOST + 1:  # one more: the one under way is not whole
            open_jobs.remove(span.job)
            if not open_jobs:
                break
            continue
        seconds = mine.setdefault(key, {})
        seconds[span.kind] = seconds.get(span.kind, 0.0) + span.ended - span.began
    whole = {job: _whole(found[job])[:MOST] for job in jobs}
    return None if any(len(iterations) < LEAST for iterations in whole.values()) else whole


def _whole(iterations: _Seconds) -> tuple[Taken, ...]:
    return tuple(Taken(*(seconds[kind] for kind in _KINDS)) for seconds in iterations.values() if len(seconds) == 3)
