"""The order in which responses end, counted in tokens: a response ends as many ticks after its launch as it has tokens.

Engines draw one token of each response at a time, but a response that waits for room or moves to another engine falls
behind. Responses that are ahead wait here, so what follows from an end does not depend on which engine runs what.
Invariant: ends are told in the order of their ticks, those of one tick together, once no response can end before them.
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
        """The tick that the response has come to."""
        return self.begun + self.tokens


class TokenClock:
    """The responses of a round that are under way, or are over but not told yet."""

    def __init__(self) -> None:
        self._now = 0
        self._runs: dict[str, _Run] = {}

    @property
    def is_empty(self) -> bool:
        return not self._runs

    @property
    def running(self) -> int:
        """How many responses have an end that was not heard yet."""
        return sum(run.ended is None for run in self._runs.values())

    def under_way(self) -> list[tuple[str, int]]:
        """The names of responses that are not over, and the tokens that each has drawn by now."""
        return [(name, self._now - run.begun) for name, run in self._runs.items() if run.ended is None]

    def begin(self, name: str, request: Request) -> None:
        self._runs[name] = _Run(request, self._now)

    def hear(self, event: Heard) -> bool:
        """Notes the event. Whether a response is over with it; events of aborted responses are ignored."""
        run = self._runs.get(event.id)
        if run is None:
            return False
        if isinstance(event, Over):
            run.tokens, run.ended = event.response.drawn, event
            return True
        run.tokens = event.tokens
        return False

    def tick(self) -> list[tuple[Request, Over]] | None:
        """Goes on by one tick, and gives the responses that end with it. None while some response is not there yet."""
        waits = any(run.at <= self._now for run in self._runs.values() if run.ended is None)
        if waits or not self._runs:
            return None
        self._now += 1
        over = [(name, run.request, run.ended) for name, run in self._runs.items() if run.ended and run.at <= self._now]
        for name, _, _ in over:
            del self._runs[name]
        return [(request, ended) for _, request, ended in over]

    def abort(self, name: str) -> int | None:
        """How many tokens the response has by now, those ahead of the clock left out; None if it is not under way."""
        run = self._runs.pop(name, None)
        return None if run is None else self._now - run.begun
