"""Working memory, and what the kernel says of it."""

import gc
import mmap
import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from rollmux.runtime.residency import pages
from rollmux.runtime.residency.memory import PENDING_BYTES
from rollmux.runtime.residency.pages import HUGE_BYTES, MADV_FREE, Piece

SIZE = 3 * HUGE_BYTES + 4096


def test_what_was_written_is_in_use_until_it_is_given_back() -> None:
    piece = Piece(SIZE)
    assert piece.resident_bytes() == piece.unreclaimable_bytes() == 0
    piece.tensor().fill_(1)
    assert piece.resident_bytes() >= SIZE
    assert piece.unreclaimable_bytes() >= SIZE
    piece.advise(mmap.MADV_DONTNEED)
    assert piece.resident_bytes() == piece.unreclaimable_bytes() == 0
    assert not piece.tensor().any()


@pytest.mark.parametrize("system", ["Linux", "another"])
@pytest.mark.parametrize("part", ["all", "a part"])
def test_what_is_emptied_is_given_back_and_zero_whatever_advice_is_worth(
    system: str, part: str, request: pytest.FixtureRequest
) -> None:
    piece = Piece(SIZE)
    whole = piece.tensor()
    whole.fill_(1)
    if system == "another":
        request.getfixturevalue("elsewhere")
    piece.empty(None if part == "all" else whole[:HUGE_BYTES])
    left = 0 if part == "all" else SIZE - HUGE_BYTES
    assert left <= piece.resident_bytes() <= -(-left // HUGE_BYTES) * HUGE_BYTES
    assert int(whole.sum(dtype=torch.int64)) == left
    whole.fill_(2)
    assert SIZE <= piece.unreclaimable_bytes() < SIZE + HUGE_BYTES, "its neighbours are closed as before"


@pytest.mark.usefixtures("elsewhere")
def test_another_system_is_given_no_advice_by_linux_s_numbers() -> None:
    piece = Piece(SIZE)
    for advice in (MADV_FREE, mmap.MADV_DONTNEED):
        with pytest.raises(OSError, match="not implemented"):
            piece.advise(advice)


def test_what_the_kernel_may_take_is_not_in_use_even_while_it_is_there() -> None:
    piece = Piece(SIZE)
    piece.tensor().fill_(1)
    piece.advise(MADV_FREE)
    assert piece.unreclaimable_bytes() <= (os.cpu_count() or 1) * PENDING_BYTES
    piece.tensor().fill_(2)
    assert piece.unreclaimable_bytes() >= SIZE


def test_books_are_kept_on_each_piece_alone() -> None:
    pieces = [Piece(SIZE) for _ in range(3)]
    pieces[1].tensor().fill_(1)
    assert [piece.unreclaimable_bytes() >= SIZE for piece in pieces] == [False, True, False]
    assert all(piece.tensor().data_ptr() % HUGE_BYTES == 0 for piece in pieces)


def test_a_tensor_keeps_its_memory_when_the_piece_is_forgotten() -> None:
    seen = Piece(SIZE).tensor()
    gc.collect()
    seen.fill_(3)
    assert torch.equal(seen, torch.full((SIZE,), 3, dtype=torch.uint8))


def test_whole_pages_are_closed_on_a_kernel_with_larger_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of aarch64 may have pages of 64 KiB, and refuses a part of one."""
    monkeypatch.setattr(mmap, "PAGESIZE", 64 << 10)
    spec = spec_from_file_location("pages_there", pages.__file__)
    assert spec is not None
    assert spec.loader is not None
    there = module_from_spec(spec)
    spec.loader.exec_module(there)
    piece = there.Piece(SIZE)
    shown = (line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines())
    closed = [[int(each, 16) for each in where.split("-")] for where, rights in shown if rights == "---p"]
    for start, end in [(piece.start, piece.start + mmap.PAGESIZE), (piece.end - mmap.PAGESIZE, piece.end)]:
        assert any(low <= start and end <= high for low, high in closed)
