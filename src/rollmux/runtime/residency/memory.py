"""The device, as residency sees it: flat memory that comes and goes. Here the processor's; `cuda.py` has the GPU's.

What `release` returns from is free: it has asked those who keep the books, not itself.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rollmux.runtime.residency.errors import NotFreed, Unfit, shown
from rollmux.runtime.residency.host_copy import HUGE_BYTES, PAGE_BYTES
from rollmux.runtime.residency.transfer import Direct, Transfer

# Pages that each core may have on its list before the kernel's books show them as its own to take (PAGEVEC_SIZE, 31).
PENDING_BYTES = 31 * PAGE_BYTES
MADV_FREE, MADV_HUGEPAGE, PROT_NONE = 8, 14, 0  # of Linux; Python 3.11 names only some


class Memory(Protocol):
    """One device."""

    device: torch.device
    window: int  # chunks whose checksums are made at once, before any of them is copied
    staging_bytes: int  # of host memory that the device needs for itself

    def allocate(self, nbytes: int) -> Tensor:
        """A flat piece; what is in it is undefined."""

    def expect(self, nbytes: int, in_one: bool) -> None:
        """So many bytes are about to be let go of; `in_one`: they are one piece that `allocate` gave."""

    def release(self) -> None:
        """Gives back to the node what was let go of, and raises NotFreed if that did not happen."""

    def abandon(self) -> None:
        """Somebody else still looks at the last piece: it stays theirs, and counts as leaked."""

    def pin(self, data: Tensor) -> None:
        """Makes ready what will be copied from and to."""

    def unpin(self) -> None: ...

    def transfer(self) -> Transfer: ...


class CpuCopies:
    """Copies of this process, by torch's own threads."""

    lanes = 1

    def start(self, lane: int, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def wait(self, lane: int) -> None:
        """They are done when they return."""


class CpuMemory:
    """This process's working memory, in huge pages where the kernel gives them.

    With `lazy` the pages are the kernel's to take whenever anybody needs memory, and this process's own again, without
    being cleared first, if nobody did.
    """

    device = torch.device("cpu")
    window = 1  # while a chunk is in the cache
    staging_bytes = 0

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self._mapped: mmap.mmap | None = None
        self._at = self._nbytes = 0  # of the last piece

    def allocate(self, nbytes: int) -> Tensor:
        if self._mapped is None or nbytes != self._nbytes:
            self._mapped = mmap.mmap(-1, nbytes + 2 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._mapped.madvise(MADV_HUGEPAGE)
            _fenced(self._mapped)
            self._at = HUGE_BYTES - _address(self._mapped) % HUGE_BYTES
            self._nbytes = nbytes
        return torch.frombuffer(self._mapped, dtype=torch.uint8, offset=self._at, count=nbytes)

    def expect(self, nbytes: int, in_one: bool) -> None:
        """The kernel is asked afterwards."""

    def release(self) -> None:
        if self._mapped is None:
            return
        try:
            self._mapped.madvise(MADV_FREE if self.lazy else mmap.MADV_DONTNEED)
        except OSError as error:
            raise NotFreed(f"{shown(self._nbytes)} can't be given back ({error.strerror}); do not lock them") from error
        left = (unreclaimable_bytes if self.lazy else resident_bytes)(self._mapped)
        if left > (os.cpu_count() or 1) * PENDING_BYTES * self.lazy:
            raise NotFreed(f"the kernel still keeps {shown(left)} of {shown(self._nbytes)}; look for who shares them")

    def abandon(self) -> None:
        """Somebody else looks at the last piece: it stays theirs."""
        self._mapped = None

    def pin(self, data: Tensor) -> None:
        """Host memory is what it is."""

    def unpin(self) -> None: ...

    def transfer(self) -> Transfer:
        return Direct(CpuCopies())


def unreclaimable_bytes(mapped: mmap.mmap) -> int:
    """How much of a mapping is in memory, and not the kernel's to take."""
    start, kept, inside = _address(mapped), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, *rest = line.split()
        if not word.endswith(":"):
            low, high = (int(each, 16) for each in word.split("-"))
            inside = low < start + len(mapped) and high > start
        elif inside and word in ("Rss:", "LazyFree:"):
            kept += int(rest[0]) * (1024 if word == "Rss:" else -1024)
    return kept


def resident_bytes(mapped: mmap.mmap) -> int:
    """How much of a mapping is in memory."""
    pages = -(-len(mapped) // PAGE_BYTES)
    found = (ctypes.c_ubyte * pages)()
    start = _address(mapped)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(torch.frombuffer(found, dtype=torch.uint8).bitwise_and(1).sum()) * PAGE_BYTES


def _fenced(mapped: mmap.mmap) -> None:
    """Closes its first and last page, so that the kernel keeps books on it alone, and not on it and its neighbours."""
    libc = ctypes.CDLL(None, use_errno=True)
    for at in (0, (len(mapped) - 1) // PAGE_BYTES * PAGE_BYTES):
        if libc.mprotect(ctypes.c_void_p(_address(mapped) + at), ctypes.c_size_t(PAGE_BYTES), PROT_NONE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _address(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def memory_of(device: torch.device) -> Memory:
    """What moves state to such a device."""
    if device.type == "cpu":
        return CpuMemory()
    if device.type == "cuda":
        from rollmux.runtime.residency.cuda import CudaMemory  # noqa: PLC0415 - only where there is one

        return CudaMemory(device)
    raise Unfit(f"state on {device} can't be moved off: give a Memory for it, or put it on a cpu or cuda device")
