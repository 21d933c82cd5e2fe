"""One gradient by all training nodes of a job: the leader's, and a replica of its model on each of the others.

Whole groups are dealt out, and the sum of each node is added to the leader's in the order of their ranks. Only the
leader makes the step; the others get the new weights when the rollout nodes do.

Invariant: a gradient is whole or nothing. If a line breaks, it is computed again from the same weights and samples.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from rollmux.runtime.sync import SyncFailed
from rollmux.runtime.sync.channel import Channel
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.replicas import dealt
from rollmux.trainer.sample import Sample
from rollmux.trainer.update import GradientSum, Objective, Stats

log = logging.getLogger("rollmux")

# The most bytes of a message: the longest has the samples of a gradient, with all of their tokens.
MOST_BYTES = 2**30
_TRIES = 3
_YOUR_TURN = b""

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The message to a replica: its samples of a gradient, and the version of the landed weights to compute it with."""

    version: int
    samples: tuple[Sample, ...]


class Lines(Protocol):
    """The leader's lines to the replicas."""

    def replicas(self, version: int) -> list[Channel]:
        """A line to each replica, once weights of this version are on its node."""

    def part(self) -> None:
        """Ends these lines: the replicas drop their work, and offer new lines."""


class Shared:
    """The leader's side: computes gradients together with the replicas."""

    def __init__(self, model: Any, objective: Objective, lines: Lines) -> None:
        self._model, self._objective, self._lines = model, objective, lines

    def gradient(self, version: int, samples: Sequence[Sample]) -> Stats:
        """Leaves the whole gradient in `grad`."""
        for left in reversed(range(_TRIES)):
            try:
                return self._together(self._lines.replicas(version), version, samples)
            except SyncFailed as trouble:
                self._lines.part()
                if not left:
                    raise RanksApart(f"the replicas' part in a gradient did not come: {trouble}") from trouble
                log.warning("a gradient is computed again: %s", trouble)
        raise AssertionError("the last try returns or raises")

    def _together(self, lines: Sequence[Channel], version: int, samples: Sequence[Sample]) -> Stats:
        mine, *parts = dealt(samples, 1 + len(lines))
        for line, part in zip(lines, parts, strict=True):
            line.write(msgspec.msgpack.encode(Part(version, tuple(part))))
        gradient = GradientSum(self._model, self._objective, version=version)
        gradient.add(mine)
        return gradient.finish(_Leading(lines))


def take_part(model: Any, objective: Objective, part: Part, line: Channel, go_on: Callable[[], None]) -> None:
    """A replica's side. `go_on` is called before each group, and raises if the replica is to stop."""
    groups: dict[str, list[Sample]] = {}
    for sample in part.samples:
        groups.setdefault(sample.group, []).append(sample)
    gradient = GradientSum(model, objective, version=part.version)
    for group in groups.values():
        go_on()
        gradient.add(group)
    gradient.finish(_Following(line))
    model.zero_grad(set_to_none=True)


def heard(line: Channel) -> Part:
    """The leader's next message to a replica."""
    return _part.decode(line.read(MOST_BYTES))


_part = msgspec.msgpack.Decoder(Part)


class _Leading:
    """The leader's `rollmux.trainer.update.Exchange`. A replica writes only once the leader is about to read: a line is
    given up if its other end reads nothing for long.
    """

    def __init__(self, lines: Sequence[Channel]) -> None:
        self._lines = lines

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        everybody = [mine]
        for line in self._lines:
            line.write(_YOUR_TURN)
            everybody.append(msgspec.msgpack.decode(line.read(MOST_BYTES), type=kind))
        told = msgspec.msgpack.encode(everybody)
        for line in self._lines:
            line.write(told)
        return everybody

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for line in self._lines:
            line.write(_YOUR_TURN)
            for tensor in tensors:
                raw = line.read(tensor.nbytes)
                if raw:
                    tensor.add_(torch.frombuffer(raw, dtype=tensor.dtype).view(tensor.shape).to(tensor.device))


class _Following:
    """A replica's `Exchange`. Only the leader gets the sum, as it makes the step."""

    def __init__(self, line: Channel) -> None:
        self._line = line

    def gather(self, mine: T, kind: type[T]) -> list[T]:
        self._line.read(len(_YOUR_TURN))
        self._line.write(msgspec.msgpack.encode(mine))
        return msgspec.msgpack.decode(self._line.read(MOST_BYTES), type=list[kind])  # type: ignore[valid-type]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        self._line.read(len(_YOUR_TURN))
        for tensor in tensors:
            self._line.write(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
