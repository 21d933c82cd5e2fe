"""One gradient by all training nodes of a job: the leader's, and a replica of its model on each of the others.

Whole groups are dealt out, and what each node has added up is added to the leader's in the order of their ranks: only
the leader makes the step, and the others have its weights with the rollout nodes.

Invariant: a gradient is whole or nothing. Where a line breaks, it is computed again from the same weights and samples.
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

# Of one message: the samples of a gradient, with all of their tokens, are the longest.
MOST_BYTES = 2**30
_TRIES = 3
_YOUR_TURN = b""

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """To a replica: its samples of a gradient by weights of this version, which have landed."""

    version: int
    samples: tuple[Sample, ...]


class Lines(Protocol):
    """What the leader's process knows of the replicas."""

    def replicas(self, version: int) -> list[Channel]:
        """A line to each, once weights of this version are on its node."""

    def part(self) -> None:
        """Ends these lines: what replicas were at comes to nothing, and they offer others."""


class Shared:
    """The leader's side."""

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
    """A replica's side; `go_on` is asked before each group, and raises where it is to stop."""
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
    """The leader's next word to a replica."""
    return _part.decode(line.read(MOST_BYTES))


_part = msgspec.msgpack.Decoder(Part)


class _Leading:
    """See `rollmux.trainer.update.Exchange`. Nobody writes before the leader is about to read that: a line is given up
    whose other end reads nothing for long.
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
    """The same; the sum is the leader's alone, who makes the step."""

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
