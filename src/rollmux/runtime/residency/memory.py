"""The device, as residency sees it: flat memory that comes and goes. Here the processor's; `cuda.py` has the GPU's.

Once `release` has returned the memory is free: it has asked whoever keeps the books, and does not go by its own.
"""

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from rollmux.runtime.host.errors import Unfit, shown
from rollmux.runtime.residency.checksum import sums_of
from rollmux.runtime.residency.errors import NotFreed
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.pages import MADV_FREE, PAGE_BYTES, Piece
from rollmux.runtime.residency.passing import InThreads
from rollmux.runtime.residency.transfer import Transfer

ALL = sys.maxsize  # chunks are moved as one, as many as lie together
# Each core may list so many pages before the kernel's books show that they are the kernel's to take (PAGEVEC_SIZE, 31).
PENDING_BYTES = 31 * PAGE_BYTES


class Memory(Protocol):
    """A device's memory for one state. Each state has its own, and its moves come one after the other."""

    device: torch.device
    copies_itself: bool  # else the processor copies, and compares or sums in passing
    window: int  # at most so many chunks are copied as one
    span: int  # at most so many chunks are summed as one; whole windows
    staging_bytes: int  # of host memory that the device needs for itself

    def holds(self, tensor: Tensor) -> bool:
        """Whether it lies on this device."""

    def allocate(self, nbytes: int) -> Tensor:
        """A flat piece; what is in it is undefined."""

    def clear(self, part: Tensor) -> None:
        """Makes a part of what `allocate` has just given zero."""

    def expect(self, nbytes: int, piece: int | None) -> None:
        """So many bytes are about to be let go of. `piece`: their address, if they are what `allocate` gave."""

    def release(self) -> None:
        """Gives back to the node what was let go of, and raises NotFreed if that did not happen."""

    def pin(self, data: Tensor) -> None:
        """Makes host memory ready to be copied from and to."""

    def unpin(self) -> None: ...

    def transfer(self) -> Transfer: ...

    def sums(self, data: Tensor) -> Callable[[], Tensor]:
        """Asks for the sums of at most a span of what `allocate` gave. Call what it returns once, before the next sums
        are asked for: it waits for these. They stay valid until sums have been asked for twice more."""


class CpuMemory:
    """This process's working memory, in huge pages where the kernel gives them.

    With `lazy` the pages are the kernel's to take whenever anybody needs memory, and this process's own again, without
    being cleared first, if nobody did.
    """

    device = torch.device("cpu")
    copies_itself = False
    window = span = ALL
    staging_bytes = 0

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self._piece: Piece | None = None  # kept for the next state of this size
        self._given: weakref.ref[torch.UntypedStorage] | None = None  # alive as long as somebody looks at the piece
        self._given_back = True  # the piece is as the kernel gives it, zero
        self._zero = False  # whether the piece was zero when it was last given out

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self.device

    def allocate(self, nbytes: int) -> Tensor:
        if self._piece is None or nbytes != self._piece.nbytes or self._is_in_use():
            self._piece, self._given_back = Piece(nbytes), True
        self._zero, self._given_back = self._given_back, False
        made = self._piece.tensor()
        self._given = weakref.ref(made.untyped_storage())
        return made

    def clear(self, part: Tensor) -> None:
        """Gives the pages back: the kernel clears them once somebody needs them."""
        if self._zero or self._piece is None:
            return
        try:
            self._piece.empty(part)
        except OSError:  # such as for memory that is locked
            part.zero_()

    def expect(self, nbytes: int, piece: int | None) -> None:
        """Nothing to do: `release` asks the kernel."""

    def release(self) -> None:
        piece = self._piece
        if piece is None:
            return
        if self._is_in_use():
            raise NotFreed(
                f"{shown(piece.nbytes)} are in use: drop what looks at them, and give each state a memory of its own"
            )
        if not (self.lazy and _left_to_the_kernel(piece)):
            _give_back(piece)
            self._given_back = True

    def _is_in_use(self) -> bool:
        return self._given is not None and self._given() is not None

    def resident_bytes(self) -> int:
        """What the kernel keeps of the last piece."""
        return 0 if self._piece is None else self._piece.resident_bytes()

    def used_bytes(self) -> int:
        """What of the last piece is in memory and not the kernel's to take."""
        return 0 if self._piece is None else _used(self._piece)

    def pin(self, data: Tensor) -> None:
        """Nothing to do: the processor copies to and from any host memory."""

    def unpin(self) -> None: ...

    def transfer(self) -> Transfer:
        """Memory that is new from the kernel is written chunk by chunk, while the pages that the kernel cleared are in
        the core's cache. All else is written past the cache."""
        return InThreads(torch.get_num_threads(), CHUNK_BYTES if self._zero else None)

    def sums(self, data: Tensor) -> Callable[[], Tensor]:
        return partial(sums_of, data)


def _left_to_the_kernel(piece: Piece) -> bool:
    """Leaves the piece to the kernel. False if its books don't show that: not all kernels keep such books."""
    if piece.nbytes <= _pending():
        return False
    try:
        piece.advise(MADV_FREE)
        return _used(piece) == 0
    except OSError:
        return False


def _give_back(piece: Piece) -> None:
    shared = 0
    with suppress(OSError):
        shared = piece.shared_bytes()
    try:
        piece.empty()
    except OSError as error:
        raise NotFreed(f"{shown(piece.nbytes)} can't be given back ({error.strerror}); do not lock them") from error
    left = piece.resident_bytes() or shared
    if left:
        raise NotFreed(f"the kernel still keeps {shown(left)} of {shown(piece.nbytes)}; look for who shares them")


def _used(piece: Piece) -> int:
    left = piece.unreclaimable_bytes()
    return left if left > _pending() else 0


def _pending() -> int:
    return (os.cpu_count() or 1) * PENDING_BYTES


def memory_of(device: torch.device) -> Memory:
    """What moves state to such a device."""
    if device.type == "cpu":
        return CpuMemory(lazy=True)
    if device.type == "cuda":
        from rollmux.runtime.residency.cuda import CudaMemory  # noqa: PLC0415 - only where there is one

        return CudaMemory(device)
    raise Unfit(f"state on {device} can't be moved off: give a Memory for it, or put it on a cpu or cuda device")
