"""Plans, the decisions that led to them, and the numbered checks that every plan passes before it is applied."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rollmux.errors import InvariantViolated
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group, node_type_of
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, Placement
from rollmux.mux.snapshot import NewNode, Snapshot
from rollmux.mux.totals import total

# Prices are sums of products: two ways to add them up may differ in the last bits.
USD_ROUNDING = 1e-6


class Strategy(Enum):
    """What a placement adds to the cluster."""

    DIRECT = "direct packing"
    ROLLOUT_SCALING = "rollout scaling"
    TRAIN_SCALING = "training scaling"
    MIXED_SCALING = "rollout and training scaling"
    ISOLATED = "a new group"


def strategy_of(new_rollout: int, new_train: int) -> Strategy:
    """The strategy that adds so many nodes to an existing group."""
    if new_rollout and new_train:
        return Strategy.MIXED_SCALING
    if new_rollout:
        return Strategy.ROLLOUT_SCALING
    return Strategy.TRAIN_SCALING if new_train else Strategy.DIRECT


@dataclass(frozen=True, slots=True)
class Plan:
    """One job's admission: the group as it will be, the nodes to add, and what that costs per hour."""

    job_id: str
    strategy: Strategy
    group: Group
    new_nodes: tuple[NewNode, ...]
    added_usd_per_hour: float

    @property
    def placement(self) -> Placement:
        return self.group.member(self.job_id).placement


class Verdict(Enum):
    """Why a candidate was not taken, or that it was."""

    TAKEN = "taken"
    DEARER = "dearer"
    BURDEN = "burden"
    SATURATED = "saturated"
    FULL = "full"
    FROZEN = "frozen"
    NO_SLACK = "no slack"
    MEMORY = "memory"
    SHARE = "share"
    SLO = "slo"
    NO_NODES = "no nodes"


class Candidate(NamedTuple):
    """One thing that was tried: where, what it would add per hour, and what came of it.

    `subject` is the node or job that decided; `value` and `limit` are the two numbers compared.
    """

    group_id: str
    strategy: Strategy
    added_usd_per_hour: float
    verdict: Verdict
    subject: str = ""
    value: float = 0.0
    limit: float = 0.0


TRAIL_LIMIT = 64


@dataclass(slots=True)
class Trail:
    """What a decision tried. The first `TRAIL_LIMIT` are kept whole, the rest counted with the nearest miss.

    What comes last and decides is kept whole as well: the place taken, or the pools that have too few nodes.
    """

    candidates: list[Candidate] = field(default_factory=list)
    more: dict[Verdict, tuple[int, Candidate]] = field(default_factory=dict)

    def add(self, candidate: Candidate) -> None:
        if len(self.candidates) < TRAIL_LIMIT or candidate.verdict in (Verdict.TAKEN, Verdict.NO_NODES):
            self.candidates.append(candidate)
            return
        count, nearest = self.more.get(candidate.verdict, (0, candidate))
        if candidate.value - candidate.limit < nearest.value - nearest.limit:
            nearest = candidate
        self.more[candidate.verdict] = (count + 1, nearest)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy answered for one job, and what it tried on the way."""

    job_id: str
    policy: str
    plan: Plan | None
    candidates: tuple[Candidate, ...]
    more: tuple[tuple[int, Candidate], ...] = ()

    @staticmethod
    def of(job: JobSpec, policy: str, plan: Plan | None, trail: Trail) -> "Decision":
        if plan is not None:
            trail.add(Candidate(plan.group.id, plan.strategy, plan.added_usd_per_hour, Verdict.TAKEN))
        return Decision(job.id, policy, plan, tuple(trail.candidates), tuple(trail.more.values()))


def own_groups(job: JobSpec, snapshot: Snapshot, empty: Group) -> Iterator[Plan]:
    """The new groups that a job could have to itself, cheapest first, as far as the pools have nodes.

    Where one pool serves both kinds of phase, both may run on the same nodes. On nodes apart a job always meets
    its SLO.
    """
    cluster = snapshot.cluster
    wanted_rollout, wanted_train = job.rollout.nodes, job.train.nodes
    rollout = snapshot.offer(cluster.rollout, wanted_rollout)
    if cluster.shared:
        both = snapshot.offer(cluster.rollout, max(wanted_rollout, wanted_train))
        if both is not None:
            yield _own_group(job, snapshot, empty, Placement(both[:wanted_rollout], both[:wanted_train]))
        train = snapshot.offer(cluster.train, wanted_train, skip=wanted_rollout)
    else:
        train = snapshot.offer(cluster.train, wanted_train)
    if rollout is not None and train is not None:
        yield _own_group(job, snapshot, empty, Placement(rollout, train))


def _own_group(job: JobSpec, snapshot: Snapshot, empty: Group, placement: Placement) -> Plan:
    cluster = snapshot.cluster
    new = [(cluster.rollout.name, node) for node in placement.rollout]
    new += [(cluster.train.name, node) for node in placement.train if node not in placement.rollout]
    alone = empty.joined_by(Member(job, placement, job.limit_s))  # nobody is there whom it could meet
    return Plan(job.id, Strategy.ISOLATED, alone, tuple(new), alone.usd_per_hour(cluster))


def memory_problem(snapshot: Snapshot, group: Group) -> tuple[str, int, int] | None:
    """The first node whose tenants' state does not fit its host memory: (node, needed, room)."""
    for node, use in group.uses.items():
        room = node_type_of(snapshot.cluster, group, node).room_bytes
        if use.host_bytes > room:
            return node, use.host_bytes, room
    return None


