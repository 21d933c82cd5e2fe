"""Pages: who holds which, and that what lies in them follows its holder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvariantViolated
from rollmux.runtime.engine.room import Room

PAGES = 9


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=30))
def test_once_settled_pages_in_use_are_the_first_and_hold_what_their_holder_wrote_and_nothing_else(
    orders: list[tuple[int, int, bool]],
) -> None:
    memory: list[object] = [None] * PAGES

    def wipe(pages: list[int]) -> None:
        for page in pages:
            memory[page] = None

    def move(sources: list[int], targets: list[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            memory[target], memory[source] = memory[source], "moved away"

    room = Room(PAGES, 4, wipe, move)
    held: list[list[int]] = [[] for _ in range(4)]
    wrote: list[list[object]] = [[] for _ in range(4)]
    for holder, count, settles in orders:
        if count == 0:
            room.give(held[holder])
            wrote[holder].clear()
        elif count <= room.free:
            room.take(held[holder], count)
            wrote[holder] += [None] * count
        if settles:
            room.settle()
            assert sorted(page for pages in held for page in pages) == list(range(room.used))
            assert [[memory[page] for page in pages] for pages in held] == wrote
            for name, pages in enumerate(held):
                wrote[name] = [(name, place) for place in range(len(pages))]
                for page, text in zip(pages, wrote[name], strict=True):
                    memory[page] = text
        assert room.used == sum(map(len, held)) == PAGES - room.free


def test_more_than_is_free_is_refused() -> None:
    room = Room(2, 4, lambda pages: None, lambda sources, targets: None)
    held: list[int] = []
    with pytest.raises(InvariantViolated, match="3 pages wanted, 2 of 2 are free"):
        room.take(held, 3)
    assert held == []
    assert [room.needed(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_move_that_fails_can_be_tried_again() -> None:
    fails = [True]

    def move(sources: list[int], targets: list[int]) -> None:
        if fails.pop():
            raise MemoryError

    room = Room(3, 4, lambda pages: None, move)
    first: list[int] = []
    second: list[int] = []
    room.take(first, 1)
    room.take(second, 2)
    room.give(first)
    with pytest.raises(MemoryError):
        room.settle()
    assert (second, room.used) == ([1, 2], 2)
    fails.append(False)
    room.settle()
    assert (second, room.used) == ([1, 0], 2)
