"""What a job says of itself: its phases, what they hold, how much slowing it tolerates."""

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from rollmux.mux.hardware import Cluster
from rollmux.mux.kept import kept


class PhaseKind(Enum):
    """The three phases of an iteration, in their order."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    SYNC = "sync"

    # Members are singletons, and phases are looked up on every event: the default hashes the name each time.
    __hash__ = object.__hash__


# Seconds to move state onto nodes, and off them.
Switch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """One kind of phase: how long, on how many nodes, with how much state.

    `duration_s` is the worst case (every response at the token limit); `measured_s` replaces it once known.
    Give `nodes` or `gpus`; `JobSpec.resolve` turns GPUs into whole nodes. Bytes are per node. A phase that can pause at
    safe points (between decode steps, between micro-batches) says in `pause_s` how long it works again on what it had
    done, when it goes on; moving its state off and back is not counted. None: it can't pause.
    """

    duration_s: float
    nodes: int = 0
    gpus: int = 0
    tensor_parallel: int = 1
    resident_bytes: int = 0
    transient_bytes: int = 0
    load_s: float = 0.0
    offload_s: float = 0.0
    measured_s: float | None = None
    pause_s: float | None = None

    @property
    def planned_s(self) -> float:
        return self.duration_s if self.measured_s is None else self.measured_s

    @property
    def switch_s(self) -> float:
        """Time that the nodes are held for moving state, where the phase shares them."""
        return self.load_s + self.offload_s

    def measured(self, measured_s: float, switch_s: Switch | None) -> "PhaseSpec":
        """The same phase with what was measured in place of what was said."""
        load_s, offload_s = switch_s or (self.load_s, self.offload_s)
        return replace(self, measured_s=measured_s, load_s=load_s, offload_s=offload_s)


@dataclass(frozen=True, slots=True)
class Tail:
    """How a rollout's long tail may move together, so that the next job starts on the freed nodes.

    The tail begins when `trigger` of the `requests` responses are done, at the latest `bulk_s` into the phase;
    a node has KV room for `requests_per_node` of those left; moving recomputes their KV, which takes `move_s`.
    """

    requests: int
    requests_per_node: int
    bulk_s: float
    trigger: float = 0.8
    move_s: float = 0.0

    def keep_nodes(self, remaining: int) -> int:
        """The fewest nodes whose KV room holds what is left."""
        return max(1, ceil(remaining / self.requests_per_node))

    @property
    def worst_keep_nodes(self) -> int:
        """Nodes that the tail needs when it begins."""
        return self.keep_nodes(self.requests - ceil(self.trigger * self.requests))


@dataclass(frozen=True)
class JobSpec:
    """A job as its owner submits it.

    `slo` is the slowdown that the owner tolerates: iteration time in company over iteration time alone.
    `staleness` is how many weight versions a rollout may lag: 0 is strictly on-policy, 1 one step off.
    `elastic_rollout` says that a rollout can start on some of its nodes and grow onto the others.
    `rollout_spares` are nodes beyond those that a rollout wants on which its state may wait as well: it begins, and
    goes on after a pause, on whichever of all these nodes are free.
    `iterations`, where known, tells how much work is left; `cold_start_s` is what moving the job costs it.
    """

    id: str
    rollout: PhaseSpec
    train: PhaseSpec
    slo: float
    sync_s: float = 0.0
    priority: int = 0
    staleness: int = 0
    iterations: int | None = None
    tail: Tail | None = None
    elastic_rollout: bool = False
    rollout_spares: int = 0
    cold_start_s: float = 0.0
    max_attempts: int = 3

    def phase(self, kind: PhaseKind) -> PhaseSpec:
        """The spec of a phase that holds nodes."""
        return self.rollout if kind is PhaseKind.ROLLOUT else self.train

    @property
    def may_shrink(self) -> bool:
        """Whether a rollout may give nodes back early, or work on some of them."""
        return self.rollout.nodes > 1 and (self.tail is not None or self.elastic_rollout)

    def holds(self, kind: PhaseKind, pinned: int) -> int:
        """How many nodes a phase holds at once, of so many that it is pinned to."""
        if not self.rollout_spares or kind is not PhaseKind.ROLLOUT or pinned < self.rollout.nodes:
            return pinned
        return self.rollout.nodes

    @kept
    def solo_s(self) -> float:
        """Iteration time alone on machines of its own."""
        rollout_s, rest_s = self.rollout.planned_s, self.train.planned_s + self.sync_s
        if self.staleness == 0:
            return rollout_s + rest_s
        return max(rollout_s, rest_s)

    @kept
    def ramp_s(self) -> float:
        """How much longer its first iteration takes, when nothing overlaps yet."""
        return self.rollout.planned_s + self.train.planned_s + self.sync_s - self.solo_s

    @kept
    def limit_s(self) -> float:
        """The slowest iteration that the SLO allows."""
        return self.slo * self.solo_s

    @kept
    def opening_limit_s(self) -> float:
        """The slowest steady pace for a newcomer: its first iteration may meet the others at a bad moment.

        One iteration is kept back for that, which matters to short jobs alone.
        """
        return _opening_limit_s(self.limit_s, self.solo_s, self.iterations)

    def under(self, slo: float, left: int | None) -> "JobSpec":
        """The same job with another SLO for its `left` iterations, and with all that is known of its phases."""
        job = object.__new__(JobSpec)
        known = dict(self.__dict__)
        known.pop("limit_s", None)
        known.pop("opening_limit_s", None)
        known["slo"] = slo
        job.__dict__.update(known)
        job.__dict__["opening_limit_s"] = _opening_limit_s(slo * self.solo_s, self.solo_s, left)
        return job

    def train_stretch(self, nodes: int) -> float:
        """How many times as long the job's training takes on so many nodes: fewer take longer, more are not faster."""
        return max(1.0, self.train.nodes / nodes)

    def at_width(self, nodes: int) -> "JobSpec":
        """The job with its training on so many nodes: fewer take longer, and each of them holds more."""
        if nodes == self.train.nodes:
            return self
        train, stretch = self.train, self.train_stretch(nodes)
        train = replace(
            train,
            nodes=nodes,
            duration_s=train.duration_s * stretch,
            measured_s=None if train.measured_s is None else train.measured_s * stretch,
            resident_bytes=round(train.resident_bytes * stretch),
            transient_bytes=round(train.transient_bytes * stretch),
        )
        return replace(self, train=train)

    def usd_per_hour(self, cluster: Cluster) -> float:
        """The hourly price of the nodes that it wants, each phase apart."""
        rollout, train = cluster.rollout.node_type, cluster.train.node_type
        return self.rollout.nodes * rollout.usd_per_hour + self.train.nodes * train.usd_per_hour

    def resolve(self, cluster: Cluster) -> "JobSpec":
        """The same job with its wants in whole nodes of this cluster."""
        return replace(
            self,
            rollout=_in_nodes(self.rollout, cluster.rollout.node_type.gpus),
            train=_in_nodes(self.train, cluster.train.node_type.gpus),
        )

    def measured(
        self,
        rollout_s: float,
        train_s: float,
        sync_s: float | None = None,
        rollout_switch_s: Switch | None = None,
        train_switch_s: Switch | None = None,
    ) -> "JobSpec":
        """The same job with what was measured in place of the worst case."""
        return replace(
            self,
            rollout=self.rollout.measured(rollout_s, rollout_switch_s),
            train=self.train.measured(train_s, train_switch_s),
            sync_s=self.sync_s if sync_s is None else sync_s,
        )


def _opening_limit_s(limit_s: float, solo_s: float, iterations: int | None) -> float:
    return limit_s if iterations is None else max(solo_s, limit_s - solo_s / max(1, iterations))


def _in_nodes(phase: PhaseSpec, gpus_per_node: int) -> PhaseSpec:
    return phase if phase.nodes else replace(phase, nodes=ceil(phase.gpus / gpus_per_node), gpus=0)
