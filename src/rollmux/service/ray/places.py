"""Which node of Ray's each node of ours is, and which rank of a job runs where.

A node of ours is named to Ray by a resource, of which it takes one unit, by an address, or by an id. If several of ours
name the same resource, as for the pods of one worker group, each gets a unit of its own, and stays at that Ray node as
long as the Ray node lives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollmux.mux.placed import Placement
from rollmux.protocol.node_means import Means, RayName
from rollmux.service.launcher import each_once, home_of, seen_by
from rollmux.service.ray.gateway import RayNode
from rollmux.service.ray.wire import Part


@dataclass(slots=True)
class Places:
    """Where our nodes are. `at` has Ray's node for each that was found last: it stays there if it can."""

    means: Mapping[str, Means]
    at: dict[str, str] = field(default_factory=dict)

    def find(self, wanted: Iterable[str], there: Sequence[RayNode]) -> dict[str, str]:
        """Ray's node for each of these nodes of ours that is there now; remembers them."""
        alive = {node.id: node for node in there}
        free = {node.id: dict(node.resources) for node in there}
        names = {node: self._name(node) for node in wanted}
        found = {}
        for node, name in names.items():
            stuck = self.at.get(node)
            if stuck in alive and _fits(name, alive[stuck], free[stuck]):
                found[node] = _take(name, stuck, free)
        for node, name in names.items():
            if node not in found:
                fits = next((each.id for each in there if _fits(name, each, free[each.id])), None)
                if fits is not None:
                    found[node] = _take(name, fits, free)
        for node in names:
            self.at.pop(node, None)
        self.at |= found
        return found

    def parts(
        self, placement: Placement, processes: int, at: Mapping[str, str], ranks_per_process: int = 1
    ) -> tuple[Part, ...]:
        """The processes of a job. A part has the cores and the memory of all of the job's nodes on its machine."""
        homes = {rank: home_of(rank, processes, placement) for rank in range(processes)}
        parts = []
        for machine in dict.fromkeys(at[node] for node in homes.values()):
            means = {n: self.means.get(n, Means()) for n in placement.all_nodes if at[n] == machine}
            ranks = {rank: node for rank, node in homes.items() if node in means}
            seen = {rank: [means[n] for n in seen_by(rank, processes, placement) if n in means] for rank in ranks}
            parts.append(_part(machine, ranks, list(means.values()), seen, ranks_per_process))
        return tuple(parts)

    def _name(self, node: str) -> RayName:
        return self.means.get(node, Means()).ray or RayName("resource", node)


def _fits(name: RayName, node: RayNode, free: Mapping[str, float]) -> bool:
    match name.kind:
        case "resource":
            return free.get(name.value, 0.0) >= 1.0
        case "ip":
            return node.ip == name.value
        case _:
            return node.id == name.value


def _take(name: RayName, ray_node: str, free: dict[str, dict[str, float]]) -> str:
    if name.kind == "resource":
        free[ray_node][name.value] -= 1.0
    return ray_node


def _part(
    machine: str, ranks: dict[int, str], has: Sequence[Means], seen: Mapping[int, Sequence[Means]], each: int
) -> Part:
    return Part(
        machine,
        ranks,
        tuple(each_once(means.cores for means in has)),
        {
            rank: tuple(each_once(means.devices for means in each))
            for rank, each in seen.items()
            if any(means.devices is not None for means in each)
        },
        None if any(means.memory_bytes is None for means in has) else _memory(has) // (len(ranks) * each),
    )


def _memory(has: Sequence[Means]) -> int:
    return sum(means.memory_bytes or 0 for means in has)
