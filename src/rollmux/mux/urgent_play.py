"""`quick_play` for the order by urgency: strict jobs on one node a phase, some of which can pause, or roam.

It must give what `play` gives, to the last millisecond: tests/mux/test_forecast.py holds the two against each other.
"""

from bisect import insort

from rollmux.mux.order import AIM, DEBT, PATIENCE, Pause
from rollmux.mux.play import (
    MAX_TURNS,
    MOST_ITERATIONS,
    JobPlay,
    Played,
    cautious_mean,
    cautious_means,
    cut_short,
    lasting,
)
from rollmux.mux.roaming_lines import RoamingLines

# The steps of a job, in the last two bits of their codes. A rollout or training that pauses does so in a step apart.
TRAIN, SYNC, PAUSING = 1, 2, 3

# So many turns of the slowest job are played where only a verdict is asked for.
TRIAL_TURNS = 10

# Jobs that keep up are late by some bounded time, and a job's limit leaves room for one iteration (`opening_limit_s`).
# So a play is hopeless as soon as a job is later than one iteration, except in the first turns, which hold the waits of
# the common start. It is clear in the first turn in which no job was later than half an iteration, nor later than in
# the turn before. Measured on 1,000 placements that the other tests let through, four in five of which work in plays of
# 120 turns: 12 % are given up that work, 3 % let pass that don't, and half of those are less than 4 % too slow.
HOPELESS, HOPELESS_FROM = 1.0, 2
CLEAR, CLEAR_FROM = 0.5, 3


