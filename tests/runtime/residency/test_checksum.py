"""A checksum tells what has changed, whoever makes the sums."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollmux.runtime.residency.checksum import COLUMNS, LINE, ROW, ROWS, WORDS, ZEROS, checksum, digests, sums_of
from rollmux.runtime.residency.layout import CHUNK_BYTES
from rollmux.runtime.residency.passing import copy_summed


def some(rows: int, seed: int) -> Tensor:
    """So many rows of words."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (rows * ROW,), generator=made)


def of(words: Tensor) -> bytes:
    return checksum(words.view(torch.uint8))


@settings(max_examples=10)
@given(st.integers(0, 2), st.integers(1, ROWS), st.integers(0, 3), st.integers(0, 99))
def test_many_chunks_at_once_have_the_checksums_of_each(whole: int, rest: int, zero: int, seed: int) -> None:
    data = some(whole * ROWS + rest, seed).view(torch.uint8)
    chunks = torch.split(data, CHUNK_BYTES)
    if zero < len(chunks):
        chunks[zero].zero_()
    room = torch.full((4, LINE), -1)  # in which others were before
    each = [checksum(chunk) for chunk in chunks]
    assert [*digests(sums_of(data, room))] == [*digests(sums_of(data))] == each
    assert [found == ZEROS for found in each] == [number == zero for number in range(len(chunks))]
    for chunk, found in zip(chunks, each, strict=True):
        copy = torch.full_like(chunk, 0xEE)
        assert copy_summed(copy, chunk) == found or found == ZEROS
        assert torch.equal(copy, chunk)


@given(st.integers(2, 9), st.data())
def test_two_words_that_change_places_are_seen(rows: int, data: st.DataObject) -> None:
    words = some(rows, seed=1)
    one = data.draw(st.integers(0, len(words) - 1))
    steps = [step for step in (1, 5, ROW, COLUMNS, 2 * COLUMNS) if one + step < len(words)]
    other = one + data.draw(st.sampled_from(steps)) if steps else one - 1
    before = of(words)
    words[[one, other]] = words[[other, one]]
    assert of(words) != before
    words[[one, other]] = words[[other, one]]
    assert of(words) == before


def swapped(matrix: Tensor, one: int, other: int) -> None:
    matrix[[one, other]] = matrix[[other, one]]


CHANGES: dict[str, tuple[Tensor, Callable[[Tensor], object]]] = {
    "negated": (torch.randn(WORDS, dtype=torch.float64), Tensor.neg_),
    "times 256": (torch.randn(WORDS, dtype=torch.float64), lambda data: data.mul_(256)),
    "conjugated": (torch.randn(WORDS // 2, 2, dtype=torch.float64), lambda data: data[:, 1].neg_()),
    "one more each": (torch.arange(WORDS), lambda data: data.add_(1)),
    "rows of a one-hot matrix": (torch.eye(1024), lambda data: swapped(data, 0, 2)),
    "rows of a one-hot matrix that are ours": (torch.eye(512, 2048), lambda data: swapped(data, 0, 2)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_done_to_all_of_a_chunk_is_seen(what: str) -> None:
    tensor, change = CHANGES[what]
    data = tensor.view(-1).view(torch.uint8)
    before = checksum(data)
    change(tensor)
    assert checksum(data) != before


def test_what_sums_to_nothing_is_not_nothing() -> None:
    words = torch.zeros(3 * ROW, dtype=torch.int64)
    words[3] = words[COLUMNS + 5] = 7
    words[5] = words[COLUMNS + 3] = -7
    data = words.view(torch.uint8)
    assert not sums_of(data)[0, : COLUMNS + ROWS].any()
    assert checksum(data) == next(digests(sums_of(data))) == copy_summed(torch.empty_like(data), data) != ZEROS
