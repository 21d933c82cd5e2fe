"""The `vllm` engine: a vLLM in this process (its `LLM`), driven as every other engine is.

The `LLM` belongs to its owner, who must leave it alone while requests run; it outlives the engine. All that is known of
it is in `llm`; vLLM itself is not imported.

Invariants: as the seam says, with one exception: a response that was begun anew (after a sleep, an update, a move) has
the same distribution as one that was not, but the same tokens only if it is greedy. Nothing is computed with weights
that are half new, nor with keys and values of other weights.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import uuid4

from rollmux.checks import MAX_COUNT, Checks
from rollmux.runtime.engine.errors import EngineClosed, EngineSuspended, UpdateRefused
from rollmux.runtime.engine.http.calls import Attempt
from rollmux.runtime.engine.http.counter import Counter
from rollmux.runtime.engine.http.dialect import WEIGHTS
from rollmux.runtime.engine.http.errors import Unsound
from rollmux.runtime.engine.http.live import Live
from rollmux.runtime.engine.http.memory import Memory
from rollmux.runtime.engine.http.settings import Settings
from rollmux.runtime.engine.http.wire import Heard, Key
from rollmux.runtime.engine.llm import Llm
from rollmux.runtime.engine.requests import (
    Ended,
    Event,
    FinishReason,
    Generated,
    GenerationRequest,
    Unfinished,
)
from rollmux.runtime.engine.seam import Begun, Gauges
from rollmux.runtime.engine.versions import half_new, require_adoptable, require_newer, require_permitted

log = logging.getLogger("rollmux")


@dataclass(frozen=True, slots=True)
class _Given:
    """An attempt that the LLM has."""

    name: str
    left: list[str]  # attempts that nobody listens to any more

    def hang_up(self) -> None:
        self.left.append(self.name)


class VllmInside:
    """See `rollmux.runtime.engine.seam.Engine`. `rests` or not, a request's pages stay in vLLM's prefix cache."""

    def __init__(
        self,
        llm: Any,
        version: int = 0,
        sampling: Mapping[str, Any] | None = None,
        as_drawn: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """`sampling`: settings for all requests beside those that each has itself, such as `top_k`.

        `as_drawn`: an `LLM` with `logprobs_mode="processed_logprobs"` gives log-probabilities of the distribution
        that was drawn from, not of the model. With `memory`, a sleep counts once its bytes are seen to be free.
        """
        self._llm = Llm(llm, sampling or {}, as_drawn)
        self._memory = memory
        self._version = version
        self._prefix = uuid4().hex[:12]  # so that no two engines over one `LLM` use the same names
        self._counter = Counter(Settings(self._llm.max_length, max_open=MAX_COUNT), self._check, monotonic)
        self._given: dict[str, Key] = {}
        self._unheard: dict[str, Any] = {}  # the last output of each request that came while a probe was answered
        self._left: list[str] = []
        self._half: int | None = None  # the version of an update that was begun and not ended
        self._suspended = self._closed = False
        self._stale = False  # there may be keys and values whose computing was broken off
        self._generated = self._prefilled = self._ended = 0
        if not self.gives_memory_back:
            log.warning("vLLM was made without enable_sleep_mode: a sleep holds requests back, and keeps its memory")

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_suspended(self) -> bool:
        return self._suspended

    @property
    def unfinished(self) -> int:
        return len(self._counter.live)

    @property
    def gives_memory_back(self) -> bool:
        """Whether the LLM has a sleep mode; without one, `suspend` holds requests back and nothing more."""
        return self._llm.can_sleep

    def submit(self, request: GenerationRequest) -> None:
        self._require_open()
        self._counter.add((Unfinished(request, Generated()),))

    def _check(self, each: Unfinished) -> None:
        self._llm.check(each.request)
        self._llm.check_tokens(each.request.prompt + each.response.tokens)

    def cancel(self, ids: Iterable[str]) -> None:
        for live in self._counter.find(ids):
            self._counter.end(live, FinishReason.CANCELLED)
        self._let_go()

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        self._require_open()
        counter = self._counter
        lives = tuple(counter.live.values()) if ids is None else counter.find(ids)
        taken = tuple(map(counter.remove, lives))
        self._let_go()
        return taken

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        self._require_open()
        adopted = tuple(unfinished)
        if not mixed:
            require_adoptable(adopted, self._version)
        self._counter.add(adopted)

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        """`weights`: all of the model's, by their names in a checkpoint; None if the owner wrote them in place.

        If it fails in the middle nothing is computed until an update with weights has ended.
        """
        self._require_open()
        self._require_updatable(version, weights, begun)
        if weights is not None:
            self._llm.require_whole(weights)
        self._park()
        self._llm.forget(self._advance)
        if weights is not None:
            self._load(version, weights)
        self._version, self._half, self._stale = version, None, False

    def _require_updatable(self, version: int, weights: Mapping[str, Any] | None, begun: Begun) -> None:
        require_newer(version, self._version)
        if begun is Begun.KEEP:
            raise UpdateRefused(
                "vLLM may have drawn ahead with the old weights, and what begins anew would meet their keys and "
                "values: say RECOMPUTE"
            )
        if weights is None and self._half is not None:
            raise UpdateRefused(f"weights of version {self._half} came in part, so none are in place: give them all")
        require_permitted(
            [each.request.id for each in self._counter.live.values() if each.tokens], self._version, begun
        )

    def _load(self, version: int, weights: Mapping[str, Any]) -> None:
        """First ends an update that broke off: vLLM still counts its part of a layer, which would be full too early."""
        self._llm.wake((WEIGHTS,))
        if self._half is not None:
            self._llm.load({})
        self._half = version
        self._llm.load(weights)

    def suspend(self, keep: bool = False) -> None:
        """An LLM without a sleep mode keeps its memory, with or without `keep`."""
        self._require_open()
        self._suspended = True
        if keep:
            return
        self._park()
        self._llm.forget(self._advance)
        self._stale = False
        if self._llm.can_sleep:
            self._llm.sleep()
        if self._memory is not None:
            self._memory.settle()

    def resume(self) -> None:
        self._require_open()
        self._llm.wake()
        self._suspended = False

    def step(self) -> list[Event]:
        self._require_open()
        counter = self._counter
        if counter.live and not counter.events and not self._suspended:
            self._require_computable()
            counter.launch(self._begin, self._prefix)
            self._advance()
            self._hear()
            self._let_go()
        return self._told()

    def _require_computable(self) -> None:
        if self._half is not None:
            raise half_new(self._half)
        if self._llm.is_asleep:
            raise EngineSuspended("the LLM sleeps, and not by this engine: wake it, and see that it has its weights")
        over = sum(map(self._llm.is_over, self._unheard.values()))
        if self._llm.unfinished + over < len(self._counter.open):
            self._park()  # somebody else drove the LLM, or put it to sleep, and took some outputs
        if self._stale:
            self._llm.forget(self._advance)
            self._stale = False

    def _begin(self, attempt: Attempt, live: Live) -> _Given:
        self._llm.begin(attempt)
        self._prefilled += len(attempt.prompt)
        self._given[attempt.name] = live.request.id, live.attempt
        return _Given(attempt.name, self._left)

    def _advance(self) -> list[Any]:
        """Does a step of the LLM. If it fails, nobody knows how far it came: all requests are begun anew."""
        try:
            outputs = self._llm.step()
        except BaseException:
            self._stale = True
            self._park()
            raise
        self._unheard |= {output.request_id: output for output in outputs if output.request_id in self._given}
        return outputs

    def _hear(self) -> None:
        """Gives requests the tokens that came for them. Until then new weights, or another engine, draw these anew."""
        for name in tuple(self._unheard):
            output, key = self._unheard.pop(name), self._given[name]
            live = self._counter.live[key[0]]
            piece = self._llm.read(output, len(live.tokens) - live.begun)
            self._counter.hear(Heard(key, piece), self._version)

    def _park(self) -> None:
        """Takes the LLM's requests back: they wait here, with their tokens."""
        for live in self._counter.find(tuple(self._counter.open)):
            self._counter.park(live)
        self._let_go()

    def _let_go(self) -> None:
        """Ends in the LLM what nobody listens to any more."""
        left = tuple(self._left)
        if left:
            self._llm.abort(list(left))
        for name in left:
            self._given.pop(name, None)
            self._unheard.pop(name, None)
        del self._left[: len(left)]

    def _told(self) -> list[Event]:
        events = self._counter.told()
        for event in events:
            if isinstance(event, Ended):
                self._ended += 1
            else:
                self._generated += len(event.gained.tokens)
        return events

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """All are -1, no model's token, if the answer is not sound. Requests go on meanwhile, and are told later."""
        self._require_open()
        if self._suspended:
            raise EngineSuspended("a suspended engine can't be probed: resume it first")
        live = Live(GenerationRequest("probe", prompt, count, temperature=0.0))
        checks = Checks("request")
        self._counter.check_length(checks, live.request)
        checks.require()
        self._llm.check_tokens(prompt)
        self._require_computable()
        attempt = live.next_attempt(f"{self._prefix}-probe")
        self._llm.begin(attempt)
        try:
            while live.whole is None:
                for output in self._advance():
                    if output.request_id == attempt.name:
                        piece = self._llm.read(output, len(live.tokens))
                        live.take(piece, self._version)
                        if piece.over is not None and live.whole is None:
                            raise Unsound(live.ending(piece.over, piece.why)[1])
        except Unsound:
            return (-1,) * count
        finally:
            self._left.append(attempt.name)
            self._let_go()
        return tuple(live.tokens)

    def gauges(self) -> Gauges:
        """As vLLM tells them, for all who use it. `prefilled_tokens` counts what vLLM had cached of prompts, too."""
        self._require_open()
        running, waiting = self._llm.counts
        return Gauges(
            running=running,
            waiting=waiting + len(self._counter.waiting),
            room_tokens=self._llm.room_tokens,
            held_tokens=self._llm.held_tokens,
            nbytes=self._llm.nbytes,
            generated_tokens=self._generated,
            prefilled_tokens=self._prefilled,
            recomputed_tokens=self._counter.continued_tokens,
            preemptions=self._llm.preemptions,
            ended=self._ended,
        )

    def close(self) -> list[Event]:
        """An LLM that sleeps is not woken: its memory may be somebody else's by now."""
        self._closed = self._suspended = True
        self.cancel(list(self._counter.live))
        return self._told()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed: make a new one")
