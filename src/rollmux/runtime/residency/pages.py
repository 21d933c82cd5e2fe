"""Working memory from the kernel, and the kernel's own word on how much of it is in use.

Pieces lie below everything else in the process: `smaps` goes through all mappings from the lowest, so that what is
asked about one of these ends before the large ones.
"""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import ENOSYS
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor

from rollmux import system

PAGE_BYTES = mmap.PAGESIZE  # of this kernel: on aarch64 it may be 4, 16 or 64 KiB
HUGE_BYTES = 2 << 20
MADV_FREE, MADV_HUGEPAGE = 8, 14  # of Linux; Python 3.11 names only some
PROT_NONE, MAP_FIXED = 0, 0x10  # of Linux, macOS and the BSDs
# Wishes only: where a place is taken, or too high for this processor, the kernel chooses another one.
PLACES = cycle(range(1 << 40, 1 << 46, 1 << 36))
SMAPS = Path("/proc/self/smaps")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class Piece:
    """Private memory in huge pages where the kernel gives them; it goes when nobody looks at it any more.

    Its neighbours are closed pages: else the kernel would keep its books on both together.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self._length = nbytes, (2 - -nbytes // HUGE_BYTES) * HUGE_BYTES
        try:
            found = _mapped(next(PLACES), self._length)
        except OSError as error:
            raise MemoryError(f"no {self._length} bytes of address space are left ({error.strerror})") from error
        self._bytes = (ctypes.c_ubyte * self._length).from_address(found)
        gone = weakref.finalize(self._bytes, _libc.munmap, ctypes.c_void_p(found), ctypes.c_size_t(self._length))
        gone.atexit = False  # others may look at the memory to the end
        self.start, self.end = found, found + self._length
        for at in (self.start, self.end - mmap.PAGESIZE):
            _called(_libc.mprotect, at, mmap.PAGESIZE, PROT_NONE)
        with suppress(OSError):  # a kernel without huge pages refuses the advice
            self.advise(MADV_HUGEPAGE)

    def tensor(self) -> Tensor:
        """All of it, from the first whole huge page on."""
        offset = -self.start % HUGE_BYTES or HUGE_BYTES
        return torch.frombuffer(self._bytes, dtype=torch.uint8, offset=offset, count=self.nbytes)

    def advise(self, advice: int, part: Tensor | None = None) -> None:
        """Advises Linux on all of it, or on a part of whole pages. Elsewhere the numbers mean other things: OSError."""
        if not system.IS_LINUX:
            raise OSError(ENOSYS, os.strerror(ENOSYS))
        at, nbytes = (self.start, self._length) if part is None else (part.data_ptr(), part.nbytes)
        _called(_libc.madvise, at, nbytes, advice)

    def empty(self, part: Tensor | None = None) -> None:
        """Gives back all of it, or whole pages: from now on they are zero.

        Only Linux takes advice as a promise. Others may keep what was there: new pages are laid over the old ones.
        """
        if system.IS_LINUX:
            self.advise(mmap.MADV_DONTNEED, part)
        elif part is None:
            _mapped(self.start + mmap.PAGESIZE, self._length - 2 * mmap.PAGESIZE, MAP_FIXED)
        else:
            _mapped(part.data_ptr(), part.nbytes, MAP_FIXED)

    def resident_bytes(self) -> int:
        """How much of it is in memory."""
        pages = torch.zeros(self._length // mmap.PAGESIZE, dtype=torch.uint8)
        _called(_libc.mincore, self.start, self._length, ctypes.c_void_p(pages.data_ptr()))
        return int(pages.bitwise_and_(1).sum()) * mmap.PAGESIZE

    def unreclaimable_bytes(self) -> int:
        """How much of it is in memory, and not the kernel's to take."""
        return self._told({b"Rss:": 1, b"LazyFree:": -1})

    def shared_bytes(self) -> int:
        """How much of it other processes have in memory too: children that this one had meanwhile."""
        return self._told({b"Shared_Clean:": 1, b"Shared_Dirty:": 1})

    def _told(self, signs: Mapping[bytes, int]) -> int:
        """The sum of these lines of the kernel's books on the piece."""
        told, inside = 0, False
        with SMAPS.open("rb", buffering=PAGE_BYTES) as lines:  # no more than what the kernel writes at once
            for line in lines:
                word, *rest = line.split()
                if not word.endswith(b":"):
                    low, high = (int(each, 16) for each in word.split(b"-"))
                    if low >= self.end:
                        break
                    inside = high > self.start
                elif inside and word in signs:
                    told += int(rest[0]) * 1024 * signs[word]
        return told


def _mapped(at: int, nbytes: int, flags: int = 0) -> int:
    """New private memory, zero: at this address if it is free, with MAP_FIXED in place of what is there."""
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    found = _libc.mmap(at, nbytes, protection, flags, -1, 0)
    if found == ctypes.c_void_p(-1).value:
        raise _reason()
    return int(found)


def _called(function: Callable[..., int], at: int, nbytes: int, argument: object) -> None:
    """A call about memory, which fails as Python's own calls do."""
    if function(ctypes.c_void_p(at), ctypes.c_size_t(nbytes), argument):
        raise _reason()


def _reason() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
