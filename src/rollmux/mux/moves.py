"""When running jobs should change places: to empty nodes that no longer pay, or to keep an SLO.

A move costs a cold start. It is made only if it saves more than that, over the time that the job will still run or that
a plan can be trusted, whichever is shorter. A moved job stays until its move has paid for itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import ROLLOUT, TRAIN, Member
from rollmux.mux.plan import USD_ROUNDING, Decision, Plan
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.totals import total
from rollmux.mux.worth import (
    WORTH,
    burden_usd_per_hour,
    most_idle_usd,
    most_worth_usd_per_hour,
    worth_by_phase,
    worth_usd,
)

# The part of its worth that work gains on new nodes which it fills.
NEW_NODES_GAIN = 1 - 1 / WORTH


class Movable(NamedTuple):
    """A running job that may be moved, as submitted or measured: how long it will still run, and what a move loses.

    `limit_s` is the slowest pace that keeps its SLO after the move, over its `left` iterations (None: the one that the
    job itself says). `pace_s` is how long its iterations take where it is.
    """

    job: JobSpec
    remaining_s: float
    lost_s: float
    limit_s: float | None = None
    left: int | None = None
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Moves:
    """Jobs to move, one plan each, in order; and when these moves have paid for themselves."""

    plans: tuple[Plan, ...]
    saved_usd_per_hour: float
    cost_usd: float
    gain_usd: float = 0.0

    @property
    def payback_s(self) -> float:
        return self.cost_usd / self.saved_usd_per_hour * 3600 if self.saved_usd_per_hour > 0 else 0.0


def compaction(
    group: Group,
    snapshot: Snapshot,
    movable: Mapping[str, Movable],
    policy: Policy,
    horizon_s: float = inf,
    gain_usd: float = 0.0,
) -> Moves | None:
    """The most profitable way to free nodes of this group; None if none gains more than `gain_usd` in the horizon."""
    best: Moves | None = None
    cluster = snapshot.cluster
    for leavers in _leavers(group, movable):
        freed = _freed_usd_per_hour(group, leavers, cluster, policy.forecaster)
        cost = total([_move_usd(movable[m.job.id], snapshot) for m in leavers])
        hours = min(horizon_s, max([movable[m.job.id].remaining_s for m in leavers])) / 3600
        if hours <= 0:
            continue
        # What the new places may add in all, if these moves are to gain more than the best known ones.
        budget = freed - (cost + gain_usd) / hours
        if budget <= -total([most_worth_usd_per_hour(m.job, cluster) for m in leavers]):
            continue
        found = _elsewhere(group, [movable[m.job.id] for m in leavers], snapshot, policy, budget)
        if found is None:
            continue
        plans, burden = found
        saved = freed - burden
        gain = saved * hours - cost
        if gain > gain_usd:
            best, gain_usd = Moves(tuple(plans), saved, cost, gain), gain
    return best


def relief(group: Group, snapshot: Snapshot, movable: Mapping[str, Movable], policy: Policy) -> Moves | None:
    """The cheapest single move after which all jobs that stay meet their SLOs, else one of a late job, or None."""
    best: Moves | None = None
    for member in reversed(group.members):
        rest = group.left_by(member.job.id)
        if member.job.id in movable and (not rest.members or policy.forecaster.late(rest) is None):
            moves = _one_move(group, movable[member.job.id], snapshot, policy)
            if moves is not None and (best is None or moves.saved_usd_per_hour > best.saved_usd_per_hour):
                best = moves
    late = policy.forecaster.late(group)
    if best is None and late is not None and late[0].job.id in movable:
        return _one_move(group, movable[late[0].job.id], snapshot, policy)
    return best


def escape(group: Group, snapshot: Snapshot, leaver: Movable, policy: Policy) -> Moves | None:
    """A place without company for a job that has no more time to lose; None where there are no nodes for it."""
    alone = replace(snapshot, frozen=frozenset(snapshot.groups))
    moves = _one_move(group, leaver, alone, policy)
    if moves is None:
        return None
    (plan,) = moves.plans
    there = plan.group.members[-1]
    hermit = replace(there, apart=True)
    return replace(moves, plans=(replace(plan, group=replace(plan.group, members=(hermit,))),))


def _one_move(group: Group, leaver: Movable, snapshot: Snapshot, policy: Policy) -> Moves | None:
    found = _elsewhere(group, [leaver], snapshot, policy)
    if found is None:
        return None
    plans, _ = found
    rest = group.left_by(leaver.job.id)
    freed = group.usd_per_hour(snapshot.cluster) - rest.usd_per_hour(snapshot.cluster)
    return Moves(tuple(plans), freed - plans[0].added_usd_per_hour, _move_usd(leaver, snapshot))


def _leavers(group: Group, movable: Mapping[str, Movable]) -> Iterator[tuple[Member, ...]]:
    """All jobs, the longest iteration (the hardest to place) first; then each single job whose going frees a node."""
    free = tuple(sorted((m for m in group.members if m.job.id in movable), key=lambda m: -m.job.solo_s))
    if len(free) == len(group.members):
        yield free
    if len(group.members) > 1:
        for member in free:
            if member.job.id in group.sole_tenants:
                yield (member,)


def _elsewhere(
    group: Group, leavers: Sequence[Movable], snapshot: Snapshot, policy: Policy, below_usd: float = inf
) -> tuple[list[Plan], float] | None:
    """A place elsewhere for each of these, one after the other, and the burden of all, which is below `below_usd`."""
    cluster = snapshot.cluster
    snapshot = snapshot.without_newcomers(group.id)
    plans: list[Plan] = []
    burden = 0.0
    to_gain = total([most_worth_usd_per_hour(leaver.job, cluster) for leaver in leavers])  # at most
    for number, leaver in enumerate(leavers, 1):
        rest = leavers[number - 1 :]
        if below_usd < inf and -_most_gained_usd(rest, snapshot, policy.forecaster) >= below_usd - burden:
            return None
        to_gain -= most_worth_usd_per_hour(leaver.job, cluster)
        plan = place_mover(leaver, snapshot, policy, below_usd - burden + to_gain).plan
        if plan is None:
            return None
        plans.append(plan)
        burden += burden_usd_per_hour(plan, snapshot, policy.forecaster)
        if number < len(leavers):
            snapshot = snapshot.with_group(plan.group, plan.new_nodes)
    return (plans, burden) if burden < below_usd else None


def _most_gained_usd(leavers: Sequence[Movable], snapshot: Snapshot, forecaster: Forecaster) -> float:
    """The most that all of these may gain elsewhere, found without a play.

    On a node that is there, no phase gains more than what is left undone; on new nodes, work that fills them gains its
    worth less their price.
    """
    cluster, frozen = snapshot.cluster, snapshot.frozen
    idle = [most_idle_usd(group, cluster, forecaster) for group in snapshot.groups.values() if group.id not in frozen]
    rollout_idle, train_idle, together = map(max, zip(*idle, strict=True)) if idle else (0.0, 0.0, 0.0)
    most = USD_ROUNDING
    for leaver in leavers:
        job, worths = leaver.job, worth_by_phase(leaver.job, cluster)
        # All nodes together may leave less undone than one of them, as the estimate for a node may be below zero.
        there = max(rollout_idle, together) if job.rollout_spares else rollout_idle
        for phase, worth, gained in ((job.rollout, worths[ROLLOUT], there), (job.train, worths[TRAIN], train_idle)):
            most += min(worth, max(gained, worth * NEW_NODES_GAIN)) * phase.nodes
    return most


def place_mover(leaver: Movable, snapshot: Snapshot, policy: Policy, below_usd: float) -> Decision:
    """Where the policy puts a job that may lose only so much time: the policy sees the SLO that this comes to."""
    job, limit_s = leaver.job, leaver.limit_s
    if limit_s is None:
        return policy.place(job, snapshot, below_usd)
    decision = policy.place(job.under(limit_s / job.solo_s, leaver.left), snapshot, below_usd)
    plan = decision.plan
    if plan is None:
        return decision
    newcomer = plan.group.members[-1]
    if newcomer.job.train is not job.train:
        job = replace(job, train=newcomer.job.train)  # at the width that the policy gives it there
    there = plan.group.with_newcomer_as(Member(job, newcomer.placement, newcomer.limit_s))
    plan = Plan(plan.job_id, plan.strategy, there, plan.new_nodes, plan.added_usd_per_hour)
    return Decision(decision.job_id, decision.policy, plan, decision.candidates, decision.more)


@dataclass(frozen=True, slots=True)
class Mindful:
    """A policy for a line in which some jobs have lost their places: it knows what these have used up of their SLOs.

    Such a job goes where it keeps its SLO over its whole life; if there is no such place now, like any newcomer.
    """

    policy: Policy
    back: Mapping[str, Movable]

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def forecaster(self) -> Forecaster:
        return self.policy.forecaster

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        if job.id in self.back:
            decision = place_mover(self.back[job.id], snapshot, self.policy, below_usd)
            if decision.plan is not None:
                return decision
        return self.policy.place(job, snapshot, below_usd)


def _freed_usd_per_hour(group: Group, leavers: tuple[Member, ...], cluster: Cluster, forecaster: Forecaster) -> float:
    """The price of the nodes that go when the leavers go, less the worth of the work that the leavers take along."""
    all_known: dict[object, tuple[Cluster, float]] = group.__dict__.setdefault("_freed", {})  # asked for at every look
    names = tuple([member.job.id for member in leavers])
    known = all_known.get(names)
    if known is None or known[0] is not cluster:
        rest = group.left_by_all(names)
        usd = group.usd_per_hour(cluster) - rest.usd_per_hour(cluster)
        usd -= worth_usd(group, cluster, forecaster)
        known = all_known[names] = cluster, usd + worth_usd(rest, cluster, forecaster)
    return known[1]


def _move_usd(movable: Movable, snapshot: Snapshot) -> float:
    """What the lost work costs: the price of the job's own nodes for as long."""
    return movable.job.usd_per_hour(snapshot.cluster) * movable.lost_s / 3600
