"""Neighbouring chunks of a flat piece, which are moved as one."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from rollmux.runtime.residency.layout import CHUNK_BYTES


def stretch(flat: Tensor, run: range) -> Tensor:
    """The part of `flat` that these chunks are."""
    return flat[run.start * CHUNK_BYTES : run.stop * CHUNK_BYTES]


def runs(chunks: Iterable[int], place: Callable[[int], object], longest: int) -> Iterator[range]:
    """Runs of neighbours that are in one place, each of at most so many chunks."""
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
