"""Who holds which page of the room for keys and values.

Invariant: once `settle` is called, the pages in use are the first ones, without a gap, so that attention reads the room
as one piece, and hold nothing of earlier holders. A gap is filled by whoever takes a page, else by the last page in
use, whose holder is told the new place.
"""

from collections.abc import Callable

from rollmux.errors import InvariantViolated

Wipe = Callable[[list[int]], None]
Move = Callable[[list[int], list[int]], None]


class Room:
    """So many pages of so many tokens each."""

    __slots__ = ("_gaps", "_holders", "_move", "_taken", "_wipe", "page_tokens", "pages")

    def __init__(self, pages: int, page_tokens: int, wipe: Wipe, move: Move) -> None:
        self.pages, self.page_tokens = pages, page_tokens
        self._wipe, self._move = wipe, move
        self._holders: list[tuple[list[int], int]] = []  # of each page, gaps too: the list that names it, and where
        self._gaps: list[int] = []  # pages given back since this was settled
        self._taken: list[int] = []  # pages taken since then

    @property
    def used(self) -> int:
        return len(self._holders) - len(self._gaps)

    @property
    def free(self) -> int:
        return self.pages - self.used

    def needed(self, tokens: int) -> int:
        """The pages that so many tokens take."""
        return -(-tokens // self.page_tokens)

    def take(self, held: list[int], count: int) -> None:
        """Adds free pages to those held."""
        if count > self.free:
            raise InvariantViolated("KV room", f"{count} pages wanted, {self.free} of {self.pages} are free")
        for _ in range(count):
            holder = (held, len(held))
            if self._gaps:
                held.append(self._gaps.pop())
                self._holders[held[-1]] = holder
            else:
                held.append(len(self._holders))
                self._holders.append(holder)
        self._taken += held[len(held) - count :]

    def give(self, held: list[int]) -> None:
        """Takes back all pages held; their content is lost."""
        self._gaps += held
        held.clear()
        if not self.used:
            self._holders.clear()
            self._gaps.clear()
            self._taken.clear()

    def settle(self) -> None:
        """Wipes pages that were taken, and moves the last pages into those that were given back."""
        if self._taken:
            self._wipe(self._taken)
            self._taken.clear()
        if not self._gaps:
            return
        gaps, used = set(self._gaps), self.used
        into = sorted(page for page in gaps if page < used)
        out = [page for page in range(used, len(self._holders)) if page not in gaps]
        if into:
            self._move(out, into)  # if this raises, no page in use has changed
        for source, target in zip(out, into, strict=True):
            holder, place = self._holders[source]
            holder[place] = target
            self._holders[target] = (holder, place)
        del self._holders[used:]
        self._gaps.clear()
