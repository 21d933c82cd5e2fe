"""Machines as data: node types, pools, clusters. Nothing in the code knows the name of a GPU.

A *node* is the unit that is leased, priced and pinned: a server, or a fixed slice of one that its owner
registers as a node of its own. All GPUs of a node are always held together.
"""

from dataclasses import dataclass
from typing import ClassVar

GB = 10**9


@dataclass(frozen=True, slots=True)
class NodeType:
    """What one node is and what it costs."""

    name: str
    gpus: int
    usd_per_gpu_hour: float
    hbm_bytes_per_gpu: int
    host_memory_bytes: int
    host_reserve_bytes: int = 0
    hbm_bytes_per_s: float = 0.0

    # Fields that older journals have for a node; nothing ever used them.
    DROPPED: ClassVar = frozenset({"host_link_bytes_per_s", "network_bytes_per_s"})

    @property
    def usd_per_hour(self) -> float:
        return self.gpus * self.usd_per_gpu_hour

    @property
    def room_bytes(self) -> int:
        """Host memory that resident job state may fill."""
        return self.host_memory_bytes - self.host_reserve_bytes


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one type.

    `on_demand` nodes are rented when a plan needs them and given back when nobody is pinned to them, up to
    `max_nodes` (None: as many as asked for). Otherwise the nodes are machines that join and stay.
    """

    name: str
    node_type: NodeType
    on_demand: bool = True
    max_nodes: int | None = None

    @property
    def fixed_nodes(self) -> tuple[str, ...]:
        """The names of the nodes that are there without being rented."""
        return () if self.on_demand else tuple(f"{self.name}-{i}" for i in range(self.max_nodes or 0))


@dataclass(frozen=True, slots=True)
class Cluster:
    """The pool that rollouts run on and the pool that training runs on; they may be one and the same."""

    rollout: Pool
    train: Pool

    @property
    def shared(self) -> bool:
        """One pool serves both kinds of phase."""
        return self.rollout.name == self.train.name

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.rollout,) if self.shared else (self.rollout, self.train)

    @property
    def fixed_nodes(self) -> dict[str, str]:
        """The nodes of all pools that are there without being rented, and the pool of each."""
        return {node: pool.name for pool in self.pools for node in pool.fixed_nodes}


def elastic(rollout: NodeType, train: NodeType) -> Cluster:
    """A cluster that rents whatever a plan asks for."""
    return Cluster(Pool("rollout", rollout), Pool("train", train))


def finite(rollout: NodeType, train: NodeType) -> Cluster:
    """A cluster of machines that join on their own and stay."""
    return Cluster(Pool("rollout", rollout, on_demand=False), Pool("train", train, on_demand=False))


# The two machines of the RollMux paper (arXiv 2512.11306, testbed and prices); host memory is the low end
# of its 1 to 2 TB range.
PAPER_ROLLOUT = NodeType(
    name="8xH20",
    gpus=8,
    usd_per_gpu_hour=1.85,
    hbm_bytes_per_gpu=96 * GB,
    host_memory_bytes=1000 * GB,
    hbm_bytes_per_s=4.0e12,
)
PAPER_TRAIN = NodeType(
    name="8xH800",
    gpus=8,
    usd_per_gpu_hour=5.28,
    hbm_bytes_per_gpu=80 * GB,
    host_memory_bytes=1000 * GB,
    hbm_bytes_per_s=3.35e12,
)
PAPER_CLUSTER = elastic(PAPER_ROLLOUT, PAPER_TRAIN)
