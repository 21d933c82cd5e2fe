"""An engine that computes in this process: its life, from the first request to `close`.

`Compute` is what an engine computes with; everything about requests is in `Desk`. So the engine that computes a model
and the one that only plays lengths differ in `Compute` alone.

Invariants: a call that is refused has changed nothing; if a computation raises, no token of it was drawn, and the same
step may be tried again. Nothing is computed with weights that are half new.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollmux.checks import MAX_COUNT, Checks
from rollmux.errors import InvariantViolated
from rollmux.runtime.engine.desk import Desk, Live, Work
from rollmux.runtime.engine.errors import EngineClosed, EngineSuspended
from rollmux.runtime.engine.requests import Event, FinishReason, Generated, GenerationRequest, Unfinished, several
from rollmux.runtime.engine.room import Room
from rollmux.runtime.engine.seam import Begun, Gauges
from rollmux.runtime.engine.versions import half_new, require_adoptable, require_newer, require_permitted


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an engine takes on. `room_tokens`: the keys and values that it holds at most, all requests together.

    `max_length` bounds a prompt with its response. A step computes at most `prefill_tokens` of prompts and of what is
    computed again, so that responses that run are not held up for long.
    """

    room_tokens: int
    max_running: int = 64
    max_length: int = 4096
    prefill_tokens: int = 512
    page_tokens: int = 32

    def __post_init__(self) -> None:
        checks = Checks("limits")
        checks.whole("page_tokens", self.page_tokens, 1, 4096, "give tokens of a page; 32 is a good number")
        checks.whole("room_tokens", self.room_tokens, 1, MAX_COUNT, "give at least one whole request's tokens")
        for name in ("max_running", "max_length", "prefill_tokens"):
            checks.whole(name, getattr(self, name), 1, MAX_COUNT, "give at least 1")
        checks.require()


Drawn = tuple[int, float]  # a token and its log-probability; no number if the model's output is none


