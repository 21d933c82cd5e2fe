"""`quick_play` for the order by urgency: strict jobs on one node a phase, some of which can pause.

It must give what `play` gives, to the last millisecond: tests/mux/test_forecast.py holds the two against each other.
"""

from bisect import insort

from rollmux.mux.order import AIM, next_due
from rollmux.mux.play import MAX_TURNS, JobPlay, Played, cautious_mean, lasting
from rollmux.mux.quick_play import WAITING

# So many turns of the slowest job are played where only a verdict is asked for.
TRIAL_TURNS = 10

# Jobs that keep up are late by some bounded time, and a job's limit leaves room for one iteration (`opening_limit_s`).
# So a play is hopeless as soon as one is later than that, but for the first turns, which hold the waits of the common
# start; and it is clear in the first turn in which nobody was later than half an iteration, nor later than in the turn
# before. Measured on 1,000 placements that the other tests let through, four in five of which work in plays of 120
# turns: 12 % are given up that work, 3 % let pass that don't, and half of those are less than 4 % too slow.
HOPELESS, HOPELESS_FROM = 1.0, 2
CLEAR, CLEAR_FROM = 0.5, 3


def urgent_play(  # noqa: C901, PLR0912, PLR0915  one loop, the hottest of all: it calls nothing
    jobs: tuple[JobPlay, ...], max_turns: int = MAX_TURNS, limits_ms: tuple[float, ...] | None = None
) -> Played:
    """Each job's steady iteration time when all start together.

    With limits, the play looks for no cycle: it stops as soon as it is clear whether they are met.
    """
    everyone = range(len(jobs))
    number: dict[str, int] = {}  # of each node
    for job in jobs:
        for name in (job.rollout_nodes[0], job.train_nodes[0]):
            number.setdefault(name, len(number))
    places = [(number[job.rollout_nodes[0]], number[job.train_nodes[0]]) for job in jobs]
    pauses = [(job.rollout_pause, job.train_pause) for job in jobs]
    rollout, train = [job.rollout_ms for job in jobs], [job.train_ms for job in jobs]
    sync, aim = [job.sync_ms for job in jobs], [job.aim_ms for job in jobs]
    rest = [job.train_ms + job.sync_ms for job in jobs]  # of an iteration, from the training on
    solo = [job.rollout_ms + job.train_ms + job.sync_ms for job in jobs]
    slowest = solo.index(max(solo))

    # Who may lose nothing: an iteration of theirs that takes longer than alone is a miss, however rare.
    hurried = [limit * AIM + 1 < job.aim_ms for job, limit in zip(jobs, limits_ms or (), strict=limits_ms is not None)]
    clear_from = TRIAL_TURNS if any(hurried) else CLEAR_FROM

    lines: list[list[tuple[int, int]]] = [[] for _ in number]  # who waits: the latest time to begin, and the job
    holders = [-1] * len(number)
    step = [2] * len(jobs)  # 0 rollout, 1 training, 2 sync
    next_at = [0] * len(jobs)  # when the step is over, or the pause begun
    left = [0] * len(jobs)  # of the step, while waiting
    latest = [0] * len(jobs)
    due = [0] * len(jobs)
    pausing = [False] * len(jobs)
    done: list[list[int]] = [[] for _ in jobs]  # when iterations were complete; the start counts as one
    seen: dict[object, tuple[int, list[int]]] = {}
    turns, now, turned = -1, 0, False
    late = late_before = 0.0  # by how many iterations anybody was late, in this turn and in the one before
    hopeless = -1
    while turns < max_turns:
        at = min(next_at)
        if turned and at > now:  # a turn is over, and all that happened at that instant
            turned = False
            turns += 1
            if limits_ms is None:
                state = (
                    *[then - now if then < WAITING else -1 for then in next_at],
                    *step,
                    *[then - now for then in due],
                    *[(left[i], latest[i] - now, pausing[i]) if next_at[i] == WAITING else None for i in everyone],
                )
                if state in seen:
                    then, counts = seen[state]
                    rates = [(now - then) / 1000 / (len(times) - n) for times, n in zip(done, counts, strict=True)]
                    return Played(tuple(rates), exact=True)
                seen[state] = (now, [*map(len, done)])
            elif hopeless >= 0 and turns >= HOPELESS_FROM:
                return _hopeless(done, limits_ms, now, hopeless)
            elif turns >= clear_from and late <= min(CLEAR, late_before):
                return _clear(done, limits_ms, now)
            late, late_before, hopeless = 0.0, late, -1
            if turns == max_turns:
                break
        now = at
        i = next_at.index(now)
        at_step = step[i]
        if pausing[i]:
            node = places[i][at_step]
            pausing[i] = False
            line = lines[node]
            holder = holders[node] = line.pop(0)[1]  # whoever made it pause
            next_at[holder] = now + left[holder]
            next_at[i] = WAITING
            insort(line, (latest[i], i))
            continue
        if at_step < 2:  # it gives its node back
            node = places[i][at_step]
            line = lines[node]
            if line:
                holder = holders[node] = line.pop(0)[1]
                next_at[holder] = now + left[holder]
            else:
                holders[node] = -1
        if at_step == 0:
            step[i], left[i], latest[i] = 1, train[i], due[i] - rest[i]
            node = places[i][1]
        elif at_step == 1 and sync[i]:
            step[i], next_at[i] = 2, now + sync[i]
            continue
        else:
            was_due, aim_ms = due[i], aim[i]
            if was_due < now:
                behind = (now - was_due) / aim_ms
                if behind > late:
                    late = behind
                    if late > HOPELESS:
                        hopeless = i
                if hurried and hurried[i] and now - done[i][-1] > solo[i]:
                    hopeless = i
            due[i] = next_due(was_due, now, aim_ms)
            done[i].append(now)
            turned = turned or i == slowest
            step[i], left[i], latest[i] = 0, rollout[i], due[i] - solo[i]
            node = places[i][0]
        # It waits for the node of its step, gets it, or makes its holder pause.
        holder, line, mine = holders[node], lines[node], (latest[i], i)
        if holder < 0:
            holders[node], next_at[i] = i, now + left[i]
            continue
        next_at[i] = WAITING
        insort(line, mine)
        if line[0] is not mine or pausing[holder] or mine > (latest[holder], holder):
            continue
        pause, ends_at = pauses[holder][step[holder]], next_at[holder]
        if pause is None or ends_at <= latest[i] or ends_at <= now + pause[0] + pause[1]:
            continue
        left[holder] = ends_at - now + pause[1]
        if pause[0]:
            pausing[holder], next_at[holder] = True, now + pause[0]
        else:
            line[0] = (latest[holder], holder)
            line.sort()
            next_at[holder] = WAITING
            holders[node], next_at[i] = i, now + left[i]
    return cautious_mean([lasting(times[1:], now) for times in done])


def _hopeless(done: list[list[int]], limits_ms: tuple[float, ...], now: int, job: int) -> Played:
    """The means so far; that of the job that can't keep up is over its limit."""
    means = _means(done, now)
    means[job] = max(means[job], limits_ms[job] / 1000 * (1 + HOPELESS / len(done[job])))
    return Played(tuple(means), exact=False)


def _clear(done: list[list[int]], limits_ms: tuple[float, ...], now: int) -> Played:
    """The means so far, none over its limit."""
    means = [min(mean, limit_ms / 1000) for mean, limit_ms in zip(_means(done, now), limits_ms, strict=True)]
    return Played(tuple(means), exact=False)


def _means(done: list[list[int]], now: int) -> list[float]:
    return [*cautious_mean([lasting(times, now) for times in done]).iteration_s]
