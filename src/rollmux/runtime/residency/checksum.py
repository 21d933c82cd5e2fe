"""A checksum that keeps up with memory: a sum for each row of 4 KiB, and a hash over the sums.

A changed row keeps its sum by an accident of one in 2^64; the one systematic miss is words that change places within
a row. The sums are made where the data are, so that a GPU sums its own memory and sends only a 512th of it.
What is zero from end to end has a checksum of its own: that says all there is to know about it. So has what nobody has
summed.
"""

from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Tensor

from rollmux.runtime.residency.layout import ROW_BYTES

SUM_BYTES, WORD_BYTES = 16, 8
ZEROS, UNSUMMED = bytes(SUM_BYTES), b"\xff" * SUM_BYTES


def rows_of(data: Tensor) -> Tensor:
    """The words of each row."""
    return data.view(torch.int64).view(-1, ROW_BYTES // WORD_BYTES)


def row_sums(data: Tensor, into: Tensor | None = None) -> Tensor:
    """One number for each row of bytes, on the device where they are."""
    return torch.sum(rows_of(data), 1, out=into)


def sums_bytes(nbytes: int) -> int:
    """What the sums of so many bytes take."""
    return nbytes // ROW_BYTES * WORD_BYTES


def on_host(sums: Tensor) -> Callable[[], Tensor]:
    """They are on their way to the host, if they can be; the call waits for them."""
    try:
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=sums.is_cuda)
    except RuntimeError:  # nothing can be pinned
        return sums.cpu
    if not sums.is_cuda:
        return sums.cpu
    host.copy_(sums, non_blocking=True)
    there = torch.cuda.current_stream(sums.device).record_event()  # of this device, whichever is the current one

    def arrived() -> Tensor:
        there.synchronize()
        return host

    return arrived


def digest(sums: Tensor, data: Tensor) -> bytes:
    """The checksum of these data, whose rows have these sums, which are on the host."""
    numbers = sums.numpy()
    if not numbers.any() and not bool(data.any()):
        return ZEROS
    return blake2b(numbers.data, digest_size=SUM_BYTES).digest()


def checksum(data: Tensor) -> bytes:
    """Of whole rows of bytes, on whatever device they are."""
    return digest(on_host(row_sums(data))(), data)
