"""A checksum that keeps up with memory: the sums of a chunk's rows and of its columns, and a hash over them.

A row has 1024 words, and a column is what stands at one place of rows of 1025: no two words share both, and there are
columns of an odd height. So one word that changes is seen, two that change places are, and the same change of all of a
chunk is. What keeps all sums is an accident of one in 2^64, or changes that make up for each other in each row and each
column. The sums are made where the data are, so that a GPU sums its own memory and sends only a 327th of it.

A chunk that is zero has a checksum of its own, which says all there is to know about it; whether one is, no sum tells.
So has what nobody has summed.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES, ROW_BYTES

CHECKSUM_BYTES, WORD_BYTES = 16, 8
ZEROS, UNSUMMED = bytes(CHECKSUM_BYTES), b"\xff" * CHECKSUM_BYTES
WORDS, ROW = CHUNK_BYTES // WORD_BYTES, ROW_BYTES // WORD_BYTES
COLUMNS, ROWS = ROW + 1, WORDS // ROW
NUMBERS = COLUMNS + ROWS
LINE = NUMBERS + ROWS // WORD_BYTES  # with a byte for each row, which says whether there is anything in it
LINE_BYTES = LINE * WORD_BYTES
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def words_of(data: Tensor) -> Tensor:
    return data.view(torch.int64)


def sums_of(data: Tensor, room: Tensor | None = None) -> Tensor:
    """A line for each chunk of whole rows, made in `room` if there is any: what it takes to tell their checksums."""
    words = words_of(data)
    whole, rest = divmod(words.numel(), WORDS)
    lines = whole + (rest > 0)
    room = room if room is not None else torch.empty((lines, LINE), dtype=torch.int64, device=data.device)
    if whole:
        _write(words[: whole * WORDS].view(whole, WORDS), room[:whole])
    if rest:
        _write(words[whole * WORDS :].view(1, rest), room[whole:lines])
    return room[:lines]


def _write(chunks: Tensor, lines: Tensor) -> None:
    _sum(chunks, lines[:, :NUMBERS])
    anything, rows = lines[:, NUMBERS:].view(torch.bool), chunks.shape[1] // ROW
    torch.any(chunks.view(len(chunks), rows, ROW), 2, out=anything[:, :rows])
    anything[:, rows:].zero_()


def _sum(chunks: Tensor, lines: Tensor) -> None:
    columns, rows = lines[:, :COLUMNS], lines[:, COLUMNS:]
    height, over = divmod(chunks.shape[1], COLUMNS)
    torch.sum(chunks[:, : height * COLUMNS].view(len(chunks), height, COLUMNS), 1, out=columns)
    columns[:, :over].add_(chunks[:, height * COLUMNS :])
    count = chunks.shape[1] // ROW
    torch.sum(chunks.view(len(chunks), count, ROW), 2, out=rows[:, :count])
    rows[:, count:].zero_()


def digests(sums: Tensor) -> Iterator[bytes]:
    """The checksum of each chunk, from lines that are on the host."""
    return (digest(line[:NUMBERS]) if line[NUMBERS:].any() else ZEROS for line in sums.numpy())


def digest(numbers: Numbers) -> bytes:
    """The checksum of a chunk that is not zero. Processors have instructions for this hash."""
    return sha256(numbers.data, usedforsecurity=False).digest()[:CHECKSUM_BYTES]


def checksum(data: Tensor) -> bytes:
    """Of one chunk on the host."""
    line = torch.empty((1, NUMBERS), dtype=torch.int64)
    _sum(words_of(data).view(1, -1), line)
    return digest(line.numpy()[0]) if line.any() or data.any() else ZEROS
