"""Masters: copies in single precision of a model's narrower weights, over which the optimiser steps.

A usual step of AdamW is a hundredth of the smallest difference that two bytes can show: added to such a weight it would
be rounded away. Invariant: between two steps each weight is its master, rounded. A model of single precision or better
has no masters: the optimiser steps over its own weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PRECISE = torch.float32


class Masters:
    """The masters copy the weights at the first step: until then the model's weights may be written."""

    def __init__(self, model: nn.Module) -> None:
        self.stepped = [_beside(each) if _is_narrow(each) else each for each in model.parameters()]
        pairs = zip(model.parameters(), self.stepped, strict=True)
        self._pairs = [(weight, master) for weight, master in pairs if master is not weight]
        self._are_right = False

    @property
    def tensors(self) -> list[Tensor]:
        return [master for _, master in self._pairs]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Moves the gradients from the model's weights to the masters."""
        for weight, master in self._pairs:
            if not self._are_right:
                master.copy_(weight)
            master.grad = None if weight.grad is None else weight.grad.to(PRECISE)
            weight.grad = None
        self._are_right = True

    @torch.no_grad()
    def write_back(self) -> None:
        """After the optimiser's step: writes the weights in place, rounded from their masters."""
        for weight, master in self._pairs:
            weight.copy_(master)

    def state(self) -> dict[str, list[Tensor]]:
        """The masters for a checkpoint; empty if there are none, or no step was made yet."""
        return {"masters": [each.detach() for each in self.tensors]} if self._pairs and self._are_right else {}

    @torch.no_grad()
    def restore(self, found: Sequence[Tensor]) -> None:
        """Takes over a checkpoint's masters. If it has none, the next step copies the weights."""
        for master, value in zip(self.tensors, found, strict=False):
            master.copy_(value)
        self._are_right = bool(found)


def _is_narrow(weight: nn.Parameter) -> bool:
    return weight.requires_grad and weight.is_floating_point() and weight.dtype.itemsize < PRECISE.itemsize


def _beside(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, dtype=PRECISE, requires_grad=False))
