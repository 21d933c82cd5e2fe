"""Which workers of a rollout are on which of its nodes: the workers are spread evenly over the nodes, in order.

Invariant: a worker works only while the job holds its node.
"""

from collections.abc import Collection


class Seats:
    """`workers` workers on these nodes. Without nodes all of them always work."""

    def __init__(self, workers: int, nodes: tuple[str, ...]) -> None:
        self._workers, self._nodes = range(workers), nodes

    @property
    def can_move(self) -> bool:
        """Whether workers can leave a node and move their work to another: each node must have its own workers."""
        return 1 < len(self._nodes) <= len(self._workers)

    def on(self, nodes: Collection[str]) -> tuple[int, ...]:
        """The workers on these nodes; all of them if not each node has its own."""
        if not nodes or not self.can_move:
            return tuple(self._workers)
        return tuple(number for number in self._workers if self._node(number) in nodes)

    def _node(self, number: int) -> str:
        return self._nodes[number * len(self._nodes) // len(self._workers)]
