"""Copies and comparisons by the processor, a chunk by each of torch's threads at a time, and checksums made in passing.

Numpy copies, not torch: it lets go of the interpreter, and leaves each piece to the system's own `memmove`, which wrote
538 MB into pages new from the kernel in 60 ms where torch took 91, and into mapped ones in 52 where torch took 60.
The system's `memcmp` compares, at 19 GB/s where a copy runs at 17, and numpy and torch at 15.
"""

import ctypes
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rollmux.runtime.residency.checksum import added_up, digest, words_of
from rollmux.runtime.residency.layout import CHUNK_BYTES, ROW_BYTES

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes, _memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int

Result = TypeVar("Result")


def copy(target: Tensor, source: Tensor) -> None:
    """Copies one piece of bytes."""
    np.copyto(target.numpy(), source.numpy())


def copy_summed(target: Tensor, source: Tensor) -> bytes:
    """Copies a chunk that is not zero, and returns its checksum."""
    to, of = words_of(target).numpy(), words_of(source).numpy()
    return digest(added_up(of, lambda part: np.copyto(to[part], of[part])))


def is_zero(data: Tensor) -> bool:
    """Whether all bytes are zero. If the first are not, the rest is not read."""
    return not data[:ROW_BYTES].numpy().any() and not data.numpy().any()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two pieces hold the same bytes. Nothing is read behind the first difference."""
    order: int = _memcmp(one.data_ptr(), other.data_ptr(), one.numel())
    return order == 0


def are_same(dtype: torch.dtype, one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same bytes in this type. If they are one memory, nothing is read."""
    if one.data_ptr() == other.data_ptr() and (one.dtype, one.stride()) == (other.dtype, other.stride()):
        return True
    # As rows of one element each: the bytes of an element lie side by side, whatever lies between elements.
    first, second = (
        each.detach().to(one.device, dtype).flatten().unsqueeze(-1).view(torch.uint8) for each in (one, other)
    )
    return torch.equal(first, second)


def in_threads(do: Callable[[int], Result], numbers: Iterable[int], threads: int) -> list[Result]:
    """Calls `do` for each number, and returns the results in the order of the numbers."""
    if threads == 1:
        return [do(number) for number in numbers]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, numbers))


class InThreads:
    """A transfer within this process. Its threads end with it, and with them their hold on what they moved.

    Loads go in pieces of `piece` bytes. Without it, as in saves, each thread copies its share as one: such a copy is
    written past the caches.
    """

    def __init__(self, threads: int, piece: int | None) -> None:
        self._threads, self._piece = threads, piece
        self._open: list[tuple[Tensor, Tensor]] = []

    def load(self, device: Tensor, host: Tensor) -> None:
        self._add(device, host, self._piece or self._share(host))

    def save(self, host: Tensor, device: Tensor) -> None:
        self._add(host, device, self._share(host))

    def finish(self) -> None:
        pairs, self._open = self._open, []
        in_threads(lambda number: copy(*pairs[number]), range(len(pairs)), self._threads)

    def _share(self, data: Tensor) -> int:
        return max(-(-data.numel() // self._threads), CHUNK_BYTES)

    def _add(self, target: Tensor, source: Tensor, piece: int) -> None:
        self._open += zip(torch.split(target, piece), torch.split(source, piece), strict=True)
