"""Trying one placement in one group: the parts that all policies share."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Pool
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, NodeUse
from rollmux.mux.plan import Candidate, Plan, Strategy, Trail, Verdict, memory_problem, own_groups, strategy_of
from rollmux.mux.snapshot import NewNode, Snapshot

# A job that wants many nodes of a group with many kinds of nodes could be pinned in very many ways.
CHOICES_LIMIT = 8


class Widening(NamedTuple):
    """Nodes that a placement adds to an existing group, and what they cost."""

    rollout: tuple[str, ...]
    train: tuple[str, ...]
    added_usd_per_hour: float
    strategy: Strategy
    new_nodes: tuple[NewNode, ...]


_NO_WIDER = Widening((), (), 0.0, Strategy.DIRECT, ())


def widening(snapshot: Snapshot, new_rollout: int, new_train: int) -> Widening | None:
    """So many new nodes of each pool, or None where the pools can't give them."""
    if not (new_rollout or new_train):
        return _NO_WIDER
    cluster = snapshot.cluster
    rollout = snapshot.offer(cluster.rollout, new_rollout)
    train = snapshot.offer(cluster.train, new_train, skip=new_rollout if cluster.shared else 0)
    if rollout is None or train is None:
        return None
    usd = new_rollout * cluster.rollout.node_type.usd_per_hour + new_train * cluster.train.node_type.usd_per_hour
    new = [(cluster.rollout.name, node) for node in rollout] + [(cluster.train.name, node) for node in train]
    return Widening(rollout, train, usd, strategy_of(new_rollout, new_train), tuple(new))


def works(plan: Plan, snapshot: Snapshot, forecaster: Forecaster, trail: Trail | None, fits: bool = False) -> bool:
    """Whether the plan fits host memory (unless that is known) and every SLO; a refusal is left in the trail."""
    trouble = None if fits else memory_problem(snapshot, plan.group)
    if trouble is not None:
        node, needed, room = trouble
        if trail is not None:
            trail.add(refusal(plan, Verdict.MEMORY, node, needed, room))
        return False
    late = forecaster.late(plan.group)
    if late is not None:
        member, iteration_s = late
        if trail is not None:
            trail.add(refusal(plan, Verdict.SLO, member.job.id, iteration_s, member.limit_s))
        return False
    return True


def refusal(plan: Plan, verdict: Verdict, subject: str = "", value: float = 0.0, limit: float = 0.0) -> Candidate:
    return Candidate(plan.group.id, plan.strategy, plan.added_usd_per_hour, verdict, subject, value, limit)


def packed(group: Group, member: Member, added: Widening) -> Plan:
    """The plan that puts a member into an existing group."""
    return Plan(member.job.id, added.strategy, group.joined_by(member), added.new_nodes, added.added_usd_per_hour)


def place_alone(
    job: JobSpec, snapshot: Snapshot, order: Order, forecaster: Forecaster, trail: Trail | None
) -> Plan | None:
    """The cheapest new group that this job can have, or None where there are no nodes for it."""
    empty = Group(f"group-{snapshot.next_group}", (), order)
    for plan in own_groups(job, snapshot, empty):
        if works(plan, snapshot, forecaster, trail):
            return plan
    if trail is None:
        return None
    cluster, rollout, train = snapshot.cluster, job.rollout.nodes, job.train.nodes
    if cluster.shared:
        _report_shortage(cluster.rollout, (max(rollout, train), rollout + train), snapshot, empty, trail)
    else:
        rollout_usd, train_usd = (pool.node_type.usd_per_hour for pool in cluster.pools)
        _report_shortage(cluster.rollout, (rollout,), snapshot, empty, trail, train * train_usd)
        _report_shortage(cluster.train, (train,), snapshot, empty, trail, rollout * rollout_usd)
    return None


def _report_shortage(
    pool: Pool, ways: tuple[int, ...], snapshot: Snapshot, empty: Group, trail: Trail, others_usd: float = 0.0
) -> None:
    """Notes the smallest number of nodes that a group could have and the pool lacks: fewer were there and did not do.

    `others_usd` is what the group's nodes of the other pool would cost.
    """
    room = snapshot.room(pool)
    wanted = ways[0] if room is None else next((way for way in ways if way > room), room)
    if room is not None and room < wanted:
        usd = wanted * pool.node_type.usd_per_hour + others_usd
        trail.add(Candidate(empty.id, Strategy.ISOLATED, usd, Verdict.NO_NODES, pool.name, wanted, room))


def choices(nodes: tuple[str, ...], uses: Mapping[str, NodeUse], count: int) -> Iterator[tuple[str, ...]]:
    """Ways to pin a phase to `count` of these nodes, the first preferred; nodes with the same tenants are one choice.

    For one node, each kind of node. For more, runs of neighbours in the order given.
    """
    if count == 0:
        yield ()
        return
    if count == len(nodes):
        yield nodes
        return
    seen: set[object] = set()
    for i in range(len(nodes) - count + 1):
        chosen = nodes[i : i + count]
        kind = tuple([uses[node].tenants for node in chosen])
        if kind not in seen:
            seen.add(kind)
            yield chosen
        if len(seen) == CHOICES_LIMIT:
            return
