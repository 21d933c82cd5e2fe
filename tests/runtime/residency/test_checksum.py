"""A checksum tells what has changed, whoever makes the sums."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollmux.runtime.residency.checksum import ROWS, UNSUMMED, ZEROS, Sums, checksum, digests, sums_of
from rollmux.runtime.residency.layout import CHUNK_BYTES, ROW_BYTES
from rollmux.runtime.residency.passing import copy_summed

WORDS = ROW_BYTES // 8


def some(rows: int, seed: int) -> Tensor:
    """So many rows of bytes."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (rows * WORDS,), generator=made).view(torch.uint8)


@settings(max_examples=10)
@given(st.integers(0, 2), st.integers(1, 40), st.integers(0, 2), st.integers(0, 99))
def test_many_chunks_at_once_have_the_checksums_of_each(whole: int, rest: int, zero: int, seed: int) -> None:
    data = some(whole * ROWS + rest, seed)
    chunks = torch.split(data, CHUNK_BYTES)
    if zero < len(chunks):
        chunks[zero].zero_()
    room = torch.full((Sums.size(3 * ROWS),), 0xEE, dtype=torch.uint8)  # of which all was used for others before
    assert [*digests(sums_of(data, room))] == [*digests(sums_of(data))] == [checksum(chunk) for chunk in chunks]
    for chunk in chunks:
        assert checksum(chunk) not in {ZEROS, UNSUMMED} or not chunk.any()
        assert not chunk.any() or copy_summed(torch.empty_like(chunk), chunk) == checksum(chunk)


@given(st.integers(1, 3), st.data())
def test_words_that_change_places_change_the_checksum(rows: int, data: st.DataObject) -> None:
    chunk = some(rows, seed=1)
    words, place = chunk.view(torch.int64), st.integers(0, rows * WORDS - 1)
    one, other, before = data.draw(place), data.draw(place), checksum(chunk)
    assume(one != other)
    words[[one, other]] = words[[other, one]]
    assert checksum(chunk) != before
    words[[one, other]] = words[[other, one]]
    assert checksum(chunk) == before


def test_numbers_that_make_up_for_each_other_are_not_nothing() -> None:
    chunk = torch.zeros(2, WORDS, dtype=torch.int64)
    chunk[0, 3] = chunk[1, 5] = 7
    chunk[0, 5] = chunk[1, 3] = -7
    data = chunk.view(-1).view(torch.uint8)
    assert not sums_of(data).numbers[:, : WORDS + 2].any()
    assert checksum(data) == next(digests(sums_of(data))) != ZEROS
