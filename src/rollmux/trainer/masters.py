"""Single precision beside a model's narrower weights: what an optimiser steps over.

A usual step of AdamW is a hundredth of what two bytes can tell of a weight: added to one it would be rounded away.
Invariant: between two steps each weight is its master, rounded. A model that is precise enough has no masters, and is
stepped over as it is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PRECISE = torch.float32


class Masters:
    """They take over the weights with the first step: until then a model may be written."""

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
        """They are the masters' from now on, and none of them is the model's."""
        for weight, master in self._pairs:
            if not self._are_right:
                master.copy_(weight)
            master.grad = None if weight.grad is None else weight.grad.to(PRECISE)
            weight.grad = None
        self._are_right = True

    @torch.no_grad()
    def write_back(self) -> None:
        """A step was made: the weights are written in place."""
        for weight, master in self._pairs:
            weight.copy_(master)

    def state(self) -> dict[str, list[Tensor]]:
        """Of a checkpoint; nothing where they have nothing to tell."""
        return {"masters": [each.detach() for each in self.tensors]} if self._pairs and self._are_right else {}

    @torch.no_grad()
    def restore(self, found: Sequence[Tensor]) -> None:
        """Without any they take over the weights, with the next step."""
        for master, value in zip(self.tensors, found, strict=False):
            master.copy_(value)
        self._are_right = bool(found)


def _is_narrow(weight: nn.Parameter) -> bool:
    return weight.requires_grad and weight.is_floating_point() and weight.dtype.itemsize < PRECISE.itemsize


def _beside(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, dtype=PRECISE, requires_grad=False))
