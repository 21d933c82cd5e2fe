"""The exchange between replicas at the end of a batch, and only then.

Invariant: all replicas take part in each call, in the same order, or none does.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Exchange(Protocol):
    """An exchange between the replicas of one update."""

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        """The values of all replicas, in the same order everywhere. `kind` is their type."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the replicas."""


class Alone:
    """The exchange of a single replica."""

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        return [mine]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Adds nothing."""


ALONE = Alone()


class Replicas:
    """The ranks of torch.distributed. One that dies is noticed after the process group's own timeout."""

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        everybody: list[T | None] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
        return [theirs for theirs in everybody if theirs is not None]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            if work is not None:
                work.wait()
