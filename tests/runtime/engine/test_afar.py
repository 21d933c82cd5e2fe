"""Engines on the other end of a connection do what engines do, also when it is cut."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from threading import Thread
from typing import Any

import msgspec
import pytest
import torch

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine import (
    Begun,
    Ended,
    Engine,
    EngineSuspended,
    FinishReason,
    GenerationRequest,
    Grown,
    UpdateRefused,
)
from rollmux.runtime.engine.afar import Spoken, serve
from rollmux.runtime.engine.elsewhere import EngineElsewhere
from rollmux.runtime.engine.errors import EngineFailed, EngineLost
from rollmux.runtime.engine.slots import slots
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, SyncFailed
from rollmux.runtime.sync.transports.inline import Inline
from tests.runtime.engine.histories import CALLS, History, alone, some_requests
from tests.runtime.engine.models import VOCABULARY, finished, tiny
from tests.runtime.engine.test_histories import TIGHT

LONG = GenerationRequest("long", (1, 2, 3), 40, seed=1)


class Place:
    """Where an engine lives: a thread, at the other end of a connection. `begun` are all of its lives."""

    def __init__(self, make: Callable[[int], Engine]) -> None:
        self._make = make
        self.begun: list[Channel] = []
        self._threads: list[Thread] = []

    def begin(self, version: int) -> Spoken:
        here, there = (Channel(link, Inline(), 20.0) for link in socket.socketpair())
        thread = Thread(target=self._live, args=(self._make(version), there), daemon=True)
        thread.start()
        self.begun.append(there)
        self._threads.append(thread)
        return Spoken(here)

    @staticmethod
    def _live(engine: Any, channel: Channel) -> None:
        with suppress(SyncFailed, msgspec.DecodeError):
            serve(engine, channel)
        channel.close()
        if hasattr(engine, "close"):
            engine.close()

    def cut(self) -> None:
        self.begun[-1].hang_up()

    def end(self, patience_s: float) -> None:
        for thread in self._threads:
            thread.join(20.0)
            assert not thread.is_alive()


@contextmanager
def afar(count: int = 1) -> Iterator[tuple[Sequence[EngineElsewhere], Sequence[Place]]]:
    places = [Place(lambda version: slots(tiny("llama", torch.float64), TIGHT, version)) for _ in range(count)]
    engines = [EngineElsewhere(place) for place in places]
    try:
        yield engines, places
    finally:
        for engine in engines:
            engine.close()


def test_requests_end_once_and_as_if_alone_whatever_is_called_and_whenever_the_line_is_cut() -> None:
    requests = some_requests(Random(1), 10, VOCABULARY)
    known = alone(lambda: slots(tiny("llama", torch.float64), TIGHT), requests)
    cuts = 0
    with afar(2) as (engines, places):
        for seed in range(3):
            rng = Random(seed)
            history, calls = History(engines, known, rng), rng.choices(CALLS, k=70)
            for start in range(0, 70, 14):
                history.call(calls[start : start + 14])
                place = rng.choice(places)
                if place.begun:
                    place.cut()
                    cuts += 1
            history.play(())
    assert cuts > 10


def test_what_is_refused_is_refused_as_by_the_engine_itself() -> None:
    with afar() as ((engine,), _):
        engine.submit(LONG)
        with pytest.raises(InvalidSpec, match=r"request\.id = 'long': must be the id of no other") as again:
            engine.submit(LONG)
        assert [problem.value for problem in again.value.problems] == ["long"]
        with pytest.raises(InvalidSpec, match=r"prompt = '\(\)': must be at least one token"):
            engine.probe((), 3)
        while not engine.step():
            pass
        with pytest.raises(UpdateRefused, match="begun"):
            engine.update(1)
        with pytest.raises(UpdateRefused, match="come by sync"):
            engine.update(1, {"weight": torch.zeros(1)}, Begun.RECOMPUTE)
        engine.cancel(["long", "nobody"])
        (ended,) = finished(engine).values()
        assert ended.reason is FinishReason.CANCELLED
        engine.suspend()
        with pytest.raises(EngineSuspended):
            engine.probe((1, 2), 3)
        engine.resume()
        assert len(engine.probe((1, 2), 3)) == 3
        engine.update(1)
        assert engine.version == 1


class Breaks:
    """Raises what no engine does; says what no engine says."""

    version, is_suspended = 0, False

    def adopt(self, unfinished: object, mixed: bool) -> None: ...

    def cancel(self, ids: object) -> None: ...

    def gauges(self) -> None:
        raise ZeroDivisionError("by what")

    def probe(self, prompt: tuple[int, ...], count: int) -> str:
        return "three tokens"


def test_what_no_engine_raises_is_told_by_its_name_and_an_answer_that_is_none_ends_the_line() -> None:
    engine = EngineElsewhere(Place(lambda version: Breaks()))  # type: ignore[arg-type, return-value]
    with pytest.raises(EngineFailed, match="ZeroDivisionError: by what"):
        engine.gauges()
    with pytest.raises(EngineLost):
        engine.probe((1,), 3)
    engine.close()


def test_an_engine_that_is_not_there_yet_begins_with_the_first_call_that_needs_it() -> None:
    with afar() as ((engine,), (place,)):
        engine.suspend()
        engine.update(3)
        assert engine.export() == ()
        assert (engine.is_suspended, engine.version, len(place.begun)) == (True, 3, 0)
        engine.resume()
        engine.submit(LONG)
        assert (engine.is_suspended, len(place.begun)) == (False, 1)
        want = finished(slots(tiny("llama", torch.float64), TIGHT), [LONG])["long"].response
        found = finished(engine)["long"].response
        assert (found.tokens, found.logprobs, set(found.versions)) == (want.tokens, want.logprobs, {3})


def test_calls_that_no_engine_has_end_the_line() -> None:
    here, there = (Channel(link, Inline(), 20.0) for link in socket.socketpair())
    here.write(msgspec.msgpack.encode(["close", []]))
    with pytest.raises(msgspec.DecodeError, match="no call 'close'"):
        serve(Breaks(), there)
    there.close()
    with pytest.raises(Broken):
        here.read(100)
    here.close()


def test_a_response_comes_token_by_token() -> None:
    with afar() as ((engine,), _):
        engine.submit(LONG)
        tokens: list[int] = []
        over: Ended | None = None
        while over is None:
            for event in engine.step():
                if isinstance(event, Grown):
                    assert event.first == len(tokens)
                    tokens += event.gained.tokens
                else:
                    over = event
        assert over.response.tokens == tuple(tokens)
        assert len(tokens) == 40


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_name_may_come_again_at_once_after_it_was_cancelled(is_cut: bool) -> None:
    with afar() as ((engine,), (place,)):
        first, again = (GenerationRequest("same", (start, 2, 3), 5, temperature=0.0) for start in (1, 4))
        engine.submit(first)
        while not engine.step():
            pass
        engine.cancel(["same"])
        if is_cut:
            place.cut()
        engine.submit(again)
        (taken,) = engine.export()
        assert (taken.request, taken.response.tokens) == (again, ())
        engine.adopt([taken])
        events = [event for _ in range(12) for event in engine.step()]
        ended = [event for event in events if isinstance(event, Ended)]
        assert [each.reason for each in ended] == [FinishReason.CANCELLED, FinishReason.LENGTH]
        alone_first, alone_again = (
            finished(slots(tiny("llama", torch.float64), TIGHT), [each])["same"].response for each in (first, again)
        )
        had = ended[0].response.tokens
        assert had == alone_first.tokens[: len(had)]
        assert ended[1].response.tokens == alone_again.tokens


def test_an_update_that_loses_the_engine_forgets_nobody() -> None:
    with afar() as ((engine,), (place,)):
        engine.submit(LONG)
        while not engine.step():
            pass
        engine.submit(GenerationRequest("ahead", (4, 5), 6, temperature=0.0))
        while not any(event.id == "ahead" for event, _ in engine._heard):
            assert all(event.id == "long" for event in engine.step())
            engine.gauges()

        def dead(version: int) -> Spoken:
            raise EOFError

        place.begin = dead  # type: ignore[method-assign]
        place.cut()
        engine.update(1, begun=Begun.RECOMPUTE)  # for all that was drawn ahead is taken out, and nothing is left to do
        assert (engine.unfinished, engine.version) == (2, 1)
        assert {each.request.id for each in engine.export()} == {"long", "ahead"}
