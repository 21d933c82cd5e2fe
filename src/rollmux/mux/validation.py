"""Reading a description critically: every problem at once, each with its path, value, limit and remedy.

Nothing enters a plan or the state of the cluster without passing here.
"""

from rollmux.checks import MAX_COUNT, Checks
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.hardware import Cluster, NodeType, Pool
from rollmux.mux.job import JobSpec, PhaseSpec, Tail

MAX_ID_LENGTH = 128
MAX_NODES = 4096
MAX_DURATION_S = 30 * 24 * 3600.0
MAX_SLO = 1000.0
MAX_STALENESS = 64
MAX_SPARES = 64


class _Reader(Checks):
    """The checks of one part of a description, and of the parts below it."""

    def below(self, name: str) -> "_Reader":
        return _Reader(f"{self.subject}.{name}", self.problems)

    def text(self, name: str, value: object, remedy: str) -> None:
        good = isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isprintable()
        if not good or (isinstance(value, str) and value.strip() != value):
            self.report(name, value, f"a text of 1 to {MAX_ID_LENGTH} printable characters, no outer spaces", remedy)

    def part(self, name: str, value: object, kind: type) -> "_Reader | None":
        """The reader of a part, or None where the part is something else altogether."""
        if isinstance(value, kind):
            return self.below(name)
        self.report(name, value, f"a {kind.__name__}", f"describe it as a {kind.__name__}")
        return None

    def flag(self, name: str, value: object) -> None:
        if not isinstance(value, bool):
            self.report(name, value, "true or false", "write true or false")


def job_problems(job: JobSpec, cluster: Cluster | None = None) -> tuple[Problem, ...]:
    """Everything wrong with a job, and, given a cluster, with running it there."""
    read = _Reader("job")
    read.text("id", job.id, "give the job a short name")
    _phase(read.part("rollout", job.rollout, PhaseSpec), job.rollout)
    _phase(read.part("train", job.train, PhaseSpec), job.train)
    read.number("slo", job.slo, 1.0, MAX_SLO, "1 tolerates no slowing, 2 twice the time alone")
    read.number("sync_s", job.sync_s, 0.0, MAX_DURATION_S, "give the weight sync's duration in seconds")
    read.number("cold_start_s", job.cold_start_s, 0.0, MAX_DURATION_S, "give seconds")
    read.whole("priority", job.priority, -1000, 1000, "0 is ordinary, higher goes first")
    read.whole("staleness", job.staleness, 0, MAX_STALENESS, "0 is strictly on-policy")
    read.whole("max_attempts", job.max_attempts, 1, 1000, "1 never restarts the job")
    read.flag("elastic_rollout", job.elastic_rollout)
    read.whole("rollout_spares", job.rollout_spares, 0, MAX_SPARES, "0 pins the rollout to the nodes that it wants")
    if job.iterations is not None:
        read.whole("iterations", job.iterations, 1, MAX_COUNT, "leave it out where it is not known")
    if job.tail is not None:
        _tail(read.part("tail", job.tail, Tail), job.tail, job.rollout)
    if cluster is not None and not read.problems:
        _fit(read, job, cluster)
    return tuple(read.problems)


def cluster_problems(cluster: Cluster) -> tuple[Problem, ...]:
    """Everything wrong with a cluster."""
    read = _Reader("cluster")
    for role, pool in (("rollout", cluster.rollout), ("train", cluster.train)):
        _pool(read.part(role, pool, Pool), pool)
    if not read.problems and cluster.shared and cluster.rollout != cluster.train:
        read.report("train", cluster.train.name, "another name", "two different pools need two names")
    return tuple(read.problems)


def require_cluster(cluster: Cluster) -> Cluster:
    problems = cluster_problems(cluster)
    if problems:
        raise InvalidSpec("cluster", problems)
    return cluster


def _phase(read: _Reader | None, phase: PhaseSpec) -> None:
    if read is None:
        return
    read.number("duration_s", phase.duration_s, 1e-3, MAX_DURATION_S, "give the worst case in seconds")
    if phase.measured_s is not None:
        read.number("measured_s", phase.measured_s, 1e-3, MAX_DURATION_S, "leave it out until it is measured")
    if phase.pause_s is not None:
        read.number("pause_s", phase.pause_s, 0.0, MAX_DURATION_S, "give seconds, or leave it out if it can't pause")
    for name in ("load_s", "offload_s"):
        read.number(name, getattr(phase, name), 0.0, MAX_DURATION_S, "give seconds, 0 where it costs nothing")
    for name in ("resident_bytes", "transient_bytes"):
        read.whole(name, getattr(phase, name), 0, MAX_COUNT, "give bytes per node")
    counts = [
        read.whole("nodes", phase.nodes, 0, MAX_NODES, "give whole nodes"),
        read.whole("gpus", phase.gpus, 0, MAX_NODES * 64, "give a number of GPUs"),
    ]
    if all(counts) and (phase.nodes > 0) == (phase.gpus > 0):
        limit = "one of nodes and gpus above 0"
        read.report("nodes", phase.nodes, limit, "say how many nodes, or how many GPUs, the phase wants")
    read.whole("tensor_parallel", phase.tensor_parallel, 1, 1024, "1 is no tensor parallelism")