def check_plan(plan: Plan, snapshot: Snapshot, forecaster: Forecaster) -> None:
    """Raises InvariantViolated unless the plan keeps every numbered promise. It changes nothing."""
    before = snapshot.groups.get(plan.group.id) or Group(plan.group.id, (), plan.group.order)
    if plan.group.members[:-1] != before.members or plan.group.members[-1].job.id != plan.job_id:
        raise InvariantViolated("I9", f"the plan for {plan.job_id} changes what is agreed with others in its group")
    _check_shape(plan)
    _check_nodes(plan, before, snapshot)
    trouble = memory_problem(snapshot, plan.group)
    if trouble is not None:
        raise InvariantViolated("I3", "{} would keep {} bytes in host memory, it has {}".format(*trouble))
    late = forecaster.late(plan.group)
    if late is not None:
        member, iteration_s = late
        raise InvariantViolated(
            "I9", f"{member.job.id} would take {iteration_s:g} s an iteration, its SLO allows {member.limit_s:g} s"
        )


def _check_shape(plan: Plan) -> None:
    """I1 and I2: each phase has the distinct nodes it wants, and every new node is named once and used by the job."""
    newcomer = plan.group.members[-1]
    for kind in (ROLLOUT, TRAIN):
        nodes, wanted = newcomer.placement.nodes(kind), newcomer.job.phase(kind).nodes
        most = wanted + newcomer.job.rollout_spares if kind is ROLLOUT else wanted
        if not wanted <= len(nodes) <= most or len(set(nodes)) != len(nodes):
            raise InvariantViolated("I1", f"{plan.job_id} wants {wanted} nodes for its {kind.value}, not {nodes}")
    new = [node for _, node in plan.new_nodes]
    if len(set(new)) != len(new) or not set(new) <= set(newcomer.placement.all_nodes):
        raise InvariantViolated("I2", f"the plan for {plan.job_id} would add {new}, not each of them once and in use")


def _check_nodes(plan: Plan, before: Group, snapshot: Snapshot) -> None:
    """I1 and I2: the job uses its group's nodes and new ones that the pools can give, each for what its pool is for."""
    cluster = snapshot.cluster
    names = [pool.name for pool in cluster.pools]
    for pool in cluster.pools:
        idle = snapshot.idle.get(pool.name, ())
        new = [node for name, node in plan.new_nodes if name == pool.name or name not in names]
        fresh = total(node not in idle for node in new)
        given = snapshot.offer(pool, len(idle) + fresh) if fresh else idle
        if given is None or any(node not in given for node in new):
            raise InvariantViolated("I2", f"{plan.job_id} would add {new}, which pool {pool.name} can't give")
    for pool, nodes, old in (
        (cluster.rollout, plan.placement.rollout, before.nodes if cluster.shared else before.rollout_nodes),
        (cluster.train, plan.placement.train, before.nodes if cluster.shared else before.train_nodes),
    ):
        for node in nodes:
            if node not in old and (pool.name, node) not in plan.new_nodes:
                raise InvariantViolated("I1", f"{plan.job_id} would hold {node}, which its group has not for that")
    usd = plan.group.usd_per_hour(cluster) - before.usd_per_hour(cluster)
    if abs(usd - plan.added_usd_per_hour) > USD_ROUNDING:
        raise InvariantViolated("I2", f"the plan for {plan.job_id} adds {usd:g} USD/h, not {plan.added_usd_per_hour:g}")
