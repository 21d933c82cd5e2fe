"""The requests of an engine behind HTTP: which of them wait, which have an open stream, and which events are untold.

Invariant: a request is here from `add` to exactly one of `end` and `remove`; news of an attempt that is over, given up
or of an earlier request with the same id change nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Protocol

from rollmux.checks import Checks
from rollmux.runtime.engine.http.calls import Attempt, Over, Piece
from rollmux.runtime.engine.http.errors import Unsound
from rollmux.runtime.engine.http.live import Live
from rollmux.runtime.engine.http.settings import Settings
from rollmux.runtime.engine.http.wire import Cut, Heard, Refused
from rollmux.runtime.engine.requests import (
    Ended,
    Event,
    FinishReason,
    GenerationRequest,
    Grown,
    Unfinished,
    several,
)

LONGEST_RETRY_S = 10.0


class Stream(Protocol):
    """Tells of an attempt, until its listener hangs up."""

    def hang_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Open:
    """A stream that is being read."""

    attempt: int
    name: str
    stream: Stream


class Counter:
    """Where requests are handed in and responses handed out."""

    def __init__(
        self, settings: Settings, check: Callable[[Unfinished], None], now: Callable[[], float], spare: int = 0
    ) -> None:
        """`spare`: tokens of the server's own limit that no request may use."""
        self._settings, self._check, self._now, self._spare = settings, check, now, spare
        self.live: dict[str, Live] = {}
        self.waiting: dict[str, None] = {}  # in the order in which they go next
        self.open: dict[str, Open] = {}
        self.events: list[tuple[Event, Live]] = []  # those that are not told yet, and whose they are
        self.continued_tokens = 0
        self._spoke_s = self._anew_s = -inf  # when any stream last said something, and since when streams can be heard
        self._attempts = 0  # of all requests together: so a request that comes back has new numbers
        self._paused = 0  # attempts up to this number had begun before the last pause

    def add(self, requests: Iterable[Unfinished]) -> None:
        """Queues requests, all or none."""
        adding: dict[str, Live] = {}
        for each in requests:
            self._check_new(each, adding)
            adding[each.request.id] = Live.of(each)
        self.live |= adding
        self.waiting |= dict.fromkeys(adding)

    def _check_new(self, each: Unfinished, adding: dict[str, Live]) -> None:
        request, had = each.request, each.response.tokens
        checks = Checks("request")
        if request.id in self.live or request.id in adding:
            checks.report("id", request.id, "the id of no other unfinished request", "give each request its own")
        self.check_length(checks, request)
        if len(had) >= request.max_tokens or any(token in request.stop_tokens for token in had):
            checks.report("response", len(had), "an unfinished response", "take it as it is: it is over")
        checks.require()
        self._check(each)

    def check_length(self, checks: Checks, request: GenerationRequest) -> None:
        most = self._settings.max_length - self._spare
        if (length := len(request.prompt) + request.max_tokens) > most:
            limit = f"at most {most} with the {len(request.prompt)} tokens of the prompt"
            remedy = f"ask for less, or serve with a limit of {length + self._spare}"
            checks.report("max_tokens", request.max_tokens, limit, remedy)

    def launch(self, begin: Callable[[Attempt, Live], Stream], prefix: str) -> None:
        """Opens streams for requests that wait, first come first served, up to `max_open`.

        A request waits on if its stream can't be opened because `begin` raises.
        """
        now = self._now()
        ready = (name for name in self.waiting if self.live[name].not_before_s <= now)
        for name in tuple(islice(ready, self._settings.max_open - len(self.open))):
            live = self.live[name]
            live.attempt = self._attempts
            attempt = live.next_attempt(prefix)
            self._attempts = live.attempt
            live.heard_s = now
            self.open[name] = Open(live.attempt, attempt.name, begin(attempt, live))
            del self.waiting[name]
            self.continued_tokens += len(live.tokens)

    def pausing(self) -> None:
        """Called before a pause or freeze: attempts that the server then aborts go on later. Old ones can't freeze."""
        self._paused = self._attempts

    def hear(self, heard: Heard, version: int, parking: bool = False) -> None:
        """Takes what was heard of an attempt. `parking`: the server is being emptied, so what is cut goes on later."""
        name, attempt = heard.key
        if (opened := self.open.get(name)) is None or opened.attempt != attempt:
            return
        live = self.live[name]
        live.heard_s = self._now()
        match heard.what:
            case Piece() as piece:
                self._spoke_s = live.heard_s
                self._hear_piece(live, piece, version)
            case Cut(why):
                self.park(live) if parking else self.cut(live, why)
            case Refused(why):
                self.end(live, FinishReason.FAILED, why)

    def _hear_piece(self, live: Live, piece: Piece, version: int) -> None:
        first = len(live.tokens)
        try:
            gained = live.take(piece, version)
        except Unsound as unsound:
            self.end(live, FinishReason.FAILED, str(unsound))
            return
        if gained is None:
            self.cut(live, f"tokens {len(live.tokens)} and on are missing")
            return
        if gained.tokens:
            self.events.append((Grown(live.request.id, first, gained), live))
        if piece.over is None:
            return
        if piece.over is Over.ABORT and live.attempt <= self._paused:
            self.park(live)
        else:
            self.end(live, *live.ending(piece.over, piece.why))

    def cut(self, live: Live, why: str) -> str | None:
        """Has a response go on later from the tokens that are there; it fails if it was cut too often."""
        live.cuts += 1
        if live.cuts > self._settings.cuts and live.whole is None:
            return self.end(live, FinishReason.FAILED, f"cut {live.cuts} times, at last: {why}")
        live.not_before_s = self._now() + min(self._settings.retry_s * 2 ** (live.cuts - 1), LONGEST_RETRY_S)
        return self.park(live)

    def park(self, live: Live) -> str | None:
        """Gives up a request's stream: it waits, with its tokens. A request that has all its tokens is over."""
        name = self._hang_up(live)
        if (whole := live.whole) is not None:
            self.end(live, whole)
        else:
            self.waiting[live.request.id] = None
        return name

    def _hang_up(self, live: Live) -> str | None:
        """Closes the stream if there is one; returns the attempt's name."""
        opened = self.open.pop(live.request.id, None)
        if opened is None:
            return None
        opened.stream.hang_up()
        return opened.name

    def end(self, live: Live, reason: FinishReason, why: str = "") -> str | None:
        name = self._leave(live)
        self.events.append((Ended(live.request.id, reason, live.generated(), why), live))
        return name

    def remove(self, live: Live) -> Unfinished:
        """Takes a request out with the tokens that were told: whoever goes on with it draws the others again."""
        self._leave(live)
        untold = next((event.first for event, whose in self.events if whose is live and isinstance(event, Grown)), None)
        self.events = [(event, whose) for event, whose in self.events if whose is not live]
        return live.unfinished(untold)

    def _leave(self, live: Live) -> str | None:
        name = self._hang_up(live)
        del self.live[live.request.id]
        self.waiting.pop(live.request.id, None)
        return name

    def listen_anew(self) -> None:
        """Counts silence from now on: until now streams may have been unable to speak, or to be heard."""
        self._anew_s = self._now()

    def stalled(self) -> list[Live]:
        """Requests whose stream is silent for too long. While others speak it may wait in a sound server's queue."""
        settings = self._settings
        before = self._now() - settings.stall_s
        if max(self._spoke_s, self._anew_s) >= before:
            before = min(before, self._now() - settings.queue_s)
        return [self.live[name] for name in self.open if max(self.live[name].heard_s, self._anew_s) < before]

    def find(self, ids: Iterable[str]) -> tuple[Live, ...]:
        return tuple(self.live[name] for name in several(ids) if name in self.live)

    def told(self) -> list[Event]:
        events, self.events = self.events, []
        return [event for event, _ in events]
