"""Each job's steady iteration time in a group, under the group's own order.

Where a formula is provably equal to the play it is used; else the order is played until it repeats. The steady state
of first-come-first-served can depend on how the jobs first met (docs/design/forecast.md), so the group is played
from two opposite starts and the slower result of each job counts. Results are remembered by what they depend on.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollmux.mux.compiled import fastest_play
from rollmux.mux.group import Group
from rollmux.mux.linked import to_ms
from rollmux.mux.order import Order
from rollmux.mux.placed import Member
from rollmux.mux.play import MAX_TURNS, MOST_IN_GENERAL, JobPlay, Played, play, varied_play
from rollmux.mux.quick_play import is_plain, quick_play
from rollmux.mux.totals import total
from rollmux.mux.urgent_play import TRIAL_TURNS

# Nine in ten plays that are asked for again were made among the last five hundred.
MEMO_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted iteration time of each member, in the group's order; `exact` where every cycle was found."""

    iteration_s: tuple[float, ...]
    exact: bool


class Trial(NamedTuple):
    """The member that misses its SLO by the most, with its iteration time, or None; and estimates for all members."""

    late: tuple[Member, float] | None
    iteration_s: tuple[float, ...]


class Taken(NamedTuple):
    """How long the phases of one iteration held their nodes, and how long its sync took."""

    rollout_s: float
    train_s: float
    sync_s: float


def likely_s(group: Group, taken: Mapping[str, Sequence[Taken]]) -> tuple[float, ...]:
    """Mean iteration time of each member, in the group's order, if its phases go on to vary as they have done.

    Phases that always take their mean come into a rhythm that varying ones never hold: where nodes are nearly full,
    the forecast of that rhythm may be 40 % off (docs/design/forecast.md). The play takes some milliseconds, too long
    for placements, which are judged by bounds and rhythms. The result is kept with the group until its phases take
    other times.
    """
    known: tuple[Mapping[str, Sequence[Taken]], tuple[float, ...]] | None = group.__dict__.get("_likely")
    if known is None or known[0] != taken:
        known = group.__dict__["_likely"] = taken, _likely_s(group, taken)
    return known[1]


def _likely_s(group: Group, taken: Mapping[str, Sequence[Taken]]) -> tuple[float, ...]:
    found = [0.0] * len(group.members)
    for part in group.parts:
        jobs, times_ms = [], []
        for index, job in zip(part.indexes, part.jobs, strict=True):
            mine = taken[group.members[index].job.id]
            jobs.append(job._replace(sync_ms=to_ms(total(each.sync_s for each in mine) / len(mine))))
            times_ms.append([(_held_ms(each.rollout_s), _held_ms(each.train_s)) for each in mine])
        paces = varied_play(tuple(jobs), group.order, times_ms)
        for index, pace_s in zip(part.indexes, paces, strict=True):
            spec = group.members[index].job
            found[index] = max(pace_s, _alone_s(taken[spec.id], spec.staleness))  # the play may end before an iteration
    return tuple(found)


def _alone_s(taken: Sequence[Taken], staleness: int) -> float:
    """How long an iteration with these phases takes alone, at least."""
    rollout_s = total(each.rollout_s for each in taken) / len(taken)
    rest_s = total(each.train_s + each.sync_s for each in taken) / len(taken)
    return max(rollout_s, rest_s) if staleness else rollout_s + rest_s


