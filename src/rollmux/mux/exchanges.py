"""Which jobs should change places with each other: taken out together and placed anew, in their own groups too.

A single move needs a place that is free already. In an exchange a place may become free only when another job leaves
it, so it can't be reserved: all jobs of the exchange stop first, and each waits for the last (`exchanger.py`). This
wait counts in the cost and in the SLOs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.moves import Movable, Moves, place_mover
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Plan
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.totals import total
from rollmux.mux.worth import burden_usd_per_hour, most_worth_usd_per_hour, steady_worth_usd, worth_usd

# So many sets of jobs are tried in a look, those that could gain the most first. Half of all sets that pay are among
# the first thirty; with a hundred a dense cluster is 1 % cheaper, with more it is not (docs/design/placement.md).
TRIES = 100
# Of a node's tenants, so many at most are placed anew together.
MOST = 4
# An iteration under way may take so many times its mean.
LATEST = 1.5

Crew = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """Where a job of an exchange begins anew; `order` is that of its new group, `lost_s` what beginning anew loses."""

    group_id: str
    member: Member
    order: Order
    lost_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running job that may take part in an exchange: its group, and what a move costs it."""

    group_id: str
    movable: Movable


def exchange(
    near: Iterable[str], snapshot: Snapshot, able: Mapping[str, Candidate], policy: Policy, horizon_s: float
) -> Moves | None:
    """The most profitable exchange, or None if none pays; of a crew of two, one job is in a group of `near`."""
    best: Moves | None = None
    for most_usd, crew in _promising(frozenset(near), snapshot, able, policy.forecaster, horizon_s)[:TRIES]:
        gain_usd = best.gain_usd if best is not None else 0.0
        if most_usd <= gain_usd:
            break
        best = _tried(crew, snapshot, able, policy, horizon_s, gain_usd) or best
    return best


def patience_s(crew: Iterable[Movable]) -> float:
    """How long the jobs may take to reach their safe points: one that keeps up is late by half an iteration at most."""
    return LATEST * max(movable.pace_s for movable in crew)


def lifted(snapshot: Snapshot, crew: Iterable[tuple[str, str]]) -> Snapshot:
    """The cluster once these jobs, by group, have left: any of them may then use the nodes that nobody uses."""
    groups, idle = dict(snapshot.groups), dict(snapshot.idle)
    homes: dict[str, list[str]] = {}
    for group_id, job_id in crew:
        homes.setdefault(group_id, []).append(job_id)
    for group_id, leavers in homes.items():
        group = groups[group_id]
        groups[group_id] = group.left_by_all(leavers)
        kept = {*groups[group_id].nodes, *snapshot.shunned}
        for pool, nodes in snapshot.by_pool(group):
            idle[pool.name] = idle.get(pool.name, ()) + tuple(node for node in nodes if node not in kept)
        if not groups[group_id].members:
            del groups[group_id]
    return replace(snapshot, groups=groups, idle=idle)


def _promising(
    near: frozenset[str],
    snapshot: Snapshot,
    able: Mapping[str, Candidate],
    forecaster: Forecaster,
    horizon_s: float,
) -> list[tuple[float, Crew]]:
    """The crews that could gain anything, each with the most that it could gain, the largest gain first."""
    cluster = snapshot.cluster
    home = {name: candidate.group_id for name, candidate in able.items()}
    remaining_s = {name: candidate.movable.remaining_s for name, candidate in able.items()}
    worth = {name: most_worth_usd_per_hour(candidate.movable.job, cluster) for name, candidate in able.items()}
    alone = {name: _freed_usd([name], snapshot, able, forecaster) for name in able}
    cost = {name: worth[name] * candidate.movable.lost_s / 3600 for name, candidate in able.items()}
    found = []
    for number, crew in enumerate(_crews(near, snapshot, able)):
        apart = len({home[name] for name in crew}) == len(crew)
        most = total([alone[name] for name in crew]) if apart else _freed_usd(crew, snapshot, able, forecaster)
        hours = min(horizon_s, max([remaining_s[name] for name in crew])) / 3600
        gain = (most + total([worth[name] for name in crew])) * hours - total([cost[name] for name in crew])
        if gain > 0:
            found.append((-gain, number, crew))
    return [(-gain, crew) for gain, _, crew in sorted(found)]


def _crews(near: frozenset[str], snapshot: Snapshot, able: Mapping[str, Candidate]) -> Iterator[Crew]:
    """Each job by itself, the tenants of each node, and any two jobs of which one is near."""
    for name in able:
        yield (name,)
    seen = set()
    for group in snapshot.groups.values():
        for use in group.uses.values():
            crew = tuple(dict.fromkeys(tenant.job_id for tenant in use.tenants))
            if 2 < len(crew) <= MOST and crew not in seen and all(name in able for name in crew):
                seen.add(crew)
                yield crew
    for one, other in combinations(able, 2):
        if able[one].group_id in near or able[other].group_id in near:
            yield one, other


