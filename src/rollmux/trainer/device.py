"""What a job computes on: processors, or a GPU that its parts visit while a phase works (docs/design/devices.md)."""

from collections.abc import Iterator, Mapping
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


def berth_of(device: str, name: str, state: object, read_only: bool = False) -> Berth:
    """Of parts that are in host memory now. InvalidSpec if there is no such device here."""
    memory = memory_for(device)
    return AtHome() if memory is None else Visitor(state, name=name, memory=memory, read_only=read_only)


def memory_for(device: str) -> Memory | None:
    """The device's; None where that is the host's own."""
    if device == "cpu":
        return None
    if not torch.cuda.is_available():
        checks = Checks("job")
        checks.report("model.device", device, "a device that this machine has", "write cpu, or look for the driver")
        checks.require()
    return memory_of(torch.device(device))


class Moments(Mapping[str, Tensor]):
    """What an optimiser knows of each parameter, as it is when it is looked at. Its counts of steps are not of it."""

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self._optimiser = optimiser

    def _known(self) -> dict[str, Tensor]:
        parameters = (each for group in self._optimiser.param_groups for each in group["params"])
        return {
            f"{place}.{name}": value
            for place, parameter in enumerate(parameters)
            for name, value in self._optimiser.state.get(parameter, {}).items()
            if isinstance(value, Tensor) and value.dim()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def items(self) -> Any:
        return self._known().items()


def copied(value: Any) -> Any:
    """The same with every tensor's present values, in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value
