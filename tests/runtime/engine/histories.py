"""Any order of calls to two engines, followed by a check that nothing was lost, repeated or changed.

Every request is a matter of its own: what it should come to is known from running it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from rollmux.runtime.engine import (
    Begun,
    Ended,
    Engine,
    Event,
    FinishReason,
    Generated,
    GenerationRequest,
    Grown,
    UpdateRefused,
    stream,
)

CALLS = ("submit", "submit", "step", "step", "step", "cancel", "move", "sleep", "doze", "wake", "update", "probe")


@dataclass
class History:
    """Two engines of the same weights, and what was heard of each request."""

    engines: Sequence[Engine]
    alone: Mapping[GenerationRequest, Generated]
    rng: Random
    heard: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Ended] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    submitted: list[GenerationRequest] = field(default_factory=list)
    within: float = 1e-9  # so near come log-probabilities to what they are alone

    def play(self, calls: Sequence[str]) -> None:
        """And whatever is left to the end."""
        self.call(calls)
        self._finish()

    def call(self, calls: Sequence[str]) -> None:
        for call in calls:
            engine = self.engines[self.rng.randrange(2)]
            if call == "submit":
                self._submit(engine)
            elif call == "cancel" and self.submitted:
                engine.cancel([self.rng.choice(self.submitted).id, "nobody"])
            elif call == "move":
                self._move(engine)
            else:
                self._other(call, engine)
            held = engine.gauges()
            assert held.held_tokens <= held.room_tokens

    def _other(self, call: str, engine: Engine) -> None:
        if call == "step":
            self._hear(engine.step())
        elif call in ("sleep", "doze"):
            engine.suspend(keep=call == "doze")
        elif call == "wake":
            engine.resume()
        elif call == "update":
            self._update()
        elif call == "probe" and not engine.is_suspended:
            engine.probe((1, 2, 3), 3)

    def _submit(self, engine: Engine) -> None:
        left = [request for request in self.alone if request not in self.submitted]
        if left:
            self.submitted.append(left[0])
            engine.submit(left[0])

    def _move(self, engine: Engine) -> None:
        some = [request.id for request in self.submitted if self.rng.random() < 0.5]
        others = engine.export(some)
        other = self.engines[1 - self.engines.index(engine)]
        other.adopt(others)

    def _update(self) -> None:
        """Both engines, for responses move between them. The weights stay the same under their new name."""
        before = self.engines[0].version
        begun = any(True for request in self.submitted if self.heard.get(request.id) and request.id not in self.ends)
        for engine in self.engines:
            self._hear(engine.step() if engine.is_suspended else ())
        try:
            if not begun:
                for engine in self.engines:
                    engine.update(before + 1, begun=self.rng.choice((Begun.REFUSE, Begun.RECOMPUTE)))
        except UpdateRefused as refused:
            raise AssertionError("no response had begun") from refused

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            assert event.id not in self.ends, "nothing is told of what is over"
            if isinstance(event, Grown):
                tokens = self.heard.setdefault(event.id, [])
                assert event.first == len(tokens)
                tokens += event.gained.tokens
            else:
                self.ends[event.id] = event

    def _finish(self) -> None:
        for engine in self.engines:
            engine.resume()
            self._hear(list(stream(engine)))
            self._check_empty(engine)
        assert set(self.ends) == {request.id for request in self.submitted}
        for request in self.submitted:
            self._check(request)

    def _check_empty(self, engine: Engine) -> None:
        gauges = engine.gauges()
        assert (engine.unfinished, gauges.running, gauges.waiting, gauges.held_tokens) == (0, 0, 0, 0)

    def _check(self, request: GenerationRequest) -> None:
        ended, want = self.ends[request.id], self.alone[request]
        got = ended.response
        assert list(got.tokens) == self.heard.get(request.id, [])
        assert got.tokens == want.tokens[: len(got.tokens)]
        assert all(abs(a - b) < self.within for a, b in zip(got.logprobs, want.logprobs, strict=False))
        assert len(set(got.versions)) < 2
        if ended.reason is not FinishReason.CANCELLED:
            assert len(got.tokens) == len(want.tokens)


def alone(make: Callable[[], Engine], requests: Sequence[GenerationRequest]) -> dict[GenerationRequest, Generated]:
    """What each request comes to when nothing else is there."""
    found = {}
    for request in requests:
        engine = make()
        engine.submit(request)
        found[request] = next(event.response for event in stream(engine) if isinstance(event, Ended))
    return found


def some_requests(rng: Random, count: int, vocabulary: int) -> list[GenerationRequest]:
    """Greedy and drawn, some with a stop token, prompts of all lengths, of which some are asked again and again."""
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(rng.randrange(1, 30))) for _ in range(count // 2 + 1)]
    return [
        GenerationRequest(
            id=f"r{n}",
            prompt=rng.choice(prompts),
            max_tokens=rng.randrange(1, 34),
            temperature=rng.choice((0.0, 0.8, 1.5)),
            top_p=rng.choice((1.0, 0.9)),
            seed=rng.randrange(2**64),
            stop_tokens=rng.choice(((), (5, 9), (0,))),
        )
        for n in range(count)
    ]
