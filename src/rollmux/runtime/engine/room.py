"""Who holds which page of the room for keys and values.

Invariant: the pages in use are the first ones, without a gap, so that attention reads the room as one piece. A page
that is given back is filled by the last one in use, and its holder is told its new place.
"""

from collections.abc import Callable

from rollmux.errors import InvariantViolated

Move = Callable[[list[int], list[int]], None]


class Room:
    """So many pages of so many tokens each."""

    __slots__ = ("_holders", "_move", "page_tokens", "pages")

    def __init__(self, pages: int, page_tokens: int, move: Move) -> None:
        self.pages, self.page_tokens = pages, page_tokens
        self._move = move
        self._holders: list[tuple[list[int], int]] = []  # of each page in use: the list that names it, and where

    @property
    def used(self) -> int:
        return len(self._holders)

    @property
    def free(self) -> int:
        return self.pages - len(self._holders)

    def needed(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self.page_tokens)

    def take(self, held: list[int], count: int) -> None:
        """Adds free pages to those held."""
        if count > self.free:
            raise InvariantViolated("KV room", f"{count} pages wanted, {self.free} of {self.pages} are free")
        for _ in range(count):
            self._holders.append((held, len(held)))
            held.append(len(self._holders) - 1)

    def give(self, held: list[int]) -> None:
        """Takes back all pages held; their content is lost, and others may move into their places."""
        given = set(held)
        left = len(self._holders) - len(given)
        into = sorted(page for page in given if page < left)
        out = [page for page in range(left, len(self._holders)) if page not in given]
        for source, target in zip(out, into, strict=True):
            holder, place = self._holders[source]
            holder[place] = target
            self._holders[target] = (holder, place)
        del self._holders[left:]
        held.clear()
        if into:
            self._move(out, into)
