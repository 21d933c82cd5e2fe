"""What becomes of requests whose engine is elsewhere and refuses, fails, dies or is interrupted at a bad time."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest
import torch

from rollmux.errors import InvalidSpec, InvariantViolated
from rollmux.runtime.engine import (
    Begun,
    Ended,
    Engine,
    Event,
    FinishReason,
    Gauges,
    Generated,
    GenerationRequest,
    Limits,
    Unfinished,
    UpdateRefused,
    stream,
)
from rollmux.runtime.engine.elsewhere import Answer, EngineElsewhere, answer
from rollmux.runtime.engine.errors import EngineLost
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.histories import CALLS, History, some_requests
from tests.runtime.engine.histories import alone as in_quiet
from tests.runtime.engine.models import VOCABULARY, finished, generated, tiny

ROOM = Limits(room_tokens=320, page_tokens=8)
FIRST, SECOND = (GenerationRequest(name, (1, 2, start), 8, seed=start) for name, start in (("first", 3), ("second", 4)))


class Interrupt(BaseException):
    """As Ctrl-C would be, but that it fails a test alone."""


class Within:
    """A line to an engine in this process, which answers at once; it is heard where the line's owner listens."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.answers, self.is_cut = engine, list[Answer](), False
        self.before_send: Callable[[str], None] = lambda name: None
        self.before_recv: Callable[[], None] = lambda: None

    def send(self, name: str, told: tuple[Any, ...]) -> None:
        self.before_send(name)
        if self.is_cut:
            raise BrokenPipeError
        self.answers.append(answer(self.engine, name, told))

    def recv(self) -> Answer:
        self.before_recv()
        if self.is_cut:
            raise EOFError
        return self.answers.pop(0)

    def close(self) -> None: ...


