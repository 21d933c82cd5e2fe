"""Where weight sync meets torch: shards in, shards out. The only module of it that needs torch.

Changing the type on the way (float32 to bfloat16) is torch's own rounding, done as the shard is taken over.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rollmux.checks import Checks
from rollmux.runtime.sync.generation import Words
from rollmux.runtime.sync.layout import TensorSpec
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.reader import Weights
from rollmux.runtime.sync.send import Fill

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64,
    "U64": torch.uint64, "F64": torch.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def spec_of(name: str, whole: torch.Tensor, dtype: torch.dtype | None = None) -> TensorSpec:
    """How a tensor lands: in its own type or, if it has floating point, in another one."""
    lands = dtype if dtype is not None and whole.is_floating_point() else whole.dtype
    if lands not in _NAMES:
        raise Checks("tensors").refusal(name, str(lands), f"one of {', '.join(map(str, _NAMES))}", "send its parts")
    return TensorSpec(name, _NAMES[lands], tuple(whole.shape))


def from_torch(plan: Plan, shards: Mapping[str, torch.Tensor]) -> Fill:
    """Takes this rank's shards over; they may lie on a device, and be of another type than the landing one."""
    dtypes = {tensor.name: _DTYPES[tensor.dtype] for tensor in plan.exchange.tensors}

    def fill(name: str, words: Words) -> None:
        shard, place = shards.get(name), _view(words, dtypes[name])
        wraps: bool = is_traceable_wrapper_subclass(shard)
        if shard is None or wraps or shard.shape != place.shape:
            found = None if shard is None else f"{type(shard).__qualname__} of {tuple(shard.shape)}"
            remedy = "give this rank's part by the layout, which is `to_local()` of a DTensor cut so"
            raise Checks("shards").refusal(name, found, f"Tensor of {tuple(place.shape)}", remedy)
        place.copy_(shard.detach())

    return fill


def as_torch(weights: Weights) -> dict[str, torch.Tensor]:
    """All shards of a version, in place: good for as long as the version is open."""
    return {name: _view(words, _DTYPES[weights.dtypes[name]]) for name, words in weights.words.items()}


def _view(words: Words, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(words.view(_SIGNED[words.itemsize])).view(dtype)