def urgent_play(  # noqa: C901, PLR0912, PLR0915  one loop, the hottest of all: it calls next to nothing
    jobs: tuple[JobPlay, ...], max_turns: int = MAX_TURNS, limits_ms: tuple[float, ...] | None = None
) -> Played:
    """Each job's steady iteration time when all start together.

    With limits, the play looks for no cycle: it stops as soon as it is clear whether they are met.
    """
    # Step s of job i has the code 4i + s. Every time has a code in its low bits, so that one number says when and which
    # step, and the least of several numbers is the first, ties broken by job.
    low_bits = (4 * len(jobs) - 1).bit_length()
    mask = (1 << low_bits) - 1
    line_at: dict[str, list[int]] = {}  # at each node: its holder, then who waits, by the latest time to begin
    line_of: list[list[int]] = []  # by code, as all lists below except `aim` and `solo`
    lines_of: list[list[list[int]]] = []  # all lines of a step, where it roams
    takes: list[int] = []
    before_due: list[int] = []  # how long before its iteration is due a step must begin, less its code
    pauses: list[Pause | None] = []
    following: list[int] = []
    aim: list[int] = []
    solo: list[int] = []
    code = 0
    for rollout_ms, train_ms, sync_ms, at_rollout, (at_train,), _, _, _, aim_ms, off_rollout, off_train, _ in jobs:
        rollout, train, sync = rollout_ms << low_bits, train_ms << low_bits, sync_ms << low_bits
        # A sync has a line of its own; at the start every job is at the end of its sync.
        rolls = [line_at.setdefault(node, []) for node in at_rollout]
        line_of += rolls[0], line_at.setdefault(at_train, []), [code + SYNC], []
        lines_of += rolls, [line_of[code + TRAIN]], [line_of[code + SYNC]], []
        takes += rollout + code, train + code + 1, sync + code + 2, 0
        before_due += rollout + train + sync - code, train + sync - code - 1, 0, 0
        pauses += off_rollout, off_train, None, None
        following += code + TRAIN, code + SYNC if sync_ms else code, code, 0
        aim.append(aim_ms << low_bits)
        solo.append(rollout_ms + train_ms + sync_ms)
        code += 4
    slowest = solo.index(max(solo))
    lines = [*line_at.values()]

    # The jobs that may lose nothing: any iteration of theirs that takes longer than alone is a miss, however rare.
    hurried = [limit * AIM + 1 < job.aim_ms for job, limit in zip(jobs, limits_ms or (), strict=limits_ms is not None)]
    clear_from = TRIAL_TURNS if any(hurried) else CLEAR_FROM
    # Jobs that may lose so much that their iterations are due earlier than they must be done: late by limit, not `due`.
    patient = {
        i: (int(limit * AIM) << low_bits, 0) for i, limit in enumerate(limits_ms or ()) if limit > PATIENCE * solo[i]
    }  # for each the time that an iteration may take, and by how much it is late

    agenda = list(range(SYNC, 4 * len(jobs), 4))  # when each step under way is over, the next one first
    pausing: dict[int, list[int]] = {}  # the lines of steps that pause, by codes of their own
    ends = [0] * len(takes)  # the numbers of the agenda by code; 0 while the step pauses
    left = [0] * len(takes)  # the time that a step still needs, while it waits or pauses
    due = [0] * len(jobs)
    done: list[list[int]] = [[] for _ in jobs]  # when iterations were complete, in ms; the start counts as one
    seen: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    roams = any(len(job.rollout_nodes) > 1 for job in jobs)
    meets = [False] * len(takes)  # by code, whether a step waits beside one that roams
    if roams:
        roaming = RoamingLines(lines_of, pauses, low_bits, PAUSING, agenda, ends, left, pausing)
        roamed = {id(line) for of in lines_of if len(of) > 1 for line in of}
        meets = [bool(of) and id(of[0]) in roamed for of in lines_of]
    turns, now, turned, to_play = -1, 0, False, MOST_ITERATIONS
    late = late_before = 0.0  # by how many iterations anybody was late, in this turn and in the one before
    hopeless = -1
    while True:
        event = agenda.pop(0)
        code = event & mask
        if turned and event - code > now:  # a turn is over, and all that happened at that instant
            turned = False
            turns += 1
            now_ms = now >> low_bits
            if limits_ms is None:
                # The state leaves out when a waiting step must begin at the latest: this follows from when its
                # iteration is due. The number of steps under way tells which entry is which.
                held = [then - now for then in agenda + due]
                held.append(event - now)
                for line in lines:
                    if len(line) > 1:
                        for then in line[1:]:
                            held.append(left[then & mask])
                if pausing:
                    held += [left[line[0] & mask] for line in pausing.values()]
                if roams:  # which step is at which node
                    held += [line[0] & mask if line else mask for line in lines]
                state = (*held, len(agenda))
                if state in seen:
                    then_ms, counts = seen[state]
                    period_s = (now_ms - then_ms) / 1000
                    rates = [period_s / (len(times) - n) for times, n in zip(done, counts, strict=True)]
                    return Played(tuple(rates), exact=True)
                seen[state] = (now_ms, [*map(len, done)])
            elif hopeless >= 0 and turns >= HOPELESS_FROM:
                return _hopeless(done, limits_ms, now_ms, hopeless)
            elif turns >= clear_from and late <= min(CLEAR, late_before):
                return _clear(done, limits_ms, now_ms)
            if turns == max_turns:
                return cautious_mean([lasting(times[1:], now_ms) for times in done])
            late, late_before, hopeless = 0.0, late, -1
        now = event - code
        if pausing and code in pausing:
            if meets[pausing[code][0] & mask]:
                roaming.paused(code, now)
                continue
            line = pausing.pop(code)
            insort(line, line.pop(0), 1)  # it waits again; the step that made it pause begins, or a more urgent one
            first = line[0] & mask
            ends[first] = end = now + left[first]
            insort(agenda, end)
            continue
        if meets[code]:
            roaming.free(code, now)
        else:
            line = line_of[code]  # the line of the node that the step gives back
            del line[0]
            if line:
                first = line[0] & mask
                ends[first] = end = now + left[first]
                insort(agenda, end)
        code = following[code]
        i = code >> 2
        if code & 3:
            begin = due[i] - before_due[code]
        else:  # an iteration is complete
            begin = due[i]
            if begin > now:
                begin = now + aim[i]
            else:
                behind = (now - begin) / aim[i]
                if i in patient and done[i]:
                    may_take, owed = patient[i]
                    owed = max(0, owed + now - (done[i][-1] << low_bits) - may_take)
                    patient[i] = may_take, owed
                    behind = owed / may_take
                if behind > late:
                    late = behind
                    if late > HOPELESS:
                        hopeless = i
                if behind and hurried and hurried[i] and (now >> low_bits) - done[i][-1] > solo[i]:
                    hopeless = i
                oldest = now - DEBT * aim[i]  # `next_due`, without a call
                begin = aim[i] + (begin if begin > oldest else oldest)
            due[i] = begin
            done[i].append(now >> low_bits)
            to_play -= 1
            if to_play <= 0:
                return cut_short(done, now >> low_bits, slowest, solo[slowest], limits_ms)
            if i == slowest:
                turned = True
            begin -= before_due[code]
        # The job gets the node of its next step, waits for it, or makes its holder pause.
        if meets[code]:
            roaming.request(code, begin, takes[code], now)
            continue
        line = line_of[code]
        if not line:
            line.append(begin)
            ends[code] = end = now + takes[code]
            insort(agenda, end)
            continue
        left[code] = takes[code]
        insort(line, begin, 1)
        holder = line[0] & mask
        pause = pauses[holder]
        if line[1] != begin or begin > line[0] or pause is None:
            continue
        off, on = pause
        free_at = ends[holder]
        if free_at <= begin | mask or free_at <= now + (off + on << low_bits) | mask:
            continue
        agenda.remove(free_at)
        left[holder] = free_at - now + (on << low_bits)
        if off:
            pausing[holder | PAUSING] = line
            ends[holder] = 0
            insort(agenda, now + (off << low_bits) + (holder | PAUSING))
        else:
            line.sort()
            ends[code] = end = now + takes[code]
            insort(agenda, end)


def _hopeless(done: list[list[int]], limits_ms: tuple[float, ...], now: int, job: int) -> Played:
    """The means so far; that of the job that can't keep up is over its limit."""
    means = _means(done, now)
    means[job] = max(means[job], limits_ms[job] / 1000 * (1 + HOPELESS / len(done[job])))
    return Played(tuple(means), exact=False)


def _clear(done: list[list[int]], limits_ms: tuple[float, ...], now: int) -> Played:
    """The means so far, none over its limit."""
    paces = []
    for mean, limit_ms in zip(_means(done, now), limits_ms, strict=True):
        limit_s = limit_ms / 1000
        paces.append(limit_s if limit_s < mean else mean)
    return Played(tuple(paces), exact=False)


def _means(done: list[list[int]], now: int) -> list[float]:
    return cautious_means([times if len(times) > 1 else lasting(times, now) for times in done])
