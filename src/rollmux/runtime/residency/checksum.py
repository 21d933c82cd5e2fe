"""A checksum that keeps up with memory: the sums of a chunk's rows and of its columns, and a hash over them.

A row has 1024 words, and a column is what stands at one place of rows of 1025: no two words share both, and there are
columns of an odd height. So one word that changes is seen, two that change places are, and the same change of all of a
chunk is. A change goes unnoticed only by an accident of one in 2^64, or if it cancels out in each row and each
column. The sums are made where the data are, so that a GPU sums its own memory and sends only a 327th of it.

No sum tells whether a chunk is zero, so that is looked at beside the sums: such a chunk has a checksum of its own
(`ZEROS`). So has a chunk that nobody has summed (`UNSUMMED`).
"""

from collections.abc import Callable, Iterator
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
LINE = NUMBERS + ROWS // WORD_BYTES  # behind the sums a byte for each row: whether it has anything but zeros
LINE_BYTES = LINE * WORD_BYTES
# Source and target of a part fit into a core's own cache (1 MiB), where summing it costs a third of reading it
# again. Sums by rows and by columns leave copies 0.65 of their pace with numpy and 0.50 with torch, and 0.59 if parts
# are half as large.
PART = (512 << 10) // WORD_BYTES
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def words_of(data: Tensor) -> Tensor:
    return data.view(torch.int64)


def sums_of(data: Tensor, room: Tensor | None = None) -> Tensor:
    """A line for each chunk of `data`, which has whole rows: what `digests` needs. Made in `room` if that is given."""
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
    columns, rows, anything = lines[:, :COLUMNS], lines[:, COLUMNS:NUMBERS], lines[:, NUMBERS:].view(torch.bool)
    height, over = divmod(chunks.shape[1], COLUMNS)
    torch.sum(chunks[:, : height * COLUMNS].view(len(chunks), height, COLUMNS), 1, out=columns)
    columns[:, :over].add_(chunks[:, height * COLUMNS :])
    count = chunks.shape[1] // ROW
    in_rows = chunks.view(len(chunks), count, ROW)
    torch.sum(in_rows, 2, out=rows[:, :count])
    torch.any(in_rows, 2, out=anything[:, :count])
    rows[:, count:].zero_()
    anything[:, count:].zero_()


def digests(sums: Tensor) -> Iterator[bytes]:
    """The checksum of each chunk, from lines that are on the host."""
    return (digest(line[:NUMBERS]) if line[NUMBERS:].any() else ZEROS for line in sums.numpy())


def digest(numbers: Numbers) -> bytes:
    """The checksum of a chunk that is not zero. Processors have instructions for this hash."""
    return sha256(numbers.data, usedforsecurity=False).digest()[:CHECKSUM_BYTES]


def checksum(data: Tensor) -> bytes:
    """The checksum of one chunk on the host."""
    numbers = added_up(words_of(data).numpy())
    return digest(numbers) if numbers.any() or data.any() else ZEROS


def added_up(words: Numbers, bring: Callable[[slice], object] = lambda part: None) -> Numbers:
    """The sums of one chunk on the host. `bring` has just read each part that is summed: it is in the core's cache."""
    numbers = np.zeros(NUMBERS, np.int64)
    columns, rows, done = numbers[:COLUMNS], numbers[COLUMNS:], 0
    for start in range(0, len(words), PART):
        stop = min(start + PART, len(words))
        bring(slice(start, stop))
        np.add.reduce(words[start:stop].reshape(-1, ROW), axis=1, out=rows[start // ROW : stop // ROW])
        whole = stop // COLUMNS * COLUMNS
        columns += np.add.reduce(words[done:whole].reshape(-1, COLUMNS), axis=0)
        done = whole
    columns[: len(words) - done] += words[done:]
    return numbers
