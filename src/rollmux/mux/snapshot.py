"""The cluster as a policy sees it: its groups, its unused nodes, and names for what a plan would add."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster, Pool

NewNode = tuple[str, str]  # (pool, node)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision may depend on, and nothing else.

    `idle` are the joined nodes without a group, by pool; `rented` counts all nodes of each pool; `next_node` and
    `next_group` number what is new. `shunned` nodes are lost or cordoned; their groups, and those of an exchange, are
    `frozen`: they take no newcomers.
    """

    cluster: Cluster
    groups: Mapping[str, Group] = field(default_factory=dict)
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rented: Mapping[str, int] = field(default_factory=dict)
    next_node: int = 0
    next_group: int = 0
    frozen: frozenset[str] = frozenset()
    shunned: frozenset[str] = frozenset()

    def offer(self, pool: Pool, count: int, skip: int = 0) -> tuple[str, ...] | None:
        """Names of `count` nodes that a plan may add, or None where there are fewer."""
        idle = self.idle.get(pool.name, ())[skip : skip + count]
        missing = count - len(idle)
        if missing == 0:
            return idle
        if not pool.on_demand:
            return None
        first = max(0, skip - len(self.idle.get(pool.name, ())))
        if pool.max_nodes is not None and self.rented.get(pool.name, 0) + first + missing > pool.max_nodes:
            return None
        start = self.next_node + first
        return idle + tuple(f"{pool.name}-{start + i}" for i in range(missing))

    def room(self, pool: Pool) -> int | None:
        """How many nodes a plan may add to its pool; None without limit."""
        idle = len(self.idle.get(pool.name, ()))
        if not pool.on_demand:
            return idle
        if pool.max_nodes is None:
            return None
        return idle + max(0, pool.max_nodes - self.rented.get(pool.name, 0))

    def with_group(self, group: Group, new_nodes: tuple[NewNode, ...] = ()) -> "Snapshot":
        """What the cluster is once this group has taken these nodes."""
        idle, rented = dict(self.idle), dict(self.rented)
        for pool, node in new_nodes:
            if node in idle.get(pool, ()):
                idle[pool] = tuple(n for n in idle[pool] if n != node)
            else:
                rented[pool] = rented.get(pool, 0) + 1
        return replace(
            self,
            groups={**self.groups, group.id: group},
            idle=idle,
            rented=rented,
            next_node=self.next_node + len(new_nodes),
            next_group=self.next_group + (group.id not in self.groups),
        )

    def without_newcomers(self, group_id: str) -> "Snapshot":
        """The same cluster where nobody may join this group."""
        return replace(self, frozen=self.frozen | {group_id})

    def emptied(self) -> "Snapshot":
        """The same cluster without any job."""
        idle, rented = dict(self.idle), dict(self.rented)
        for group in self.groups.values():
            self._give_back(group, set(), idle, rented)
        return replace(self, groups={}, idle=idle, rented=rented)

    def without_job(self, group_id: str, job_id: str) -> "Snapshot":
        """What the cluster is once the job has left: nodes that nobody is pinned to are idle or given back."""
        before = self.groups[group_id]
        after = before.left_by(job_id)
        groups = {**self.groups, group_id: after}
        if not after.members:
            del groups[group_id]
        idle, rented = dict(self.idle), dict(self.rented)
        self._give_back(before, set(after.nodes), idle, rented)
        return replace(self, groups=groups, idle=idle, rented=rented)

    def _give_back(
        self, group: Group, kept: Set[str], idle: dict[str, tuple[str, ...]], rented: dict[str, int]
    ) -> None:
        """Of this group's nodes all but these."""
        for pool, nodes in self.by_pool(group):
            unused = tuple(n for n in nodes if n not in kept)
            if pool.on_demand:
                rented[pool.name] = rented.get(pool.name, 0) - len(unused)
            else:
                idle[pool.name] = idle.get(pool.name, ()) + tuple(n for n in unused if n not in self.shunned)

    def by_pool(self, group: Group) -> tuple[tuple[Pool, tuple[str, ...]], ...]:
        """The group's nodes of each pool."""
        if self.cluster.shared:
            return ((self.cluster.rollout, group.nodes),)
        return ((self.cluster.rollout, group.rollout_nodes), (self.cluster.train, group.train_nodes))
