"""A checksum that keeps up with memory: the sums of a chunk's rows and of its columns, and a hash over them.

A row has 1024 words, and a column is what stands at one place of rows of 1025: no two words share both, and there are
columns of an odd height. So one word that changes is seen, two that change places are, and the same change of all is.
What keeps all sums is an accident of one in 2^64, or changes that make up for each other in each row and each column.
The sums are made where the data are, so that a GPU sums its own memory and sends only a 341st of it. Where they are all
zero, so are the data.
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
LINE_BYTES = NUMBERS * WORD_BYTES


def words_of(data: Tensor) -> Tensor:
    return data.view(torch.int64)


def sums_of(data: Tensor, room: Tensor | None = None) -> Tensor:
    """A line of numbers for each chunk of whole rows, the sums of its columns and then of its rows, made in `room` if
    there is any."""
    words = words_of(data)
    whole, rest = divmod(words.numel(), WORDS)
    lines = whole + (rest > 0)
    room = room if room is not None else torch.empty((lines, NUMBERS), dtype=torch.int64, device=data.device)
    if whole:
        _sum(words[: whole * WORDS].view(whole, WORDS), room[:whole])
    if rest:
        _sum(words[whole * WORDS :].view(1, rest), room[whole:lines])
    return room[:lines]


def _sum(chunks: Tensor, lines: Tensor) -> None:
    columns, rows = lines[:, :COLUMNS], lines[:, COLUMNS:]
    height, over = divmod(chunks.shape[1], COLUMNS)
    torch.sum(chunks[:, : height * COLUMNS].view(len(chunks), height, COLUMNS), 1, out=columns)
    columns[:, :over].add_(chunks[:, height * COLUMNS :])
    filled = chunks.shape[1] // ROW
    torch.sum(chunks.view(len(chunks), filled, ROW), 2, out=rows[:, :filled])
    rows[:, filled:].zero_()


def digests(sums: Tensor) -> Iterator[bytes]:
    """The checksum of each chunk, from sums that are on the host."""
    return (digest(line) for line in sums.numpy())


def digest(line: "np.ndarray[Any, np.dtype[np.int64]]") -> bytes:
    """The checksum of one. Processors have instructions for this hash: it takes half the time of blake2b."""
    return sha256(line.data, usedforsecurity=False).digest()[:CHECKSUM_BYTES] if line.any() else ZEROS


def checksum(data: Tensor) -> bytes:
    """Of one chunk on the host."""
    (found,) = digests(sums_of(data))
    return found
