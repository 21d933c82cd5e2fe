"""Sums of gradients, beside the model's own `grad`.

Invariant: all tensors here are sums over samples, in single precision at least; a model's `grad` is not touched before
the end. `main` and `plain` together give the gradient for any shift and scale of the advantages.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmux.trainer.update.ledger import Affine

Gradient = Sequence[Tensor | None]  # None: the parameter had no part in it


class Accumulator:
    """The sum of gradients over `parameters`, and of the objective's value that goes with them."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.value = 0.0
        self.tensors = [torch.zeros_like(p, dtype=_wide(p.dtype), requires_grad=False) for p in parameters]

    def add(self, gradient: Gradient, value: float) -> None:
        pairs = [(mine, g.to(mine.dtype)) for mine, g in zip(self.tensors, gradient, strict=True) if g is not None]
        if pairs:
            torch._foreach_add_([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
        self.value += value

    def take(self, other: "Accumulator", factor: float) -> None:
        """Adds `factor` times another accumulator."""
        if self.tensors:
            theirs = [t.to(mine.device) for mine, t in zip(self.tensors, other.tensors, strict=True)]
            torch._foreach_add_(self.tensors, theirs, alpha=factor)
        self.value += factor * other.value

    def scale(self, factor: float) -> None:
        if self.tensors:
            torch._foreach_mul_(self.tensors, factor)
        self.value *= factor


class Sums:
    """`main` is the sum of advantages times scores. While the whole batch may still shift and scale the advantages,
    `main` has advantages less `pivot`, which is one of them, and `plain` is the sum of scores alone.

    Without the pivot, rewards around 1000 that differ by 1 would lose three digits in the difference of two sums.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._main: Accumulator | None = None  # made when the first sample is trained
        self._plain: Accumulator | None = None
        self.pivot: float | None = None

    def add(self, gradient: Gradient, value: float) -> None:
        """Adds a gradient with final advantages."""
        self._main = self._main or Accumulator(self._parameters)
        self._main.add(gradient, value)

    def add_linear(self, main: tuple[Gradient, float], plain: tuple[Gradient, float], pivot: float) -> None:
        if self._main is None or self._plain is None:
            self._main, self._plain, self.pivot = Accumulator(self._parameters), Accumulator(self._parameters), pivot
        self._main.add(*main)
        self._plain.add(*plain)

    def settle(self, affine: Affine) -> Accumulator:
        """The advantages are final now: makes one sum of the two, to which `add` adds from now on."""
        self._main = self._main or Accumulator(self._parameters)
        if self._plain is not None and self.pivot is not None:
            self._main.take(self._plain, self.pivot - affine.shift)
            self._main.scale(affine.scale)
        self._plain = self.pivot = None
        return self._main


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
