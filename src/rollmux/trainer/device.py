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
    """Where some of a job's parts are while a phase works: see `Visitor`, which moves them."""

    @property
    def is_here(self) -> bool: ...

    def load(self) -> None: ...

    def offload(self) -> None: ...

    def still(self) -> AbstractContextManager[None]: ...

    def writing(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


class AtHome:
    """Processors compute where host memory is: nothing moves."""

    is_here = False

    def load(self) -> None: ...

    def offload(self) -> None: ...

    def still(self) -> AbstractContextManager[None]:
        return nullcontext()

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


def berth_of(device: str, name: str, state: Callable[[], object], read_only: bool = False) -> Berth:
    """Of parts that are in host memory now."""
    memory = memory_for(device)
    return AtHome() if memory is None else Visitor(state, name=name, memory=memory, read_only=read_only)


def memory_for(device: str) -> Memory | None:
    """The device's; None where that is the host's own."""
    return None if device == "cpu" else memory_of(torch.device(device))


def check_device(checks: Checks, device: str, attached: bool) -> None:
    """Whether a process has what it is to compute on: beside a controller one GPU, for it would take the first."""
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
    """What it knows of each parameter by now; its counts of steps, single numbers, are not of it."""
    parameters = (each for group in optimiser.param_groups for each in group["params"])
    return {
        f"{place}.{name}": value
        for place, parameter in enumerate(parameters)
        for name, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.dim()
    }


def copied(value: Any) -> Any:
    """The same with every tensor's present values, in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value
