"""Moves many pieces between host and device: straight where the host's side is pinned, else through pinned buffers.

A buffer is written again only after the copy that reads it is done. No move is sure to be done before `finish` returns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES


class Copies(Protocol):
    """A device's copies, in lanes that run beside each other; each lane keeps its order."""

    lanes: int

    def start(self, lane: int, target: Tensor, source: Tensor) -> None:
        """Begins a copy, and may return before it is done."""

    def wait(self, lane: int) -> None:
        """Waits until all that was started in this lane is done."""


class Transfer(Protocol):
    def load(self, device: Tensor, host: Tensor) -> None: ...

    def save(self, host: Tensor, device: Tensor) -> None: ...

    def finish(self) -> None: ...


@contextmanager
def finished(transfer: Transfer) -> Iterator[Transfer]:
    """Waits at the end, even if not all was begun: a copy under way would write to memory that others have by then."""
    try:
        yield transfer
    finally:
        transfer.finish()


class Direct:
    """Each piece goes into the next lane."""

    def __init__(self, copies: Copies) -> None:
        self._copies, self._next = copies, 0

    def load(self, device: Tensor, host: Tensor) -> None:
        self._start(device, host)

    def save(self, host: Tensor, device: Tensor) -> None:
        self._start(host, device)

    def finish(self) -> None:
        for lane in range(self._copies.lanes):
            self._copies.wait(lane)

    def _start(self, target: Tensor, source: Tensor) -> None:
        self._copies.start(self._next, target, source)
        self._next = (self._next + 1) % self._copies.lanes


class Staged:
    """Each lane has a buffer of a chunk: while the device reads or fills one, this thread works on another."""

    def __init__(self, copies: Copies, buffers: list[Tensor]) -> None:
        self._copies, self._buffers, self._next = copies, buffers, 0
        self._owed: list[tuple[Tensor, Tensor] | None] = [None] * len(buffers)  # what has yet to leave a buffer

    def load(self, device: Tensor, host: Tensor) -> None:
        for start in range(0, host.numel(), CHUNK_BYTES):
            part = slice(start, start + CHUNK_BYTES)
            lane, buffer = self._free(host[part].numel())
            buffer.copy_(host[part])
            self._copies.start(lane, device[part], buffer)

    def save(self, host: Tensor, device: Tensor) -> None:
        for start in range(0, host.numel(), CHUNK_BYTES):
            part = slice(start, start + CHUNK_BYTES)
            lane, buffer = self._free(host[part].numel())
            self._copies.start(lane, buffer, device[part])
            self._owed[lane] = (host[part], buffer)

    def finish(self) -> None:
        for _ in self._buffers:
            self._free(0)

    def _free(self, size: int) -> tuple[int, Tensor]:
        """The next lane's buffer, once nothing is in it any more."""
        lane = self._next
        self._next = (lane + 1) % len(self._buffers)
        self._copies.wait(lane)
        owed, self._owed[lane] = self._owed[lane], None
        if owed is not None:
            owed[0].copy_(owed[1])
        return lane, self._buffers[lane][:size]