class Compute(Protocol):
    """What an engine computes with."""

    @property
    def nbytes(self) -> int:
        """Memory held now."""

    @property
    def max_length(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    def run(self, work: Sequence[Work], used_pages: int) -> list[Drawn | None]:
        """Computes so many tokens of each request, and draws the next token of each that then owes none."""

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Moves the content of pages to other pages."""

    def copy(self, sources: list[int], targets: list[int], tokens: int) -> None:
        """Copies so many tokens from some pages into others."""

    def wipe(self, pages: list[int]) -> None:
        """Clears pages, whose old content may be no number and must not meet what they hold next."""

    def check(self, weights: Mapping[str, Any]) -> None:
        """Raises if these are not weights of the model."""

    def load(self, weights: Mapping[str, Any] | None) -> None:
        """Takes weights that were checked, or (None) those that were written in place."""

    def release(self) -> None:
        """Gives all memory back. Called again after an error, it looks again whether the memory is free."""

    def restore(self) -> None:
        """Takes the memory again."""


class LocalEngine:
    """See `rollmux.runtime.engine.seam.Engine`."""

    def __init__(self, compute: Compute, limits: Limits, version: int = 0) -> None:
        room = Room(limits.room_tokens // limits.page_tokens, limits.page_tokens, compute.wipe, compute.move)
        longest = min(limits.max_length, compute.max_length)
        self._desk = Desk(room, limits.max_running, longest, compute.vocabulary, limits.prefill_tokens)
        self._compute = compute
        self._version = version
        self._half: int | None = None  # the version of an update that was begun and not ended
        self._suspended = self._holds_nothing = self._closed = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_suspended(self) -> bool:
        return self._suspended

    @property
    def unfinished(self) -> int:
        return len(self._desk.live)

    def submit(self, request: GenerationRequest) -> None:
        self._require_open()
        self._desk.add((Unfinished(request, Generated()),))

    def cancel(self, ids: Iterable[str]) -> None:
        names = several(ids)
        for live in self._find(names):
            self._desk.end(live, FinishReason.CANCELLED)
        self._desk.forget(names)

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        self._require_open()
        lives = tuple(self._desk.live.values()) if ids is None else self._find(ids)
        return tuple(map(self._desk.remove, lives))

    def _find(self, ids: Iterable[str]) -> tuple[Live, ...]:
        """The requests of these ids, as far as they are there."""
        return tuple(self._desk.live[name] for name in several(ids) if name in self._desk.live)

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        self._require_open()
        adopted = tuple(unfinished)
        if not mixed:
            require_adoptable(adopted, self._version)
        self._desk.add(adopted)

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        self._require_open()
        require_newer(version, self._version)
        started = [live.request.id for live in self._desk.live.values() if live.tokens]
        require_permitted(started, self._version, begun)
        if weights is not None:
            self._compute.check(weights)
        self._desk.stop(begun is not Begun.KEEP)
        self._half = version
        self._compute.load(weights)
        self._version, self._half = version, None

    def suspend(self, keep: bool = False) -> None:
        self._require_open()
        self._rest(keep)

    def _rest(self, keep: bool) -> None:
        """Suspends: `is_suspended` is true only once nothing is held any more."""
        try:
            if not keep:
                self._desk.stop()
                self._holds_nothing = True
                self._compute.release()
        finally:
            self._suspended = True

    def resume(self) -> None:
        self._require_open()
        if self._holds_nothing:
            self._compute.restore()
            self._holds_nothing = False
        self._suspended = False

    def step(self) -> list[Event]:
        self._require_open()
        desk = self._desk
        if desk.events:  # what was cancelled is told without waiting for the others' next token
            return desk.told()
        if not self._suspended and (work := desk.plan()):
            for (live, count), token in zip(work, self._run(work), strict=True):
                self._told(live, count, token)
        return desk.told()

    def _run(self, work: Sequence[Work]) -> list[Drawn | None]:
        if self._half is not None:
            raise half_new(self._half)
        room = self._desk.room
        room.settle()
        for sources, targets, tokens in self._desk.copies():
            self._compute.copy(sources, targets, tokens)
        self._desk.twins.clear()
        return self._compute.run(work, room.used)

    def _told(self, live: Live, count: int, token: Drawn | None) -> None:
        """Takes the result of a computation for a request."""
        self._desk.done(live, count)
        if token is None:
            return
        if math.isfinite(token[1]):
            self._desk.grow(live, *token, self._version)
        else:
            why = f"the model's output at token {len(live.tokens)} is not a number: its weights or memory are damaged"
            self._desk.end(live, FinishReason.FAILED, why)

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        self._require_open()
        if self._suspended:
            raise EngineSuspended("a suspended engine can't be probed: resume it first")
        live = Live(GenerationRequest("probe", prompt, count, temperature=0.0))
        desk, room = self._desk, self._desk.room
        desk.forget_copies()
        desk.require_fitting(live.request)
        need = room.needed(len(prompt) + count - 1)
        if need > room.pages:
            raise InvariantViolated("KV room", f"a probe needs {need} pages, there are {room.pages}: probe for less")
        while not desk.has_room(need):
            desk.preempt()
        room.take(live.pages, need)
        try:
            while len(live.tokens) < count and -1 not in live.tokens:
                live.tokens.append(self._probed(live))
        finally:
            room.give(live.pages)
        return tuple(live.tokens)

    def _probed(self, live: Live) -> int:
        """The next token of a probe; -1, which is no model's token, if the output is not a number."""
        owed = live.owed
        drawn = self._run([(live, owed)])[0]
        assert drawn is not None
        live.cached += owed
        return drawn[0] if math.isfinite(drawn[1]) else -1

    def gauges(self) -> Gauges:
        desk = self._desk
        page = desk.room.page_tokens
        return Gauges(
            running=len(desk.running),
            waiting=len(desk.waiting),
            room_tokens=desk.room.pages * page,
            held_tokens=desk.room.used * page,
            nbytes=self._compute.nbytes,
            generated_tokens=desk.generated,
            prefilled_tokens=desk.computed - desk.generated,
            recomputed_tokens=desk.recomputed,
            preemptions=desk.preemptions,
            ended=desk.ended,
        )

    def close(self) -> list[Event]:
        if self._closed:
            return []
        self.cancel(list(self._desk.live))
        self._rest(keep=False)
        self._closed = True
        return self._desk.told()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed: make a new one")