def _tried(
    crew: Crew,
    snapshot: Snapshot,
    able: Mapping[str, Candidate],
    policy: Policy,
    horizon_s: float,
    gain_usd: float,
) -> Moves | None:
    """Places the crew anew, the longest iteration first, if that gains more than `gain_usd` by the whole forecast."""
    leavers = sorted(_waiting([able[name].movable for name in crew]), key=lambda movable: -movable.job.solo_s)
    if any(leaver.limit_s is not None and leaver.limit_s < leaver.job.solo_s for leaver in leavers):
        return None  # one of them can't afford the wait
    cluster, forecaster = snapshot.cluster, policy.forecaster
    cost, hours = _cost_usd(leavers, cluster), _hours(leavers, horizon_s)
    if hours <= 0:
        return None  # the others of a crew may have stayed, and these are at their ends
    after = lifted(snapshot, [(able[name].group_id, name) for name in crew])
    budget = _freed_usd(crew, snapshot, able, forecaster) - (cost + gain_usd) / hours
    to_gain = total(most_worth_usd_per_hour(leaver.job, cluster) for leaver in leavers)
    plans: list[Plan] = []
    for leaver in leavers:
        to_gain -= most_worth_usd_per_hour(leaver.job, cluster)
        plan = place_mover(leaver, after, policy, budget + to_gain).plan
        if plan is None or any(node not in after.idle.get(pool, ()) for pool, node in plan.new_nodes):
            return None  # it would take nodes that are still to come
        budget -= burden_usd_per_hour(plan, after, forecaster)
        after = after.with_group(plan.group, plan.new_nodes)
        plans.append(plan)
    if budget <= 0:
        return None
    movers = tuple(plan.job_id for plan in plans if plan.placement != _home(plan.job_id, snapshot, able))
    if len(movers) < len(crew):  # some may as well stay
        return _tried(movers, snapshot, able, policy, horizon_s, gain_usd) if movers else None
    changed = {able[name].group_id for name in crew} | {plan.group.id for plan in plans}
    saved = total(
        _burden(snapshot.groups.get(group_id), cluster, forecaster)
        - _burden(after.groups.get(group_id), cluster, forecaster)
        for group_id in sorted(changed)
    )
    gain = saved * hours - cost
    return Moves(tuple(plans), saved, cost, gain) if gain > gain_usd else None


def _home(name: str, snapshot: Snapshot, able: Mapping[str, Candidate]) -> Placement:
    return snapshot.groups[able[name].group_id].member(name).placement


def _waiting(leavers: Sequence[Movable]) -> list[Movable]:
    """The same jobs, each of which may have to wait for the others: its limit bears the whole wait, its cost half."""
    if len(leavers) == 1:
        return [*leavers]
    waiting = []
    for leaver in leavers:
        wait_s = max((other.pace_s for other in leavers if other is not leaver), default=0.0)
        limit_s = leaver.limit_s
        if limit_s is not None and leaver.left:
            limit_s -= wait_s / leaver.left
        lost_s = leaver.lost_s + wait_s / 2
        waiting.append(Movable(leaver.job, leaver.remaining_s, lost_s, limit_s, leaver.left, leaver.pace_s))
    return waiting


def _hours(leavers: Sequence[Movable], horizon_s: float) -> float:
    return min(horizon_s, max(leaver.remaining_s for leaver in leavers)) / 3600


def _cost_usd(leavers: Sequence[Movable], cluster: Cluster) -> float:
    """The worth of the work that these jobs don't do meanwhile: others go on using the nodes."""
    return total(most_worth_usd_per_hour(leaver.job, cluster) * leaver.lost_s / 3600 for leaver in leavers)


def _freed_usd(crew: Iterable[str], snapshot: Snapshot, able: Mapping[str, Candidate], forecaster: Forecaster) -> float:
    """The price of the nodes that are free once the crew has left, less the worth of the work that it takes along."""
    cluster, freed = snapshot.cluster, 0.0
    homes: dict[str, list[str]] = {}
    for name in crew:
        homes.setdefault(able[name].group_id, []).append(name)
    for group_id, leavers in homes.items():
        group = snapshot.groups[group_id]
        rest = group.left_by_all(leavers)
        freed += group.usd_per_hour(cluster) - rest.usd_per_hour(cluster)
        freed -= worth_usd(group, cluster, forecaster) - worth_usd(rest, cluster, forecaster)
    return freed


def _burden(group: Group | None, cluster: Cluster, forecaster: Forecaster) -> float:
    if group is None:
        return 0.0
    return group.usd_per_hour(cluster) - steady_worth_usd(group, cluster, forecaster)
