"""Which nodes there are, whose they are, and what state they are in (I2: every node is in exactly one)."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from rollmux.errors import IllegalEvent
from rollmux.mux.commands import Command, Provision, ReleaseNode
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.snapshot import NewNode


class NodeState(Enum):
    """Where a node stands."""

    COMING = "coming"
    READY = "ready"
    LOST = "lost"


@dataclass(slots=True)
class NodeRecord:
    """One node; `group_id` is the group that owns it, if any does."""

    pool: str
    state: NodeState
    group_id: str | None = None
    cordoned: bool = False


class NodeBook:
    """The register of nodes of one cluster."""

    __slots__ = ("idle", "next_node", "nodes", "pools", "rented", "shunned")

    def __init__(self, cluster: Cluster) -> None:
        self.pools: dict[str, Pool] = {pool.name: pool for pool in cluster.pools}
        self.nodes: dict[str, NodeRecord] = {}
        self.idle: dict[str, tuple[str, ...]] = {}  # ready and free for a plan, by pool
        self.rented: dict[str, int] = dict.fromkeys(self.pools, 0)  # all nodes, by pool
        self.shunned = 0  # nodes lost or cordoned
        self.next_node = 0

    def restore(self, nodes: dict[str, NodeRecord], next_node: int) -> None:
        """Goes on from these records."""
        for node, record in nodes.items():
            self._register(node, record)
            self.shunned += record.cordoned or record.state is NodeState.LOST
        self.next_node = next_node
        self._refresh()

    def become(self, cluster: Cluster, gone: Collection[str]) -> None:
        """The same pools, which may now be described otherwise; nodes that are `gone` are forgotten, drained or not."""
        self.pools = {pool.name: pool for pool in cluster.pools}
        for node in gone:
            self._forget(node)
        self._refresh()

    def take(self, new_nodes: tuple[NewNode, ...], group_id: str, out: list[Command]) -> None:
        """A group gets these nodes; those that do not exist yet are asked for."""
        for pool, node in new_nodes:
            record = self.nodes.get(node)
            if record is None:
                self._register(node, NodeRecord(pool, NodeState.COMING, group_id))
                out.append(Provision(node, pool))
            else:
                record.group_id = group_id
        self.next_node += len(new_nodes)
        self._refresh()

    def free(self, nodes: list[str], out: list[Command]) -> None:
        """Nobody is pinned to these nodes any more."""
        for node in nodes:
            record = self.nodes[node]
            record.group_id = None
            if self.pools[record.pool].on_demand:
                self._forget(node)
                out.append(ReleaseNode(node, record.pool))
            elif _is_of_no_account(record):
                self._forget(node)
        self._refresh()

    def join(self, node: str, pool: str) -> list[Command] | None:
        """A node reports as ready; None if that is known."""
        if pool not in self.pools:
            raise IllegalEvent(f"node {node} joins pool {pool!r}; there are: {', '.join(self.pools)}")
        record = self.nodes.get(node)
        if record is None:
            if self.pools[pool].on_demand:
                return [ReleaseNode(node, pool)]  # no longer wanted, or never
            self._register(node, NodeRecord(pool, NodeState.READY))
        elif record.pool != pool and (record.state is not NodeState.LOST or record.group_id is not None):
            raise IllegalEvent(f"node {node} joins pool {pool!r}, but it belongs to pool {record.pool!r}")
        elif record.pool != pool:  # a lost node that is remembered only as drained may come back in another pool
            if self.pools[pool].on_demand:
                return [ReleaseNode(node, pool)]
            self.rented[record.pool] -= 1
            self.rented[pool] += 1
            record.pool, record.state = pool, NodeState.READY
        elif record.state is NodeState.READY:
            return None
        else:
            self.shunned -= record.state is NodeState.LOST and not record.cordoned
            record.state = NodeState.READY
        self._refresh()
        return []

    def lose(self, node: str) -> bool:
        """A node is gone; False if that is known."""
        record = self.nodes.get(node)
        if record is None or record.state is NodeState.LOST:
            return False
        self.shunned += not record.cordoned
        record.state = NodeState.LOST
        if _is_of_no_account(record):
            self._forget(node)
        self._refresh()
        return True

    def cordon(self, node: str) -> bool:
        """A node takes no new jobs; False if that is known."""
        record = self.nodes.get(node)
        if record is None:
            raise IllegalEvent(f"there is no node {node}")
        if record.cordoned:
            return False
        record.cordoned = True
        self.shunned += record.state is not NodeState.LOST
        self._refresh()
        return True

    def uncordon(self, node: str) -> bool:
        """A cordoned node takes jobs again; False if it does already."""
        record = self.nodes.get(node)
        if record is None:
            raise IllegalEvent(f"there is no node {node}")
        if not record.cordoned:
            return False
        record.cordoned = False
        self.shunned -= record.state is not NodeState.LOST
        if _is_of_no_account(record):
            self._forget(node)
        self._refresh()
        return True

    def ready(self, nodes: tuple[str, ...]) -> bool:
        return all(self.nodes[node].state is NodeState.READY for node in nodes)

    def shunned_nodes(self) -> dict[str, str | None]:
        """Nodes that are lost or take no new jobs, and their groups."""
        if not self.shunned:
            return {}
        return {n: r.group_id for n, r in self.nodes.items() if r.cordoned or r.state is NodeState.LOST}

    def frozen_groups(self) -> frozenset[str]:
        """Groups with a lost or cordoned node: they take no newcomers."""
        return frozenset(group_id for group_id in self.shunned_nodes().values() if group_id is not None)

    def _register(self, node: str, record: NodeRecord) -> None:
        self.nodes[node] = record
        self.rented[record.pool] += 1

    def _forget(self, node: str) -> None:
        record = self.nodes.pop(node)
        self.rented[record.pool] -= 1
        self.shunned -= record.cordoned or record.state is NodeState.LOST

    def _refresh(self) -> None:
        """Only pools whose nodes stay have idle ones: rented nodes are given back at once."""
        for name, pool in self.pools.items():
            if not pool.on_demand:
                self.idle[name] = tuple(n for n, r in self.nodes.items() if r.pool == name and _idle(r))


def _is_of_no_account(record: NodeRecord) -> bool:
    """Whether to forget a node: it is lost and nobody is pinned to it. A drained one stays drained when it is back."""
    return record.state is NodeState.LOST and record.group_id is None and not record.cordoned


def _idle(record: NodeRecord) -> bool:
    return record.state is NodeState.READY and not record.cordoned and record.group_id is None