def _tail(read: _Reader | None, tail: Tail, rollout: PhaseSpec) -> None:
    if read is None:
        return
    read.number("trigger", tail.trigger, 0.01, 1.0, "0.8 moves the tail once 80 % of responses are done")
    read.number("move_s", tail.move_s, 0.0, MAX_DURATION_S, "give seconds")
    read.whole("requests", tail.requests, 1, MAX_COUNT, "give the responses of one rollout")
    read.whole("requests_per_node", tail.requests_per_node, 1, MAX_COUNT, "give the KV room of a node")
    if read.number("bulk_s", tail.bulk_s, 0.0, MAX_DURATION_S, "give seconds from the rollout's start"):
        longest = getattr(rollout, "duration_s", None)
        if isinstance(longest, (int, float)) and tail.bulk_s > longest > -MAX_COUNT:
            read.report("bulk_s", tail.bulk_s, f"at most the rollout's {longest:g} s", "lower it")


def _fit(read: _Reader, job: JobSpec, cluster: Cluster) -> None:
    """What a well-formed job still can't have on this cluster, even alone."""
    if job.rollout_spares and job.resolve(cluster).may_shrink:
        limit = "0 where a rollout of several nodes may hold a part of them"
        read.report("rollout_spares", job.rollout_spares, limit, "leave out spares, or the tail and elastic_rollout")
    for name, pool in (("rollout", cluster.rollout), ("train", cluster.train)):
        here, phase = read.below(name), getattr(job.resolve(cluster), name)
        kind = pool.node_type
        room = phase.resident_bytes + phase.transient_bytes
        if room > kind.room_bytes:
            limit = f"at most the {kind.room_bytes} bytes of host memory free on a {kind.name} node"
            here.report("resident_bytes", room, limit, "use more nodes or smaller state")
        if kind.gpus % phase.tensor_parallel and phase.tensor_parallel % kind.gpus:
            limit = f"a divisor or a multiple of the {kind.gpus} GPUs of a {kind.name} node"
            here.report("tensor_parallel", phase.tensor_parallel, limit, "choose another degree")
        elif phase.nodes * kind.gpus % phase.tensor_parallel:
            limit = f"a divisor of the {phase.nodes * kind.gpus} GPUs asked for"
            here.report("tensor_parallel", phase.tensor_parallel, limit, "ask for more nodes")
        if phase.nodes > MAX_NODES:  # so many GPUs come to that
            here.report("nodes", phase.nodes, f"at most {MAX_NODES} nodes", "ask for fewer nodes")
        elif pool.max_nodes is not None and phase.nodes > pool.max_nodes:
            limit = f"at most the {pool.max_nodes} nodes of pool {pool.name!r}"
            here.report("nodes", phase.nodes, limit, "ask for fewer nodes or a larger pool")


def _pool(read: _Reader | None, pool: Pool) -> None:
    if read is None:
        return
    read.text("name", pool.name, "give the pool a short name")
    read.flag("on_demand", pool.on_demand)
    if pool.max_nodes is not None:
        read.whole("max_nodes", pool.max_nodes, 1, 10**6, "leave it out for no limit")
    _node_type(read.part("node_type", pool.node_type, NodeType), pool.node_type)


def _node_type(read: _Reader | None, kind: NodeType) -> None:
    if read is None:
        return
    read.text("name", kind.name, "name the machine")
    read.whole("gpus", kind.gpus, 1, 1024, "a node has at least one GPU")
    read.number("usd_per_gpu_hour", kind.usd_per_gpu_hour, 0.0, 1e6, "give dollars per GPU hour")
    read.whole("hbm_bytes_per_gpu", kind.hbm_bytes_per_gpu, 0, MAX_COUNT, "give bytes")
    reserve_ok = read.whole("host_reserve_bytes", kind.host_reserve_bytes, 0, MAX_COUNT, "give bytes")
    memory_ok = read.whole("host_memory_bytes", kind.host_memory_bytes, 1, MAX_COUNT, "give bytes")
    if reserve_ok and memory_ok and kind.room_bytes <= 0:
        limit = f"below host_memory_bytes = {kind.host_memory_bytes}"
        read.report("host_reserve_bytes", kind.host_reserve_bytes, limit, "lower the reserve")
    read.number("hbm_bytes_per_s", kind.hbm_bytes_per_s, 0.0, 1e18, "give bytes per second, 0 where it is not known")
