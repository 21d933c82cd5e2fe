"""Who ends before whom in a round, counted in tokens: a response ends as many ticks after its launch as it has drawn.

Engines draw one token of each response at a time, but one that waits for room or moves to another engine falls behind.
Whoever is ahead waits here, so what follows from an end does not depend on who runs what.
Invariant: ends come in the order of their ticks, those of one tick together, and nobody can still end before them.
"""

from dataclasses import dataclass

from rollmux.packer import Request
from rollmux.trainer.turns import Heard, Over


@dataclass(slots=True)
class _Run:
    request: Request
    begun: int
    tokens: int = 0
    ended: Over | None = None

    @property
    def at(self) -> int:
        """The tick that it has come to."""
        return self.begun + self.tokens


class TokenClock:
    """The responses of a round that are under way, or over and not told yet."""

    def __init__(self) -> None:
        self._now = 0
        self._runs: dict[str, _Run] = {}

    @property
    def is_empty(self) -> bool:
        return not self._runs

    @property
    def running(self) -> int:
        """Those whose end was not heard."""
        return sum(run.ended is None for run in self._runs.values())

    def under_way(self) -> list[tuple[str, int]]:
        """Those whose end is not told, by name, and the tokens that each has drawn by now."""
        return [(name, self._now - run.begun) for name, run in self._runs.items() if run.ended is None]

    def begin(self, name: str, request: Request) -> None:
        self._runs[name] = _Run(request, self._now)

    def hear(self, event: Heard) -> bool:
        """Whether a response is over by it. What was aborted is nobody's any more."""
        run = self._runs.get(event.id)
        if run is None:
            return False
        if isinstance(event, Over):
            run.tokens, run.ended = event.response.drawn, event
            return True
        run.tokens = event.tokens
        return False

    def tick(self) -> list[tuple[Request, Over]] | None:
        """Goes on by one tick, and gives those who end with it. None while somebody has not come so far."""
        waits = any(run.at <= self._now for run in self._runs.values() if run.ended is None)
        if waits or not self._runs:
            return None
        self._now += 1
        over = [(name, run.request, run.ended) for name, run in self._runs.items() if run.ended and run.at <= self._now]
        for name, _, _ in over:
            del self._runs[name]
        return [(request, ended) for _, request, ended in over]

    def abort(self, name: str) -> int | None:
        """How many tokens it has by now, what was drawn ahead of the clock left out; None where it is not under way."""
        run = self._runs.pop(name, None)
        return None if run is None else self._now - run.begun
