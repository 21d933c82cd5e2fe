"""Which workers of a rollout stand for which of its nodes: so many for each, in their order.

Invariant: a worker works only while the job holds its node.
"""

from collections.abc import Collection


class Seats:
    """So many workers on these nodes; without nodes everything runs straight through."""

    def __init__(self, workers: int, nodes: tuple[str, ...]) -> None:
        self._workers, self._nodes = range(workers), nodes

    @property
    def can_move(self) -> bool:
        """Whether workers can leave a node to those of another: each node must have its own."""
        return 1 < len(self._nodes) <= len(self._workers)

    def on(self, nodes: Collection[str]) -> tuple[int, ...]:
        """The workers that have these nodes. Where not each node has its own, all of them."""
        if not nodes or not self.can_move:
            return tuple(self._workers)
        return tuple(number for number in self._workers if self._node(number) in nodes)

    def _node(self, number: int) -> str:
        return self._nodes[number * len(self._nodes) // len(self._workers)]