def _held_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class Forecaster:
    """Forecasts with a bounded memory. The memory changes how fast an answer comes, never the answer."""

    __slots__ = ("_memo",)

    def __init__(self) -> None:
        self._memo: OrderedDict[object, Played] = OrderedDict()  # a dict would look ever longer for its first key

    def forecast(self, group: Group) -> Forecast:
        """Steady iteration times of all members: for each the slowest result of the starts that matter."""
        known: tuple[Forecaster, Forecast] | None = group.__dict__.get("_forecast")
        if known is None or known[0] is not self:
            known = group.__dict__["_forecast"] = self, self._forecast(group)
        return known[1]

    def _forecast(self, group: Group) -> Forecast:
        slowest = [0.0] * len(group.members)
        exact = True
        for part in group.parts:
            for start in _STARTS[group.order]:
                played = self._played(part.jobs[::start], group.order, None)
                exact &= played.exact
                for i, iteration_s in zip(part.indexes[::start], played.iteration_s, strict=True):
                    slowest[i] = max(slowest[i], iteration_s)
        if not exact:  # a burst of rollouts that ran ahead may have made a mean over a few turns too low
            slowest = [max(pace, to_ms(m.job.solo_s) / 1000) for pace, m in zip(slowest, group.members, strict=True)]
        if group.order is Order.URGENCY and not exact and self.late(group) is None:
            # A job that falls behind goes first, so means over a few turns are too high where all jobs keep up.
            slowest = [min(pace, max(m.limit_s, m.job.solo_s)) for pace, m in zip(slowest, group.members, strict=True)]
        return Forecast(tuple(slowest), exact)

    def late(self, group: Group) -> tuple[Member, float] | None:
        """The member that misses its SLO by the most, with its iteration time; None if all meet theirs.

        Once a play shows a miss no more is played, so the time of a late job is an estimate.
        """
        return self.trial(group).late

    def trial(self, group: Group) -> Trial:
        """Whether all members meet their SLOs, and a first estimate of their iteration times."""
        known: tuple[Forecaster, Trial] | None = group.__dict__.get("_tried")
        if known is None or known[0] is not self:
            known = group.__dict__["_tried"] = self, self._tried(group)
        return known[1]

    def _tried(self, group: Group) -> Trial:
        limits_s = [member.limit_s for member in group.members]
        slowest = [0.0] * len(limits_s)
        for part in group.parts:
            for start in _STARTS[group.order]:
                indexes, jobs = (part.indexes, part.jobs) if start == 1 else (part.indexes[::start], part.jobs[::start])
                played = self._played(jobs, group.order, tuple([limits_s[i] * 1000 for i in indexes]))
                worst, late = 1 + TOLERANCE, None
                for i, iteration_s in zip(indexes, played.iteration_s, strict=True):
                    slowest[i] = max(slowest[i], iteration_s)
                    if iteration_s > worst * limits_s[i]:
                        worst, late = iteration_s / limits_s[i], (group.members[i], iteration_s)
                if late is not None:
                    paces = [
                        pace or max(m.limit_s, m.job.solo_s) for pace, m in zip(slowest, group.members, strict=True)
                    ]
                    return Trial(late, tuple(paces))
        return Trial(self._stuck(group), tuple(slowest))

    def _stuck(self, group: Group) -> tuple[Member, float] | None:
        """A member that could not afford to leave, and misses its SLO in a whole play or by its cautious mean."""
        for part in group.parts if group.order is Order.URGENCY else ():
            stuck = [member.is_stuck for member in [group.members[index] for index in part.indexes]]
            if any(stuck):
                played = self._played(part.jobs, group.order, None)
                for index, pace_s, is_stuck in zip(part.indexes, played.iteration_s, stuck, strict=True):
                    member = group.members[index]
                    if is_stuck and pace_s > (1 + TOLERANCE) * member.limit_s:
                        return member, pace_s
        return None

    def _played(self, jobs: tuple[JobPlay, ...], order: Order, limits_ms: tuple[float, ...] | None) -> Played:
        known = closed_form(jobs, order)
        if known is not None:
            return known
        key = (order, jobs, limits_ms)
        found = self._memo.get(key)
        if found is not None:
            self._memo.move_to_end(key)
        else:
            found = _quickest(jobs, order, limits_ms)
            if found.exact and limits_ms is not None:
                self._remember((order, jobs, None), found)  # a play to the end finds the same cycle
            self._remember(key, found)
        return found

    def _remember(self, key: object, played: Played) -> None:
        if len(self._memo) >= MEMO_LIMIT:
            self._memo.popitem(last=False)
        self._memo[key] = played


# The jobs meet in the order of joining, or in reverse. By urgency it makes no difference: how late each job is decides
# who goes first, however they met (one placement in 200 works from one start and not from the other).
_STARTS: dict[Order, tuple[int, ...]] = {Order.FIFO: (1, -1), Order.ROUND_ROBIN: (1, -1), Order.URGENCY: (1,)}

# Forgives the last bits of the division by which an iteration time is made.
TOLERANCE = 1e-9


def _quickest(jobs: tuple[JobPlay, ...], order: Order, limits_ms: tuple[float, ...] | None) -> Played:
    if not is_plain(jobs, order):
        return play(jobs, order, limits_ms=limits_ms, most=MOST_IN_GENERAL)
    if order is Order.URGENCY:
        return fastest_play(jobs, MAX_TURNS if limits_ms is None else TRIAL_TURNS, limits_ms)
    return quick_play(jobs, limits_ms=limits_ms)


def closed_form(jobs: tuple[JobPlay, ...], order: Order) -> Played | None:
    """The iteration times where a formula equals the play, else None.

    Alone, a job is as fast as its own phases allow. Strict jobs that all hold the same nodes and need no sync
    keep one order for ever, so that each takes the longest of: all rollouts, all trainings, the slowest job alone.
    """
    first = jobs[0]
    if len(jobs) > 1 and order is Order.URGENCY:
        return None
    apart = set(first.rollout_nodes).isdisjoint(first.train_nodes)
    if len(jobs) == 1:
        solo, rest = first.rollout_ms + first.train_ms + first.sync_ms, first.train_ms + first.sync_ms
        if first.staleness == 0:
            return Played((solo / 1000,), exact=True)
        return Played((max(first.rollout_ms, rest) / 1000,), exact=True) if apart else None
    for job in jobs:
        roams = 0 < job.rollout_wants < len(job.rollout_nodes)
        if job.staleness or job.sync_ms or job.elastic or job.tail or roams:
            return None
        if job.rollout_nodes != first.rollout_nodes or job.train_nodes != first.train_nodes:
            return None
    if not apart:
        return None
    cycle_ms = max(
        total(job.rollout_ms for job in jobs),
        total(job.train_ms for job in jobs),
        max(job.rollout_ms + job.train_ms for job in jobs),
    )
    return Played((cycle_ms / 1000,) * len(jobs), exact=True)
