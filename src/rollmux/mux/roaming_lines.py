"""The lines of `urgent_play` where a rollout may be served at several nodes: it waits in all of their lines at once.

It must do what `UrgentTurns` does, to the millisecond: tests/mux/test_forecast.py holds the two against each other.
"""

from bisect import insort
from collections.abc import Sequence

from rollmux.mux.order import Pause

Line = list[int]  # at a node: its holder, then who waits, by the latest time to begin; codes in the low bits


class RoamingLines:
    """Who holds each node and who waits for it. `ends`, `left`, `agenda` and `pausing` are those of the play."""

    __slots__ = ("_agenda", "_at", "_ends", "_left", "_lines", "_low_bits", "_mask", "_pauses", "_pausing", "_step")

    def __init__(
        self,
        lines: Sequence[list[Line]],  # by code, as all lists here: where a step may be served
        pauses: Sequence[Pause | None],
        low_bits: int,
        pausing_step: int,
        agenda: list[int],
        ends: list[int],
        left: list[int],
        pausing: dict[int, Line],
    ) -> None:
        self._lines, self._pauses = lines, pauses
        self._low_bits, self._mask, self._step = low_bits, (1 << low_bits) - 1, pausing_step
        self._agenda, self._ends, self._left, self._pausing = agenda, ends, left, pausing
        self._at = [each[0] if each else [] for each in lines]  # the line of the node that a step holds

    def free(self, code: int, now: int) -> None:
        """The step is over, and the next in line gets the node that it held."""
        line = self._at[code]
        del line[0]
        if line:
            self._serve(line, now)

    def paused(self, code: int, now: int) -> None:
        """The state of a step that makes way is off its node, and the step waits again."""
        line = self._pausing.pop(code)
        begin = line.pop(0)
        code = begin & self._mask
        if line and line[0] < begin:
            self._serve(line, now)
            self.request(code, begin, self._left[code], now)
            return
        mine = next(each for each in self._lines[code] if each is line or not each)
        if mine is not line and line:
            self._serve(line, now)
        mine.insert(0, begin)
        self._hold(code, mine, now + self._left[code])

    def request(self, code: int, begin: int, work: int, now: int) -> None:
        """The step gets a node, or waits at all that it may have; a holder that it makes pause then does the same."""
        while True:
            lines = self._lines[code]
            for line in lines:
                if not line:
                    line.append(begin)
                    self._hold(code, line, now + work)
                    return
            self._left[code] = work
            for line in lines:
                insort(line, begin, 1)
            cleared = self._to_clear(lines, begin, now)
            if cleared is None:
                return
            holder = cleared[0] & self._mask
            free_at, pause = self._ends[holder], self._pauses[holder]
            assert pause is not None
            self._agenda.remove(free_at)
            self._left[holder] = work = free_at - now + (pause.on_ms << self._low_bits)
            if pause.off_ms:
                code = holder | self._step
                self._pausing[code] = cleared
                self._ends[holder] = 0
                insort(self._agenda, now + (pause.off_ms << self._low_bits) + code)
                return
            code, begin = holder, cleared.pop(0)
            self._serve(cleared, now)

    def _to_clear(self, lines: list[Line], begin: int, now: int) -> Line | None:
        """The line whose holder makes way, the least urgent that can; None if none can, or one does so already."""
        mask, found = self._mask, None
        for line in lines:
            if line[1] != begin:
                continue
            holder = line[0] & mask
            free_at, pause = self._ends[holder], self._pauses[holder]
            if not free_at:
                return None
            if pause is None or begin > line[0]:
                continue
            soonest = now + (pause.off_ms + pause.on_ms << self._low_bits)
            if free_at > begin | mask and free_at > soonest | mask and (found is None or line[0] > found[0]):
                found = line
        return found

    def _serve(self, line: Line, now: int) -> None:
        """The first in the line begins, or goes on, and leaves all other lines."""
        begin = line[0]
        code = begin & self._mask
        lines = self._lines[code]
        if len(lines) > 1:
            for other in lines:
                if other is not line:
                    other.remove(begin)
        self._hold(code, line, now + self._left[code])

    def _hold(self, code: int, line: Line, end: int) -> None:
        self._at[code] = line
        self._ends[code] = end
        insort(self._agenda, end)
