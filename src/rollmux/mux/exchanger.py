"""Sees an exchange through: its jobs stop at their safe points, and all begin anew once the last has stopped.

Until then each job keeps its place, so no promise depends on what is still to happen, and if the exchange is called off
every job is back where it was. At most one exchange is under way; its groups take no newcomers meanwhile.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from rollmux.errors import InvariantViolated
from rollmux.mux.cluster_state import ClusterState, Commands
from rollmux.mux.exchanges import Swap, lifted, patience_s
from rollmux.mux.group import Group
from rollmux.mux.moves import Movable, Moves
from rollmux.mux.plan import Plan, check_plan, strategy_of
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.totals import total
from rollmux.mux.transitions import Job


class Exchanger:
    """Exchanges the places of jobs in one cluster."""

    __slots__ = ("state",)

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def agree(self, now: float, moves: Moves, crew: Mapping[str, Movable]) -> bool:
        """Agrees that these jobs change places; False where that would break a promise."""
        state = self.state
        fresh = {plan.group.id for plan in moves.plans} - state.groups.keys()
        for plan in moves.plans:
            lost_s = crew[plan.job_id].lost_s
            state.swaps[plan.job_id] = Swap(plan.group.id, plan.group.members[-1], plan.group.order, lost_s)
        if self._plans(now) is None:
            state.swaps = {}
            return False
        state.next_group += len(fresh)  # no other group may take the names of the new ones
        state.swaps_until = now + patience_s(crew.values()) + state.rules.timing.drain_s
        for plan in moves.plans:
            record = state.jobs[plan.job_id]
            record.settled_until = now + moves.payback_s
            record.moving_because = "an exchange of places saves more than it costs"
        return True

    def is_ripe(self) -> bool:
        """Whether all jobs of the exchange have stopped."""
        state = self.state
        return bool(state.swaps) and all(state.jobs[name].state is Job.PROVISIONING for name in state.swaps)

    def make(self, now: float, out: Commands) -> list[str]:
        """All jobs change places at once, or none if the places are not what they were; returns the groups left."""
        state = self.state
        plans = self._plans(now)
        if plans is None:
            self.call_off(out)
            return []
        state.swaps, state.swaps_until = {}, inf
        left = [state.jobs[plan.job_id].group_id for plan in plans]
        unused = [node for plan, home in zip(plans, left, strict=True) for node in state.leave(plan.job_id, home)]
        for plan in plans:
            record = state.jobs[plan.job_id]
            state.pin(plan, out)
            record.group_id, record.placement = plan.group.id, plan.placement
        taken = {node for plan in plans for _, node in plan.new_nodes}
        state.book.free([node for node in unused if node not in taken], out)
        for plan in plans:
            state.launch_if_ready(state.jobs[plan.job_id], out)
        return list(dict.fromkeys(left))

    def call_off(self, out: Commands) -> None:
        """All jobs keep their places; those that have stopped begin anew there."""
        state = self.state
        swaps, state.swaps, state.swaps_until = state.swaps, {}, inf
        for name in swaps:
            record = state.jobs.get(name)
            if record is None:
                continue
            record.moving_because = ""
            if record.state is Job.PROVISIONING:
                state.launch_if_ready(record, out)

    def _plans(self, now: float) -> list[Plan] | None:
        """The new places one after the other, each checked against the numbered invariants; None if one breaks one."""
        state = self.state
        snapshot = state.snapshot()
        snapshot = lifted(snapshot, [(state.jobs[name].group_id, name) for name in state.swaps])
        plans = []
        for name, swap in state.swaps.items():
            plan = self._plan(now, name, swap, snapshot)
            try:
                check_plan(plan, snapshot, state.policy.forecaster)
            except InvariantViolated:
                return None
            snapshot = snapshot.with_group(plan.group, plan.new_nodes)
            plans.append(plan)
        return plans

    def _plan(self, now: float, name: str, swap: Swap, snapshot: Snapshot) -> Plan:
        """The plan as agreed, but with what was learned of the job since then, and its limit if that has fallen."""
        record, nodes = self.state.jobs[name], swap.member.placement.all_nodes
        limit_s = record.limit_s(now, swap.lost_s)
        at_most_s = record.job.opening_limit_s if limit_s is None else min(swap.member.limit_s, limit_s)
        job = record.job.at_width(len(swap.member.placement.train))
        before = snapshot.groups.get(swap.group_id) or Group(swap.group_id, (), swap.order)
        after = before.joined_by(replace(swap.member, job=job, limit_s=at_most_s))
        new = tuple((pool, node) for pool, idle in snapshot.idle.items() for node in idle if node in nodes)
        cluster = snapshot.cluster
        usd = after.usd_per_hour(cluster) - before.usd_per_hour(cluster)
        rollout = total(pool == cluster.rollout.name for pool, _ in new)
        return Plan(name, strategy_of(rollout, len(new) - rollout), after, new, usd)
