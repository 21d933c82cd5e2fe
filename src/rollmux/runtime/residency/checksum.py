"""A checksum that keeps up with memory: a sum for each row of 4 KiB, and a hash over the sums.

A changed row keeps its sum by an accident of one in 2^64; the one systematic miss is words that change places within
a row. The sums are made where the data are, so that a GPU sums its own memory and sends only a 512th of it.
What is zero from end to end has a checksum of its own: that says all there is to know about it. So has what nobody has
summed.
"""

from hashlib import blake2b

import torch
from torch import Tensor

from rollmux.runtime.residency.layout import ROW_BYTES

SUM_BYTES, NUMBER_BYTES = 16, 8  # of a chunk, and of a row
ZEROS, UNSUMMED = bytes(SUM_BYTES), b"\xff" * SUM_BYTES


def rows_of(data: Tensor) -> Tensor:
    """The words of each row."""
    return data.view(torch.int64).view(-1, ROW_BYTES // NUMBER_BYTES)


def row_sums(data: Tensor) -> Tensor:
    """One number for each row of bytes, on the device where they are."""
    return rows_of(data).sum(1)


Sums = tuple[Tensor, Tensor]  # of each row its sum, and whether there is anything in it


def sums_of(data: Tensor, into: Sums | None = None) -> Sums:
    """What it takes to tell the checksum of any part of the data without looking at them again."""
    sums, filled = into if into is not None else (None, None)
    rows = rows_of(data)
    return torch.sum(rows, 1, out=sums), torch.any(rows, 1, out=filled)


def digest(sums: Tensor, filled: Tensor) -> bytes:
    """The checksum of what has these sums, which are on the host. `filled` has anything in it if the data have."""
    numbers = sums.numpy()
    if not numbers.any() and not bool(filled.any()):
        return ZEROS
    return blake2b(numbers.data, digest_size=SUM_BYTES).digest()


def checksum(data: Tensor) -> bytes:
    """Of whole rows of bytes, on whatever device they are."""
    return digest(row_sums(data).cpu(), data)
