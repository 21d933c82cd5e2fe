"""A state on its way off a device that copies by itself: copies begin before it is known what has changed."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from rollmux.runtime.residency.checksum import ZEROS, digests
from rollmux.runtime.residency.kept import Kept
from rollmux.runtime.residency.memory import Memory
from rollmux.runtime.residency.stretches import cut, runs, stretch

AHEAD = 3  # windows whose copies begin before it is known whether they have changed


class Sending:
    """Copies chunks whose checksum differs from the host's; the device makes the sums meanwhile.

    A chunk that was copied before its sum was known, and turns out to be unchanged, is in no version.
    """

    def __init__(self, kept: Kept, flat: Tensor, memory: Memory) -> None:
        self.changed = dict[int, bytes]()
        self._kept, self._flat, self._memory = kept, flat, memory
        self._asked: list[Callable[[], Tensor]] = []  # sums that nobody has waited for yet
        self._transfer = memory.transfer()  # its copies wait for what the device was asked before: not for sums

    def begin(self, ahead: int) -> None:
        """`ahead`: so many windows are copied before they are compared, and the first before sums are asked for."""
        chunks = range(self._kept.host.layout.chunks)
        begun = [*cut(chunks, self._memory.window)][:ahead]
        for window in begun[:1]:
            self._start(window)
        spans = [*cut(chunks, self._memory.span)]
        self._ask(spans[0])
        for window in begun[1:]:
            self._start(window)
        for number, span in enumerate(spans, 1):
            found = digests(self._asked.pop()())
            if number < len(spans):
                self._ask(spans[number])
            for window in cut(span, self._memory.window):
                self._compare(window, found)
                if window not in begun:
                    self._start(chunk for chunk in window if self.changed.get(chunk, ZEROS) != ZEROS)

    def finish(self) -> None:
        """Waits until nothing is under way any more, even if not all was begun."""
        try:
            self._transfer.finish()
        finally:
            for asked in self._asked:
                asked()

    def _ask(self, span: range) -> None:
        self._asked.append(self._memory.sums(stretch(self._flat, span)))

    def _start(self, chunks: Iterable[int]) -> None:
        for run in runs(chunks, self._kept.next_slot, self._memory.window):
            self._transfer.save(self._kept.target(run.start, len(run)), stretch(self._flat, run))

    def _compare(self, window: range, found: Iterator[bytes]) -> None:
        for chunk in window:
            if (each := next(found)) != self._kept.sum_of(chunk):
                self.changed[chunk] = each
