"""Co-execution groups: which jobs share which nodes, and the arithmetic on that.

A group is a value: adding or removing a job makes a new one. Its nodes are exactly those its jobs are pinned to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollmux.mux.hardware import Cluster, NodeType
from rollmux.mux.job import JobSpec
from rollmux.mux.kept import kept
from rollmux.mux.linked import Part, grown, linked_parts, with_aims
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, UNUSED, Member, NodeUse, Tenant
from rollmux.mux.totals import total

# The remembered values of a group that follow from its places, phases and limits alone.
_OF_PLACES = {"parts", "uses", "_before", "_tried", "_worth"}
# Those that follow from its places and phases, whatever the limits.
_OF_ANY_LIMITS = {
    "rollout_nodes",
    "train_nodes",
    "nodes",
    "roams",
    "least_crowded",
    "sole_tenants",
    "load_s",
    "cycle_s",
}

# A node and its use; and of that, what policies look at first: `share`, `spare`, `blocks_s` and `away_s`.
NodeRow = tuple[str, NodeUse, float, float, float, float]


class Outline(NamedTuple):
    """Bounds on all rollout or all training nodes of a group: the least or the most of what `NodeUse` says of each."""

    nodes: int
    share: float
    spare: float
    blocks_s: float
    away_s: float
    host_bytes: int

    @staticmethod
    def of(rows: tuple[NodeRow, ...]) -> "Outline":
        if len(rows) == 1:
            ((_, use, share, spare, blocked_s, gone_s),) = rows
            return Outline(1, share, spare, blocked_s, gone_s, use.host_bytes)
        _, uses, shares, spares, blocks_s, away_s = zip(*rows, strict=True)
        most_bytes = max([use.host_bytes for use in uses])
        return Outline(len(rows), min(shares), min(spares), max(blocks_s), min(away_s), most_bytes)


class Glance(NamedTuple):
    """What a policy that looks at all groups sees first of each. `free_shares`: on rollout and on training nodes."""

    members: int
    hermit: "Member | None"
    free_shares: tuple[float, float]
    rollout: Outline
    train: Outline


class Counted(NamedTuple):
    """Members whose uses of nodes are known. It is no `Group`: groups that remember each other would be a cycle."""

    members: tuple[Member, ...]
    uses: dict[str, NodeUse]


@dataclass(frozen=True)
class Group:
    """Jobs that share nodes, in the order in which they joined."""

    id: str
    members: tuple[Member, ...]
    order: Order = Order.FIFO

    def joined_by(self, member: Member) -> "Group":
        joined = Group(self.id, (*self.members, member), self.order)
        parts = grown(self.parts, len(self.members), member) if self.members else None
        if parts is not None:
            joined.__dict__["parts"] = parts  # what the property would find
        joined.__dict__["_before"] = self._own_count  # no older count: a member that comes back is now the last
        return joined

    def with_newcomer_as(self, member: Member) -> "Group":
        """The same group, whose newcomer states its SLO in another way: what is known of the group still holds."""
        same = Group(self.id, (*self.members[:-1], member), self.order)
        same.__dict__.update({name: known for name, known in self.__dict__.items() if name in _OF_PLACES})
        return same

    def left_by(self, job_id: str) -> "Group":
        left = Group(self.id, tuple([m for m in self.members if m.job.id != job_id]), self.order)
        left.__dict__["_before"] = self._counted
        return left

    def left_by_all(self, job_ids: Sequence[str]) -> "Group":
        """The same group without these jobs, which is remembered with all that is known of it."""
        rests: dict[frozenset[str], Group] = self.__dict__.setdefault("_rests", {})
        leavers = frozenset(job_ids)
        rest = rests.get(leavers)
        if rest is None:
            rest = self
            for job_id in job_ids:
                rest = rest.left_by(job_id)
            rests[leavers] = rest
        return rest

    def with_job(self, job: JobSpec) -> "Group":
        """The same group with new knowledge of one of its jobs, which trains here on the nodes that it has."""
        members = tuple(
            Member(job.at_width(len(m.placement.train)), m.placement, job.opening_limit_s, m.apart)
            if m.job.id == job.id
            else m
            for m in self.members
        )
        return Group(self.id, members, self.order)

    def with_limits(self, limits_s: Mapping[str, float]) -> "Group":
        """The same group where some members may now go this slowly; asked for at nearly every event."""
        members = tuple(
            [
                Member(m.job, m.placement, limits_s[m.job.id], m.apart) if m.job.id in limits_s else m
                for m in self.members
            ]
        )
        changed = Group(self.id, members, self.order)
        known = changed.__dict__
        known.update({name: value for name, value in self.__dict__.items() if name in _OF_ANY_LIMITS})
        if "parts" in self.__dict__:
            known["parts"] = with_aims(self.parts, members, limits_s.keys())
        known["_before"] = self._counted
        return changed

    def member(self, job_id: str) -> Member:
        return next(m for m in self.members if m.job.id == job_id)

    @kept
    def rollout_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for m in self.members for n in m.placement.rollout))

    @kept
    def train_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for m in self.members for n in m.placement.train))

    @kept
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.rollout_nodes + self.train_nodes))

    @kept
    def uses(self) -> dict[str, NodeUse]:
        """Each node's use by this group; only the nodes of members that came or went are counted anew."""
        before: Counted | None = self.__dict__.pop("_before", None)
        known: dict[str, NodeUse] = {}
        if before is not None:
            known = before.uses
            if self.members[:-1] == before.members:
                return self._uses_with_newcomer(known)
            then, now = ({id(member): member for member in of.members} for of in (before, self))
            moved = [member for key, member in (then | now).items() if key not in then or key not in now]
            changed = {node for member in moved for node in member.placement.all_nodes}
            known = {node: use for node, use in known.items() if node not in changed}
        found: dict[str, NodeUse] = {}
        for member in self.members:
            for kind in (ROLLOUT, TRAIN):
                tenant: Tenant | None = None
                for node in member.placement.nodes(kind):
                    if node in known:
                        found[node] = known[node]
                        continue
                    tenant = tenant or member.tenant(kind, self.order)
                    found[node] = found.get(node, UNUSED).joined_by(tenant, member.job)
        return found

    @property
    def _own_count(self) -> Counted | None:
        uses = self.__dict__.get("uses")
        return None if uses is None else Counted(self.members, uses)

    @property
    def _counted(self) -> Counted | None:
        """The latest known uses of this group or of those before it: no earlier ones need be kept."""
        return self._own_count or self.__dict__.get("_before")

    def _uses_with_newcomer(self, known: Mapping[str, NodeUse]) -> dict[str, NodeUse]:
        """The same as counting anew, for the newcomer is the last to be counted."""
        newcomer, found = self.members[-1], dict(known)
        for kind in (ROLLOUT, TRAIN):
            tenant = newcomer.tenant(kind, self.order)
            for node in newcomer.placement.nodes(kind):
                found[node] = found.get(node, UNUSED).joined_by(tenant, newcomer.job)
        return found

    @kept
    def parts(self) -> tuple[Part, ...]:
        """The group as the forecast plays it: sets of jobs that share no node with each other."""
        return linked_parts(self.members, self.order)

    @kept
    def roams(self) -> bool:
        """Whether a rollout of the group has nodes to choose from."""
        return any(member.roams for member in self.members)

    @kept
    def least_crowded(self) -> tuple[str, ...]:
        """The group's rollout nodes, those with the fewest tenants first."""
        uses = self.uses
        return tuple(sorted(self.rollout_nodes, key=lambda node: (len(uses[node].tenants), node)))

    @kept
    def sole_tenants(self) -> frozenset[str]:
        """The jobs that have a node to themselves: it is free when they go."""
        return frozenset(use.tenants[0].job_id for use in self.uses.values() if len(use.tenants) == 1)

    @kept
    def free_shares(self) -> tuple[float, float]:
        """The time that no SLO needs on the rollout nodes and on the training nodes, counted in nodes."""
        uses = self.uses
        rollout = total([1 - uses[n].share for n in self.rollout_nodes])
        if self.roams:  # a job that roams needs time of some of its nodes, but of none for certain
            rollout -= total([m.share(ROLLOUT) * m.job.rollout.nodes for m in self.members if m.roams])
        return rollout, total([1 - uses[n].share for n in self.train_nodes])

    @kept
    def rollout_rows(self) -> tuple[NodeRow, ...]:
        """Its rollout nodes, for a policy that looks at those of all groups."""
        return self._rows(self.rollout_nodes)

    @kept
    def train_rows(self) -> tuple[NodeRow, ...]:
        """Its training nodes, for the same."""
        return self._rows(self.train_nodes)

    def _rows(self, nodes: tuple[str, ...]) -> tuple[NodeRow, ...]:
        uses = [(node, self.uses[node]) for node in nodes]
        return tuple([(node, use, use.share, use.spare, use.blocks_s, use.away_s) for node, use in uses])

    def free_usd(self, cluster: Cluster) -> float:
        """What the time of `free_shares` costs an hour: asked of every group, at nearly every event."""
        known: tuple[Cluster, float] | None = self.__dict__.get("_free_usd")
        if known is None or known[0] is not cluster:
            rollout, train = self.free_shares
            usd = rollout * cluster.rollout.node_type.usd_per_hour + train * cluster.train.node_type.usd_per_hour
            known = self.__dict__["_free_usd"] = cluster, usd
        return known[1]

    @kept
    def glance(self) -> Glance:
        """What a policy sees first of this group: asked of every group, at every arrival."""
        rollout, train = Outline.of(self.rollout_rows), Outline.of(self.train_rows)
        return Glance(len(self.members), self.hermit, self.free_shares, rollout, train)

    @kept
    def hermit(self) -> Member | None:
        """The member that has no time to lose to a newcomer, if there is one."""
        return next((m for m in self.members if not m.bears_company), None)

    @kept
    def load_s(self) -> float:
        """Work of one iteration of every job on the busiest node (T_load)."""
        return max(use.busy_s for use in self.uses.values())

    @kept
    def cycle_s(self) -> float:
        """The longest iteration time alone (T_cycle)."""
        return max(m.job.solo_s for m in self.members)

    @property
    def saturated(self) -> bool:
        """Whether the busiest node is busy for as long as the longest iteration takes alone, or longer."""
        return self.load_s >= self.cycle_s

    def usd_per_hour(self, cluster: Cluster) -> float:
        """The hourly price of all its nodes, each counted once."""
        rollout = len(self.rollout_nodes) * cluster.rollout.node_type.usd_per_hour
        if cluster.shared:
            return len(self.nodes) * cluster.rollout.node_type.usd_per_hour
        return rollout + len(self.train_nodes) * cluster.train.node_type.usd_per_hour


def node_type_of(cluster: Cluster, group: Group, node: str) -> NodeType:
    """The type of one of the group's nodes."""
    return cluster.rollout.node_type if node in group.rollout_nodes else cluster.train.node_type
