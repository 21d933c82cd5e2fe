"""A GPU's memory: one block that torch's allocator takes and gives back to the device, copies in several streams."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from rollmux.runtime.host.errors import NoRoom, Unfit, shown
from rollmux.runtime.residency.checksum import LINE, LINE_BYTES
from rollmux.runtime.residency.driver import allocation
from rollmux.runtime.residency.errors import NotFreed
from rollmux.runtime.residency.layout import CHUNK_BYTES, whole
from rollmux.runtime.residency.sheet import Sheet, Sheets
from rollmux.runtime.residency.transfer import Direct, Staged, Transfer

log = logging.getLogger("rollmux")
STREAMS = 2
# Torch's allocator gives a block of at least so many bytes, in steps of so many, a segment of the device to itself.
LEAST_BLOCK_BYTES, BLOCK_STEP_BYTES = 10 << 20, 2 << 20
CONFIGURATIONS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class CudaCopies:
    """Copies in streams of their own, which begin after what the device was doing."""

    def __init__(self, device: torch.device) -> None:
        self.lanes = STREAMS
        self._streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
        self._before = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def follow(self, device: torch.device) -> None:
        self._before.record(torch.cuda.current_stream(device))
        for stream in self._streams:
            stream.wait_event(self._before)

    def start(self, lane: int, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._streams[lane]):
            target.copy_(source, non_blocking=True)

    def wait(self, lane: int) -> None:
        self._streams[lane].synchronize()


class CudaMemory:
    """One GPU."""

    copies_itself = True
    window = 16  # copies of 64 MiB run at full speed
    span = 8 * window  # is summed in less time than one of its windows is copied
    staging_bytes = STREAMS * CHUNK_BYTES + 2 * Sheet.size(span)

    def __init__(self, device: torch.device) -> None:
        if any("expandable_segments:true" in os.environ.get(name, "").lower() for name in CONFIGURATIONS):
            remedy = f"take expandable_segments out of {' and '.join(CONFIGURATIONS)}"
            raise Unfit(f"with expandable segments torch keeps the device's memory when it is freed; {remedy}")
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._copies = CudaCopies(self.device)
        self._pinned: Tensor | None = None
        self._buffers: list[Tensor] = []
        self._sheets: Sheets | None = None
        self._expected = 0
        self._piece: int | None = None  # the address of what is to be freed, if that is one piece
        self._number: int | None = None  # the driver's number for that allocation
        self._allocated_before = self._reserved_before = 0  # by torch's books, where the driver has no number

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self.device

    def allocate(self, nbytes: int) -> Tensor:
        """A block that can go back whole: one of its own, unless torch holds a block of others' with enough room.

        At its end is room for the sums of a span: while copies run, the driver takes long to find any.
        """
        torch.cuda.empty_cache()
        size = max(nbytes + self.span * LINE_BYTES, LEAST_BLOCK_BYTES)
        size = -(-size // BLOCK_STEP_BYTES) * BLOCK_STEP_BYTES
        return torch.empty(size, dtype=torch.uint8, device=self.device)[:nbytes]

    def clear(self, part: Tensor) -> None:
        part.zero_()

    def expect(self, nbytes: int, piece: int | None) -> None:
        torch._C._cuda_clearCublasWorkspaces()  # they are nobody's state, and hold memory
        self._expected, self._piece = nbytes, piece
        self._number = allocation(piece) if piece is not None else None
        if self._number is None:
            self._allocated_before, self._reserved_before = self._books()

    def release(self) -> None:
        torch.cuda.empty_cache()
        if self._piece is None or self._number is None:
            self._require_in_books()
        elif allocation(self._piece) == self._number:
            what = f"{shown(self._expected)} were let go of, and torch keeps them"
            raise NotFreed(f"{self.device}: {what}; look for a pool or a setting of its allocator that holds blocks")

    def _require_in_books(self) -> None:
        """Asks torch's books instead of the driver. They add up everybody's tensors on this device."""
        if not self._expected:  # what others take meanwhile is theirs
            return
        allocated, reserved = self._books()
        freed, returned = self._allocated_before - allocated, self._reserved_before - reserved
        what = f"of {shown(self._expected)}, {shown(freed)} were freed and {shown(returned)} given back"
        if freed < self._expected or (self._piece is not None and returned < self._expected):
            raise NotFreed(f"{self.device}: {what}; look for who else allocates meanwhile")
        if returned < self._expected:  # tensors that were made one by one may share blocks with others
            log.warning("%s: %s; torch keeps the rest, beside what else is in its blocks", self.device, what)

    def _books(self) -> tuple[int, int]:
        """Bytes that torch's allocator has given out, and that it holds. Its own functions take four times as long."""
        told = torch.cuda.memory_stats_as_nested_dict(self.device)
        return told["allocated_bytes"]["all"]["current"], told["reserved_bytes"]["all"]["current"]

    def pin(self, data: Tensor) -> None:
        """Pins `data` where it lies. If that can't be, its copies go through pinned buffers."""
        if self._pinned is not None or self._buffers:
            raise Unfit(f"this memory of {self.device} has another state already: give each its own")
        if int(_runtime().cudaHostRegister(data.data_ptr(), data.numel(), 0)) == 0:
            self._pinned = data
        else:
            self._take_error()
            self._buffers = _buffers()
        self._sheets = Sheets(self.span, self.device)

    def _take_error(self) -> None:
        """CUDA keeps the error of a call that was refused, and torch takes it for the next kernel's: one that nobody
        needs."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self.device).add_(1)

    def unpin(self) -> None:
        pinned, self._pinned, self._buffers, self._sheets = self._pinned, None, [], None
        if pinned is not None:
            _runtime().cudaHostUnregister(pinned.data_ptr())

    def transfer(self) -> Transfer:
        self._copies.follow(self.device)
        return Staged(self._copies, self._buffers) if self._buffers else Direct(self._copies)

    def sums(self, data: Tensor) -> Callable[[], Tensor]:
        assert self._sheets is not None
        room = whole(data)[-self.span * LINE_BYTES :]
        return self._sheets.sums(data, room.view(torch.int64).view(-1, LINE))


def _buffers() -> list[Tensor]:
    try:
        return [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(STREAMS)]
    except RuntimeError as error:
        remedy = "raise the limit on locked memory (ulimit -l), or hold less"
        raise NoRoom(f"not even {shown(STREAMS * CHUNK_BYTES)} can be pinned: {error}; {remedy}") from error


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
