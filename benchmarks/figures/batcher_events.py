"""A history of tail batching, recorded event by event, to be given to fresh batchers.

Responses end in the order of their lengths, and are scored a little later, as an engine would tell them.
"""

from heapq import heappop, heappush
from itertools import count
from random import Random

from rollmux.packer.batching import Batching
from rollmux.packer.commands import Abort, Command, Draw, Launch, RoundComplete
from rollmux.packer.events import (
    Event,
    PromptDrawn,
    ResponseAborted,
    ResponseGenerated,
    ResponseRewarded,
    RoundStarted,
)
from rollmux.packer.prompt import Prompt, Request
from rollmux.packer.tail_batcher import TailBatcher

SPREAD = 1.0  # of the logarithm of lengths
MEDIAN_TOKENS = 800
SCORED_AFTER = 50  # in tokens' time


class Recorder:
    """Plays the engine, the data and the rewards, and writes down all that it tells."""

    def __init__(self, batching: Batching, seed: int) -> None:
        self.batcher = TailBatcher(batching)
        self.history: list[Event] = []
        self._rng = Random(seed)
        self._ids, self._order = count(), count()
        self._coming: list[tuple[int, int, Event]] = []
        self._now = 0
        self._begun: dict[Request, int] = {}  # when each one that is still generated was launched
        self._rounds = 0

    def record(self, rounds: int) -> list[Event]:
        """So many rounds, from the first on."""
        for done in range(1, rounds + 1):
            self._tell(RoundStarted())
            while self._rounds < done:
                self._now, _, event = heappop(self._coming)
                self._happen(event)
        return self.history

    def _happen(self, event: Event) -> None:
        """A response ends, unless it was aborted, or is scored."""
        if isinstance(event, ResponseGenerated):
            if self._begun.pop(event.request, None) is None:
                return
            self._later(SCORED_AFTER, ResponseRewarded(event.request, 1.0))
        self._tell(event)

    def _tell(self, event: Event) -> None:
        self.history.append(event)
        for command in self.batcher.handle(event):
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Draw(number, domain):
                for _ in range(number):
                    self._tell(PromptDrawn(Prompt(0, next(self._ids), domain)))
            case Launch(request):
                tokens = 1 + round(MEDIAN_TOKENS * self._rng.lognormvariate(0.0, SPREAD))
                self._begun[request] = self._now
                self._later(tokens, ResponseGenerated(request, tokens))
            case Abort(requests):
                for request in requests:
                    begun = self._begun.pop(request, None)
                    if begun is not None:
                        self._tell(ResponseAborted(request, self._now - begun))
            case RoundComplete():
                self._rounds += 1

    def _later(self, after: int, event: Event) -> None:
        heappush(self._coming, (self._now + after, next(self._order), event))


def replay(batching: Batching, history: list[Event]) -> None:
    """Gives a history to a fresh batcher, one event at a time."""
    handle = TailBatcher(batching).handle
    for event in history:
        handle(event)


def walk(history: list[Event]) -> None:
    """The same loop around nothing."""
    for event in history:
        _ignore(event)


def _ignore(event: Event) -> None:
    pass
