"""A checksum that keeps up with memory: the sums of a chunk's rows and of its columns, and a hash over them.

A row is 8 KiB, a column the words that stand at one place of each row. A word that changes changes both its sums, words
that change places those of their columns: what keeps all of them is an accident of one in 2^64, or four changes at the
corners of a rectangle that make up for each other. The sums are made where the data are, so that a GPU sums its own
memory and sends only a 340th of it. What is zero from end to end has a checksum of its own: that says all there is to
know about it. So has what nobody has summed.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES, ROW_BYTES

SUM_BYTES, NUMBER_BYTES = 16, 8  # of a chunk, and of a row or column
ZEROS, UNSUMMED = bytes(SUM_BYTES), b"\xff" * SUM_BYTES
COLUMNS, ROWS = ROW_BYTES // NUMBER_BYTES, CHUNK_BYTES // ROW_BYTES


class Sums(NamedTuple):
    """Of each chunk one line: the sums of its columns and then of its rows, and whether there is anything in each row.

    The last chunk may have fewer rows, and what follows them in its line says nothing.
    """

    rows: int
    room: Tensor  # bytes, as many as `size` says

    @staticmethod
    def size(rows: int) -> int:
        return -(-rows // ROWS) * ((COLUMNS + ROWS) * NUMBER_BYTES + ROWS)

    @property
    def numbers(self) -> Tensor:
        lines = -(-self.rows // ROWS)
        return self.room[: self.room.numel() - lines * ROWS].view(torch.int64).view(lines, COLUMNS + ROWS)

    @property
    def filled(self) -> Tensor:
        lines = -(-self.rows // ROWS)
        return self.room[self.room.numel() - lines * ROWS :].view(torch.bool).view(lines, ROWS)

    def cpu(self) -> "Sums":
        return Sums(self.rows, self.room.cpu())


def rows_of(data: Tensor) -> Tensor:
    """The words of each row."""
    return data.view(torch.int64).view(-1, COLUMNS)


def sums_of(data: Tensor, room: Tensor | None = None) -> Sums:
    """What it takes to tell the checksum of each chunk without looking at the data again."""
    rows = rows_of(data)
    size = Sums.size(len(rows))
    room = room if room is not None else torch.empty(size, dtype=torch.uint8, device=data.device)
    sums = Sums(len(rows), room[:size])
    whole = len(rows) // ROWS
    if whole:
        _sum(rows[: whole * ROWS].view(whole, ROWS, COLUMNS), sums.numbers[:whole], sums.filled[:whole])
    if rest := len(rows) % ROWS:
        _sum(rows[whole * ROWS :].view(1, rest, COLUMNS), sums.numbers[whole:], sums.filled[whole:])
    return sums


def _sum(chunks: Tensor, numbers: Tensor, filled: Tensor) -> None:
    rows = chunks.shape[1]
    torch.sum(chunks, 1, out=numbers[:, :COLUMNS])
    torch.sum(chunks, 2, out=numbers[:, COLUMNS : COLUMNS + rows])
    torch.any(chunks, 2, out=filled[:, :rows])


def digests(sums: Sums) -> Iterator[bytes]:
    """The checksum of each chunk, from sums that are on the host."""
    starts = range(0, sums.rows, ROWS)
    filled = np.logical_or.reduceat(sums.filled.numpy().reshape(-1)[: sums.rows], starts).tolist()
    for first, numbers, anything in zip(starts, sums.numbers.numpy(), filled, strict=True):
        yield digest(numbers[: COLUMNS + sums.rows - first].data) if anything else ZEROS


def digest(numbers: memoryview) -> bytes:
    """The checksum of a chunk that is not zero, from its sums."""
    return sha256(numbers, usedforsecurity=False).digest()[:SUM_BYTES]


def checksum(data: Tensor) -> bytes:
    """Of one chunk on the host."""
    rows = rows_of(data)
    numbers = torch.cat((rows.sum(0), rows.sum(1)))
    if not numbers.any() and not data.any():
        return ZEROS
    return digest(numbers.numpy().data)
