"""Clusters in YAML files (JSON is a part of YAML): a pool for rollouts and one for training, or one for both.

Memory is GB, bandwidth TB/s, as data sheets have it. Every problem of a file is reported at once, in the words and the
units of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.validation import cluster_problems
from rollmux.protocol.node_means import Means, check_means, read_means
from rollmux.protocol.plain_yaml import CLUSTER, read_plain

ROLES = ("rollout", "train")
SHARED = "shared"

# Replaces a node, or a value of one, that can't be read, while the rest of the file is checked. It breaks no limit.
_SOUND = NodeType("node", gpus=1, usd_per_gpu_hour=0.0, hbm_bytes_per_gpu=0, host_memory_bytes=10**6 * GB)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a node, and its field in `NodeType`.

    A measure has a `unit`: 1 in the file is so many in `NodeType`. It must be from `low` to `high`, in the file's unit.
    Keys without a unit are checked with the whole cluster.
    """

    target: str
    meaning: str
    needed: bool = False
    unit: float | None = None
    low: float = 0.0
    high: float = 1e6


NODE_KEYS = {
    "name": Key("name", "what the machine is called", needed=True),
    "gpus": Key("gpus", "how many GPUs it has", needed=True),
    "usd_per_gpu_hour": Key("usd_per_gpu_hour", "what an hour of a GPU costs", needed=True),
    "hbm_gb": Key("hbm_bytes_per_gpu", "memory of one GPU in GB", needed=True, unit=GB),
    "host_memory_gb": Key("host_memory_bytes", "memory of the host in GB", needed=True, unit=GB, low=1.0),
    "host_reserve_gb": Key("host_reserve_bytes", "host memory in GB that jobs may not fill", unit=GB, high=1e6 - 1),
    "hbm_tb_per_s": Key("hbm_bytes_per_s", "memory bandwidth of one GPU in TB/s", unit=1e12),
}
# Keys of older files, which nothing uses: jobs say how long moving their state and weights takes, and are measured.
UNUSED_NODE_KEYS = ("host_link_gb_per_s", "network_gbps")
POOL_KEYS = {
    "node": "the machine: its name, gpus, price and memory",
    "on_demand": "whether machines are rented as needed",
    "max_nodes": "how many there are, or may be rented",
    "nodes": "what each node of the pool has, where that is to be held to: the first is POOL-0",
}
CLUSTER_KEYS = {
    "rollout": "the pool that rollouts run on",
    "train": "the pool that training runs on",
    SHARED: "one pool for both, in place of the other two",
}


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster, and by node name what each node has (`means`): empty if the file does not say it.

    `unused` are the places in the file of keys that nothing uses.
    """

    cluster: Cluster
    means: Mapping[str, Means] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def read_cluster(path: str | Path) -> Cluster:
    """The cluster of a YAML file, or InvalidSpec with all that is wrong."""
    return read_cluster_file(path).cluster


def read_cluster_file(path: str | Path) -> ClusterFile:
    """All that a YAML file says of a cluster, or InvalidSpec with all that is wrong."""
    path = Path(path)
    subject = f"cluster file {str(path)!r}"
    read = _Read()
    cluster = read.cluster(read_plain(path, subject, CLUSTER))
    if read.problems:
        raise InvalidSpec(subject, tuple(read.problems.values()))
    means = {f"{pool}-{i}": each for pool, nodes in read.means.items() for i, each in enumerate(nodes)}
    return ClusterFile(cluster, means, tuple(read.unused))


@dataclass(slots=True)
class _Read:
    """Reads a file's content, and collects its problems by path. A harmless value replaces each bad one."""

    problems: dict[str, Problem] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    means: dict[str, list[Means]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def report(self, path: str, value: object, limit: str, remedy: str) -> None:
        self.problems.setdefault(path, Problem(path, value, limit, remedy))

    def cluster(self, content: object) -> Cluster:
        found = self._part("", content, CLUSTER_KEYS)
        if SHARED in found:
            for role in ROLES:
                if role in found:
                    self.report(role, found[role], f"absent beside {SHARED}", "describe one pool for both or two")
            pool = self._pool(SHARED, found[SHARED])
            cluster, places = Cluster(pool, pool), dict.fromkeys(ROLES, SHARED)
        else:
            missing = [f"{role} ({CLUSTER_KEYS[role]})" for role in ROLES if role not in found]
            if missing and isinstance(content, dict):
                limit = f"with {' and '.join(ROLES)}, or with {SHARED}"
                self.report("the file", list(content), limit, f"add {', '.join(missing)}")
            rollout, train = (self._pool(role, found[role]) if role in found else Pool(role, _SOUND) for role in ROLES)
            cluster, places = Cluster(rollout, train), {role: role for role in ROLES}
        self._check(cluster, places)
        places_in_file = {f"{p}.nodes[{i}]": each for p, nodes in self.means.items() for i, each in enumerate(nodes)}
        check_means(places_in_file, self.report)
        return cluster

    def _part(self, path: str, value: object, known: dict[str, Any]) -> dict[str, Any]:
        """The known keys of a part of the file, with their values; others are reported."""
        if not isinstance(value, dict):
            self.report(path or "the file", value, f"keys and values: {', '.join(known)}", "see examples/cluster.yaml")
            return {}
        for key in value:
            if key not in known:
                self.report(f"{_below(path)}{key}", value[key], *one_of(known, key))
        return {key: each for key, each in value.items() if key in known}

    def _pool(self, path: str, value: object) -> Pool:
        """A pool, named after its place in the file."""
        found = self._part(path, value, POOL_KEYS)
        if "node" in found:
            node = self._node(f"{path}.node", found["node"])
        else:
            node = _SOUND
            if isinstance(value, dict):
                self.report(path, list(value), "with a node", f"add node: {POOL_KEYS['node']}")
        on_demand, max_nodes = found.get("on_demand", "nodes" not in found), found.get("max_nodes")
        if "nodes" in found:
            max_nodes = self._nodes(path, found, on_demand)
        self.values[f"{path}.on_demand"], self.values[f"{path}.max_nodes"] = on_demand, max_nodes
        if on_demand is False and max_nodes is None:
            limit = "given where on_demand is false: those machines are there"
            self.report(f"{path}.max_nodes", max_nodes, limit, "say how many machines the pool has")
        return Pool(path, node, on_demand, max_nodes)

    def _nodes(self, path: str, found: dict[str, Any], on_demand: object) -> Any:
        """Reads what the nodes of a pool have; returns how many there are."""
        self.means[path] = read_means(f"{path}.nodes", found["nodes"], self.report)
        count = len(self.means[path])
        if on_demand is True:
            self.report(f"{path}.on_demand", on_demand, "false where nodes are listed: they are there", "leave it out")
        if count and found.get("max_nodes", count) != count:
            limit = f"{count}, as many as are listed in nodes"
            self.report(f"{path}.max_nodes", found["max_nodes"], limit, "leave it out")
        return count or found.get("max_nodes")

    def _node(self, path: str, value: object) -> NodeType:
        if isinstance(value, dict):
            self.unused += [f"{path}.{key}" for key in UNUSED_NODE_KEYS if key in value]
            value = {key: each for key, each in value.items() if key not in UNUSED_NODE_KEYS}
        found = self._part(path, value, NODE_KEYS)
        missing = [name for name, key in NODE_KEYS.items() if key.needed and name not in found]
        if missing and isinstance(value, dict):
            meanings = ", ".join(f"{name} ({NODE_KEYS[name].meaning})" for name in missing)
            self.report(path, list(value), f"with {', '.join(missing)}", f"add {meanings}")
        node: dict[str, Any] = {}
        for name, key in NODE_KEYS.items():
            node[key.target] = getattr(_SOUND, key.target)
            if name in found:
                self.values[f"{path}.{name}"] = found[name]
                node[key.target] = self._value(f"{path}.{name}", found[name], key)
        if node["host_reserve_bytes"] >= node["host_memory_bytes"]:
            limit = f"below host_memory_gb = {found['host_memory_gb']}"
            self.report(f"{path}.host_reserve_gb", found["host_reserve_gb"], limit, "lower the reserve")
        return NodeType(**node)

    def _value(self, path: str, value: Any, key: Key) -> Any:
        """The value of a node's key in `NodeType`: a measure becomes whole bytes, or bytes per second."""
        if key.unit is None:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and key.low <= value <= key.high:
            return round(value * key.unit) if isinstance(getattr(_SOUND, key.target), int) else value * key.unit
        limit = f"a number from {key.low:g} to {key.high:g}"
        self.report(path, value, limit, f"give the {key.meaning}, in digits and without quotes")
        return getattr(_SOUND, key.target)

    def _check(self, cluster: Cluster, places: dict[str, str]) -> None:
        """Reports the problems of the cluster as a whole under the keys of the file."""
        names = {key.target: f"node.{name}" for name, key in NODE_KEYS.items()}
        for problem in cluster_problems(cluster):
            _, role, *rest = problem.path.split(".")
            path = ".".join([places[role], names.get(rest[-1], rest[-1])])
            self.report(path, self.values.get(path, problem.value), problem.limit, problem.remedy)


def _below(path: str) -> str:
    return f"{path}." if path else ""
