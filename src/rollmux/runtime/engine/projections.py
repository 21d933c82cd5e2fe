"""Matrix products with a model's weights.

`Referenced` multiplies with the parameters where they are and sees every change. `Packed` keeps a copy in the blocked
form that oneDNN computes with, made anew at each update: on a CPU that is up to 2.5 times as fast for the few rows that
a decode step has, and costs the weights' memory a second time. Where a processor has no products in half precision the
copy is in single precision, and costs it a third time. A small matrix is copied as it is: a call of oneDNN costs
more than its product, and still more for a number of rows that it has not met lately.
"""

import platform
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 64  # the batch that the blocked form is chosen for; measured to be good for fewer rows, too
BLOCKED_WEIGHTS = 2**17  # from so many on the blocked form is worth it; with half, 1 to 4 rows take twice as long in it


class Projection(Protocol):
    """One matrix, or several with the same input whose outputs stand side by side."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def refresh(self) -> None:
        """Takes over parameters that have changed."""

    def release(self) -> None:
        """Gives back what is held beside the parameters. Call `refresh` before the next product."""

    @property
    def nbytes(self) -> int: ...


class Referenced:
    """The parameters themselves."""

    nbytes = 0

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._linears = linears

    def __call__(self, x: Tensor) -> Tensor:
        parts = [functional.linear(x, linear.weight, linear.bias) for linear in self._linears]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def refresh(self) -> None: ...

    def release(self) -> None: ...


class Packed:
    """A copy in the type that it computes in, in blocked form unless it is small."""

    def __init__(self, linears: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self._linears, self._dtype = linears, dtype
        weights = sum(linear.weight.numel() for linear in linears)
        self._is_blocked = dtype is not torch.float32 or weights >= BLOCKED_WEIGHTS
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self.nbytes = 0
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        if self._is_blocked:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]
        assert self._weight is not None, "refreshed before it is called"
        return functional.linear(x, self._weight, self._bias)

    def refresh(self) -> None:
        with torch.no_grad():
            weight = torch.cat([linear.weight.detach().to(self._dtype) for linear in self._linears])
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self._is_blocked else weight
            self._bias = self._biases()
        self.nbytes = weight.nbytes

    def _biases(self) -> Tensor | None:
        if all(linear.bias is None for linear in self._linears):
            return None
        none = self._linears[0].weight.new_zeros
        biases = [none(x.out_features) if x.bias is None else x.bias.detach() for x in self._linears]
        return torch.cat(biases).to(self._dtype)

    def release(self) -> None:
        self._weight = self._bias = None
        self.nbytes = 0


def packed_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype | None:
    """The type in which a blocked copy of such parameters computes; None if no such copy is worth it."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    if dtype is torch.bfloat16 and not has_bfloat16():
        return torch.float32
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16: imitated, that takes many times as long as single precision."""
    if platform.machine() in ("x86_64", "AMD64"):  # there oneDNN would say yes for any with AVX-512
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
