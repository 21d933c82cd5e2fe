"""A device that is none: it computes on the processor, and refuses an operation between what lies on it and what does
not, as a GPU does. Single numbers of the host may be in any.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default, aten.to.device)


class Apart(RuntimeError):
    """What a GPU's own error says: expected all tensors to be on the same device."""


@cache
def far() -> torch.device:
    backend_registration.rename_privateuse1_backend("far")
    backend_registration._setup_privateuseone_for_python_backend("far")
    return torch.device("far", 0)


class Far(Tensor):
    """A tensor there; `near` has its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        made: Far = Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), near.storage_offset(), dtype=near.dtype, device=far()
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


class _Factories(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is made on the device, or brought there."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """What torch brings to a device, or off it, out of every other mode's sight: numbers of Python's."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist:
            return _near(args[0]).tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Far):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (
                args[0],
                tuple(torch.tensor(each).to(far()) if isinstance(each, list) else each for each in where),
                *args[2:],
            )
        if func is not torch.tensor:
            return func(*args, **kwargs)
        device = kwargs.pop("device", None)
        return torch.tensor(*args, **kwargs).to(device)


@contextmanager
def there_is_a_device() -> Iterator[torch.device]:
    device = far()
    with _Factories(), _Literals():  # type: ignore[no-untyped-call]
        yield device


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = any(isinstance(each, Far) for each in tensors)
    if there and func not in MOVES and any(not isinstance(each, Far) and each.dim() for each in tensors):
        raise Apart(f"{func} with tensors on {sorted({str(each.device) for each in tensors})}")
    said = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.device)]
    if said:
        there = said[0].type == far().type
    near_args, near_kwargs = tree_map(_near, (tuple(args), dict(kwargs)))
    found = func(*near_args, **near_kwargs)
    if func._schema.is_mutable and tensors and func._schema.returns:
        return args[0]
    return tree_map(_far, found) if there else found


def near(tensor: Tensor) -> Tensor:
    """Its values."""
    found: Tensor = _near(tensor)
    return found


def _near(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.near if isinstance(value, Far) else value


def _far(value: Any) -> Any:
    return Far(value) if isinstance(value, Tensor) else value