class Place:
    """Where engines live: in this process, one life after the other."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.lives: list[Within] = []
        self.patience_s = 0.0

    def begin(self, version: int) -> Within:
        self.lives.append(Within(self.make(version)))
        return self.lives[-1]

    def end(self, patience_s: float) -> None:
        self.patience_s = patience_s


@cache
def model() -> Any:
    return tiny("llama", torch.float64)


def roomy(version: int, room_tokens: int = 320) -> Engine:
    return slots(model(), Limits(room_tokens=room_tokens, page_tokens=8), version)


def alone(*requests: GenerationRequest) -> Mapping[str, tuple[int, ...]]:
    return {name: each.response.tokens for name, each in finished(roomy(0), requests).items()}


def told(engine: Engine, *requests: GenerationRequest) -> Mapping[str, tuple[int, ...]]:
    return {name: each.response.tokens for name, each in finished(engine, requests).items()}


def dead(version: int) -> Engine:
    raise EOFError


def begun(*requests: GenerationRequest, make: Callable[[int], Any] = roomy) -> tuple[EngineElsewhere, Place]:
    """An engine that has told a token of each, and has been asked for more."""
    place = Place(make)
    engine = EngineElsewhere(place)
    for each in requests:
        engine.submit(each)
    while requests and not engine.step():
        pass
    return engine, place


def test_what_a_process_in_place_of_a_dead_one_refuses_is_told_each_time_and_is_where_it_was() -> None:
    engine, place = begun(FIRST, SECOND)
    place.make = lambda version: roomy(version, room_tokens=8)
    place.lives[-1].is_cut = True
    assert engine.step() == []
    for _ in range(4):
        with pytest.raises(InvalidSpec, match="more room"):
            engine.step()
        assert engine.unfinished == 2
    place.make = roomy
    assert told(engine) == alone(FIRST, SECOND)


def test_who_was_refused_can_be_taken_out() -> None:
    engine, place = begun(FIRST, SECOND)
    place.make = lambda version: roomy(version, room_tokens=8)
    place.lives[-1].is_cut = True
    assert engine.step() == []
    with pytest.raises(InvalidSpec):
        engine.step()
    other = roomy(0)
    other.adopt(engine.export())
    assert engine.unfinished == 0
    assert told(other) == alone(FIRST, SECOND)


def test_a_process_that_dies_as_it_is_put_in_place_leaves_a_suspended_engine_suspended() -> None:
    engine, place = begun(FIRST)
    engine.suspend()

    def dies(version: int) -> Within:
        line = Within(roomy(version))

        def cut(name: str) -> None:
            line.is_cut = name == "suspend"

        line.before_send = cut
        return line

    place.begin = dies  # type: ignore[method-assign]
    place.lives[-1].is_cut = True
    with pytest.raises(EngineLost):
        engine.gauges()
    assert engine.is_suspended


WAITING: Mapping[str, Callable[[EngineElsewhere], object]] = {
    "step": lambda engine: [engine.step(), engine.step()],  # one of them waits
    "gauges": lambda engine: engine.gauges(),
    "probe": lambda engine: engine.probe((1, 2), 3),
    "export": lambda engine: engine.export(),
    "submit": lambda engine: engine.submit(SECOND),
    "cancel": lambda engine: engine.cancel(["first"]),
    "suspend": lambda engine: engine.suspend(),
}


@pytest.mark.parametrize("call", WAITING)
@pytest.mark.parametrize("error", [Interrupt, TimeoutError])  # the second as an alarm's handler may raise it
def test_a_call_that_is_interrupted_as_it_waits_has_not_been_and_others_get_their_own_answers(
    call: str, error: type[BaseException]
) -> None:
    engine, place = begun(FIRST)

    def interrupted() -> None:
        raise error

    for time in range(4):  # and it is no process that has died
        engine.gauges()
        if time % 2:  # then for the step that was asked for ahead
            engine._begin_step()
        place.lives[-1].before_recv = interrupted
        with pytest.raises(error):
            WAITING[call](engine)
        assert isinstance(engine.gauges(), Gauges)
        assert (engine.unfinished, engine.version, engine.is_suspended) == (1, 0, False)
    assert engine.probe((1, 2), 3) == roomy(0).probe((1, 2), 3)
    assert told(engine) == alone(FIRST)


def test_an_interrupt_as_the_next_step_is_asked_for_loses_nothing_that_is_to_be_told() -> None:
    engine, place = begun(FIRST)

    def interrupted(name: str) -> None:
        raise Interrupt

    engine.gauges()
    place.lives[-1].before_send = interrupted
    with pytest.raises(Interrupt):
        engine.step()
    events = list(stream(engine))
    assert [event.first for event in events if not isinstance(event, Ended)] == list(range(1, 8))


def ahead(*requests: GenerationRequest, make: Callable[[int], Any] = roomy) -> tuple[EngineElsewhere, Place]:
    """They have begun in the step that was asked for ahead, and nobody was told."""
    engine, place = begun(make=make)
    for each in requests:
        engine.submit(each)
    engine._begin_step()
    return engine, place


@pytest.mark.parametrize("at", ["update", "adopt"])
def test_an_update_in_which_the_engine_is_lost_forgets_nobody(at: str) -> None:
    engine, place = ahead(FIRST, SECOND)

    def cut(name: str) -> None:
        if name == at:
            place.make, place.lives[-1].is_cut = dead, True

    place.lives[-1].before_send = cut
    with suppress(EngineLost):
        engine.update(1)
    assert engine.unfinished == 2
    place.make = roomy
    other = roomy(1)
    other.adopt(engine.export())
    assert told(other) == alone(FIRST, SECOND)


def test_who_has_begun_ahead_is_still_there_if_an_update_is_refused_or_interrupted() -> None:
    engine, place = ahead(FIRST, SECOND)
    for version in (0, 1.5):
        with pytest.raises(UpdateRefused):
            engine.update(version)  # type: ignore[arg-type]
    assert engine.unfinished == 2
    engine._begin_step()

    def cut(name: str) -> None:
        if name == "update":
            raise Interrupt

    place.lives[-1].before_send = cut
    with pytest.raises(Interrupt):
        engine.update(1)
    assert engine.unfinished == 2
    engine.update(1)
    assert told(engine) == alone(FIRST, SECOND)


def _interrupted() -> None:
    raise Interrupt


def _no_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("named", [True, False], ids=["named", "in place"])
@pytest.mark.parametrize("how", ["interrupted before", "interrupted after", "failed, then lost"])
def test_nothing_is_computed_with_weights_of_which_nobody_knows_how_new_they_are(how: str, named: bool) -> None:
    shared, new = tiny(), {name: each.detach().clone() for name, each in tiny(seed=9).named_parameters()}

    def over_shared(version: int) -> Engine:
        return slots(shared, ROOM, version)

    engine, place = begun(make=over_shared)
    engine.submit(FIRST)
    engine.step()
    line = place.lives[-1]

    def trouble(name: str) -> None:
        if name != "update":
            return
        if how == "interrupted before":
            _interrupted()
        elif how == "interrupted after":
            line.before_recv = _interrupted
        else:
            line.engine._compute._refresh = _no_memory

    line.before_send = trouble
    with pytest.raises((Interrupt, MemoryError)):
        engine.update(1, new if named else None, Begun.RECOMPUTE)
    line.is_cut = True

    def nothing_is_computed() -> None:
        for call in (engine.gauges, engine.step, lambda: engine.probe((1, 2), 2), lambda: engine.submit(SECOND)):
            with pytest.raises(InvariantViolated, match="update to version 1 did not end: update again"):
                call()

    nothing_is_computed()
    for version, refused in ((0, new), (1, {"no such": new["lm_head.weight"]})):
        with pytest.raises((UpdateRefused, InvalidSpec)):
            engine.update(version, refused, Begun.RECOMPUTE)
        nothing_is_computed()
    engine.cancel(["first"])
    assert (engine.version, engine.unfinished, engine.export()) == (0, 0, ())
    engine.update(1, new, Begun.RECOMPUTE)
    asked = GenerationRequest("r", (1, 2, 3), 8, temperature=0.0)
    response = finished(engine, (asked,))["r"].response
    assert (set(response.versions), list(response.tokens)) == ({1}, generated(tiny(seed=9), asked))


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_new_weights_draw_all_of_who_has_begun_ahead_even_if_it_is_over(max_tokens: int) -> None:
    asked = GenerationRequest("r", (1, 2, 3), max_tokens, temperature=0.0)
    old, new = tiny(), {name: each.detach() for name, each in tiny(seed=9).named_parameters()}
    engine, _ = ahead(asked, make=lambda version: slots(old, ROOM, version))
    engine.update(1, new)
    assert engine.unfinished == 1
    ((_, ended),) = finished(engine).items()
    assert ended.response.tokens == finished(slots(tiny(seed=9), ROOM), [asked])["r"].response.tokens
    assert ended.response.versions == (1,) * max_tokens


@pytest.mark.parametrize("max_tokens", [2, 8])
def test_what_was_drawn_ahead_of_weights_that_were_written_in_place_is_of_the_new_ones(max_tokens: int) -> None:
    asked = GenerationRequest("r", (1, 2, 3), max_tokens, seed=3)
    kept = tiny("llama", torch.float64)
    engine, _ = begun(asked, make=lambda version: slots(kept, ROOM, version))
    with pytest.raises(UpdateRefused, match="1 responses have begun"):  # the shorter is over, and nobody was told
        engine.update(1)
    with torch.no_grad():
        for mine, new in zip(kept.parameters(), tiny("llama", torch.float64, seed=9).parameters(), strict=True):
            mine.copy_(new)
    engine.update(1, begun=Begun.RECOMPUTE)
    ((_, ended),) = finished(engine).items()
    assert ended.response.versions == (0,) + (1,) * (max_tokens - 1)
    other = slots(kept, ROOM, version=1)
    other.adopt([Unfinished(asked, Generated(*(side[:1] for side in astuple(ended.response))))], mixed=True)
    assert ended.response.tokens == finished(other)["r"].response.tokens


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_what_was_cancelled_is_in_no_updates_way_though_it_was_over_ahead(stops: bool, is_heard: bool) -> None:
    said = alone(FIRST)["first"][:2]
    stopping = replace(FIRST, stop_tokens=tuple({*range(VOCABULARY)} - {said[0]}), rests=True)
    engine, place = begun(stopping if stops else replace(FIRST, max_tokens=2))
    if is_heard:
        engine.gauges()
    engine.cancel(["first"])
    engine.update(1)
    assert (engine.unfinished, place.lives[0].engine.gauges().held_tokens) == (0, 0)
    (ended,) = engine.close()[-1:]
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.response.tokens) == (FinishReason.CANCELLED, said)


class Fails:
    """An engine whose next steps raise, so many of them."""

    def __init__(self, version: int) -> None:
        self._engine, self.failures = roomy(version), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[Event]:
        if self.failures:
            self.failures -= 1
            raise BlockingIOError
        return self._engine.step()


def all_of(engine: Engine) -> Sequence[Event]:
    events: list[Event] = []
    while engine.unfinished or not events or not isinstance(events[-1], Ended):
        with suppress(BlockingIOError):
            events += engine.step()
    return events


def test_ids_that_are_one_text_are_refused() -> None:
    engine, _ = begun(FIRST)
    for take in (engine.cancel, engine.export):
        with pytest.raises(InvalidSpec, match="in a list"):
            take("first")
    assert engine.unfinished == 1


def test_a_name_may_come_again_after_it_was_cancelled_and_a_step_has_failed() -> None:
    engine, place = begun(FIRST, make=Fails)
    engine.gauges()
    again = GenerationRequest("first", (4, 5), 3, seed=7)
    place.lives[-1].engine.failures = 1
    engine._begin_step()
    engine.cancel(["first"])
    engine.submit(again)
    with pytest.raises(BlockingIOError):
        engine.step()
    ends = [event for event in all_of(engine) if isinstance(event, Ended)]
    assert [each.reason for each in ends] == [FinishReason.CANCELLED, FinishReason.LENGTH]
    had = ends[0].response.tokens
    assert had == alone(FIRST)["first"][: len(had)] != ()
    assert ends[1].response.tokens == alone(again)["first"]


def test_a_name_does_not_come_again_while_the_end_of_who_had_it_cannot_be_heard() -> None:
    engine, place = begun(FIRST, make=Fails)
    engine.gauges()
    engine.cancel(["first"])
    place.lives[-1].engine.failures = 1
    with pytest.raises(BlockingIOError):
        engine.submit(GenerationRequest("first", (4, 5), 3))
    (ended,) = (event for event in all_of(engine) if isinstance(event, Ended))
    assert (ended.reason, engine.unfinished) == (FinishReason.CANCELLED, 0)


def test_what_was_cancelled_is_told_without_a_process_where_the_last_one_is_gone() -> None:
    engine, place = begun(FIRST, SECOND)
    engine.cancel(["first"])
    engine.suspend()
    place.lives[-1].is_cut = True
    assert [event.id for _ in range(3) for event in engine.step() if isinstance(event, Ended)] == ["first"]
    assert (engine.unfinished, engine.is_suspended, len(place.lives)) == (1, True, 1)
    engine.cancel(["second"])
    engine.submit(replace(SECOND, seed=5))  # a name comes again once the end of who had it is heard
    assert [event.id for event in engine.step() if isinstance(event, Ended)] == ["second"]


def test_close_waits_for_no_step_and_tells_what_was_heard() -> None:
    engine, place = begun(FIRST)
    engine.gauges()
    engine._begin_step()

    def waits() -> None:
        pytest.fail("it may never answer")

    place.lives[-1].before_recv = waits
    *_, ended = engine.close()
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.response.tokens) == (FinishReason.CANCELLED, alone(FIRST)["first"][:2])
    assert place.patience_s > 0
    assert (engine.unfinished, engine.is_suspended, engine.close()) == (0, True, [])


def test_a_close_that_is_interrupted_may_be_tried_again() -> None:
    engine, place = begun(FIRST)
    end = place.end

    def interrupted(patience_s: float) -> None:
        place.end = end  # type: ignore[method-assign]
        raise Interrupt

    place.end = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        engine.close()
    assert [event.id for event in engine.close()] == ["first"]


class Tried:
    """An engine of which each call is tried until nothing interrupts it."""

    def __init__(self, engine: EngineElsewhere) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return partial(self._tried, found) if callable(found) else found

    def _tried(self, call: Callable[..., Any], *told: Any, **named: Any) -> Any:
        while True:
            with suppress(Interrupt, TimeoutError, BlockingIOError):
                return call(*told, **named)


@pytest.mark.parametrize("seed", range(3))
def test_requests_end_once_and_as_if_alone_whatever_is_interrupted_and_fails(seed: int) -> None:
    rng, count = Random(seed), [0]

    def trouble(*_: object) -> None:
        if rng.random() < 0.03:
            count[0] += 1
            raise rng.choice((Interrupt, TimeoutError))

    def begin(version: int) -> Within:
        line = Within(Fails(version))
        line.engine.failures = rng.choice((0, 0, 1))
        line.before_send = line.before_recv = trouble
        return line

    requests = some_requests(Random(1), 10, VOCABULARY)
    known = in_quiet(lambda: roomy(0), requests)
    places = [Place(roomy) for _ in range(2)]
    for place in places:
        place.begin = begin  # type: ignore[method-assign]
    engines: Sequence[Any] = [Tried(EngineElsewhere(place)) for place in places]
    History(engines, known, rng).play(rng.choices(CALLS, k=70))
    assert count[0] > 5
