"""The common case of `play`, some five times faster: strict jobs on one node a phase, first come first served.

Each job then does exactly one thing at a time, so that two short lists replace the heap and the book of turns. It must
give what `play` gives, to the last millisecond: tests/mux/test_forecast.py holds the two against each other.
"""

from rollmux.mux.order import Order
from rollmux.mux.play import MAX_TURNS, MOST_ITERATIONS, JobPlay, Played, cautious_mean, cut_short, lasting

WAITING = 1 << 62  # later than anything that happens


def is_plain(jobs: tuple[JobPlay, ...], order: Order) -> bool:
    """Whether a quick play may stand in for `play`."""
    for job in jobs:
        if len(job.train_nodes) > 1 or job.staleness or job.elastic or job.tail:
            return False
        if len(job.rollout_nodes) > 1 and not (job.rollout_wants == 1 and order is Order.URGENCY):
            return False
    return order is not Order.ROUND_ROBIN


def quick_play(jobs: tuple[JobPlay, ...], limits_ms: tuple[float, ...] | None = None) -> Played:
    """Each job's steady iteration time when all start together, in the order given.

    With limits, the play stops as soon as it is clear whether they are met, with the means so far.
    """
    # Steps of job i: 3i rollout, 3i + 1 train, 3i + 2 sync. Each has its place: the first in line there is served.
    lines: dict[object, list[int]] = {}
    line_of: list[list[int]] = []
    takes_ms: list[int] = []
    next_step: list[int] = []
    for i, job in enumerate(jobs):
        for place in (job.rollout_nodes[0], job.train_nodes[0], i):
            line_of.append(lines.setdefault(place, []))
        takes_ms += job.rollout_ms, job.train_ms, job.sync_ms
        next_step += 3 * i + 1, 3 * i + 2 if job.sync_ms else 3 * i, 3 * i
    ends = [True, False, False] * len(jobs)  # a rollout begins where an iteration has ended
    step = list(range(2, 3 * len(jobs), 3))
    next_at = [0] * len(jobs)  # when the job's step is over
    for i in range(len(jobs)):
        line_of[step[i]].append(i)
    done: list[list[int]] = [[] for _ in jobs]  # when iterations were complete; the start counts as one
    solo = [job.rollout_ms + job.train_ms + job.sync_ms for job in jobs]
    slowest = solo.index(max(solo))
    seen: dict[object, tuple[int, list[int]]] = {}
    turns, to_play = -1, MOST_ITERATIONS
    while turns < MAX_TURNS:
        now = min(next_at)
        i = next_at.index(now)
        at_step = step[i]
        line = line_of[at_step]
        del line[0]
        if line:
            first = line[0]
            next_at[first] = now + takes_ms[step[first]]
        step[i] = at_step = next_step[at_step]
        line = line_of[at_step]
        next_at[i] = WAITING if line else now + takes_ms[at_step]
        line.append(i)
        if not ends[at_step]:
            continue
        done[i].append(now)
        to_play -= 1
        if to_play <= 0:
            return cut_short(done, now, slowest, solo[slowest], limits_ms)
        if i != slowest:
            continue
        turns += 1
        state = (*[at - now if at < WAITING else -1 for at in next_at], *step, *map(tuple, lines.values()))
        if state in seen:
            then, counts = seen[state]
            rates = tuple([(now - then) / 1000 / (len(times) - n) for times, n in zip(done, counts, strict=True)])
            return Played(rates, exact=True)
        seen[state] = (now, [*map(len, done)])
        if limits_ms is not None and verdict_is_clear(done, limits_ms, turns):
            return cautious_mean([lasting(times, now) for times in done])
    return cautious_mean([times[1:] for times in done])


# A play's first turns hold the waits of the common start, so a job is given up only when well over its limit then,
# and closer to it later; where nothing repeats, all are let pass once they are well under theirs. Measured on 8,600
# placements that the other tests let through: 7 % of those that work are given up, none that fails is let pass.
_GIVE_UP = {2: 1.3, 3: 1.2, 4: 1.15, 6: 1.1, 8: 1.05, 12: 1.03, 16: 1.02}
_LET_PASS = {8: 0.9, 12: 0.93, 16: 0.95, 24: 0.97}
_VERDICTS = _GIVE_UP.keys() | _LET_PASS.keys()


def verdict_is_clear(done: list[list[int]], limits_ms: tuple[float, ...], turns: int) -> bool:
    """Whether it is as good as certain that some job misses its limit, or that none does."""
    if turns not in _VERDICTS:
        return False
    give_up, let_pass = _GIVE_UP.get(turns), _LET_PASS.get(turns)
    worst = 0.0
    for times, limit_ms in zip(done, limits_ms, strict=True):
        half = len(times) // 2
        if half < len(times) - 1:
            worst = max(worst, (times[-1] - times[half]) / (len(times) - 1 - half) / limit_ms)
    return (give_up is not None and worst > give_up) or (let_pass is not None and worst < let_pass)
