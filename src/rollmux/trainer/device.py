"""What a job computes on: processors, or a GPU that its parts visit while a phase works (docs/design/devices.md)."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from rollmux.checks import Checks
from rollmux.runtime.residency import Memory, Visitor
from rollmux.runtime.residency.memory import memory_of


class Berth(Protocol):
    """The place of some of a job's parts while a phase works: see `Visitor`, which moves them."""

    @property
    def is_here(self) -> bool: ...

    def load(self) -> None: ...

    def offload(self) -> None: ...

    def still(self) -> AbstractContextManager[None]: ...

    def writing(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


class AtHome:
    """The berth for processors, which compute in host memory: nothing moves."""

    is_here = False

    def load(self) -> None: ...

    def offload(self) -> None: ...

    def still(self) -> AbstractContextManager[None]:
        return nullcontext()

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


def berth_of(device: str, name: str, state: Callable[[], object], read_only: bool = False) -> Berth:
    """A berth on this device for parts that are in host memory now."""
    memory = memory_for(device)
    return AtHome() if memory is None else Visitor(state, name=name, memory=memory, read_only=read_only)


def memory_for(device: str) -> Memory | None:
    """The memory of the device; None for processors, which use the host's."""
    return None if device == "cpu" else memory_of(torch.device(device))


def check_device(checks: Checks, device: str, attached: bool) -> None:
    """Checks that the process sees the device. Beside a controller it must see one GPU only: it would use the first."""
    if device == "cpu":
        return
    seen, shown = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    there = f"torch {torch.__version__} sees {seen}, CUDA_VISIBLE_DEVICES is {shown!r}"
    if not seen:
        checks.report("model.device", device, f"cpu where no GPU is seen ({there})", "show it one, or write cpu")
    elif attached and seen > 1:
        limit = f"one GPU for each process ({there})"
        checks.report("model.device", device, limit, "name each node's GPU in the cluster file (`devices`)")


def moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors for each parameter, without its step counts, which are single numbers."""
    parameters = (each for group in optimiser.param_groups for each in group["params"])
    return {
        f"{place}.{name}": value
        for place, parameter in enumerate(parameters)
        for name, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.dim()
    }


def copied(value: Any) -> Any:
    """A copy of the value, with each tensor's present values in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value
