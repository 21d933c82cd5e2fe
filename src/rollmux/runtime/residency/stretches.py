"""Neighbouring chunks of a flat piece, which are moved as one."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES


def stretch(flat: Tensor, run: range) -> Tensor:
    """These chunks of it."""
    return flat[run.start * CHUNK_BYTES : run.stop * CHUNK_BYTES]


def runs(chunks: Iterable[int], place: Callable[[int], object], longest: int) -> Iterator[range]:
    """Neighbours that are in one place, at most so many together."""
    run, where = range(0), object()
    for chunk in chunks:
        found = place(chunk)
        if run and chunk == run.stop and found == where and len(run) < longest:
            run = range(run.start, chunk + 1)
            continue
        if run:
            yield run
        run, where = range(chunk, chunk + 1), found
    if run:
        yield run


def cut(chunks: range, length: int) -> Iterator[range]:
    for first in range(0, len(chunks), length):
        yield chunks[first : first + length]
