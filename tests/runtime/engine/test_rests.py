"""What was computed for a request that is over is there for the one that goes on from it, and in nobody's way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
import torch

from rollmux.runtime.engine import (
    Begun,
    Ended,
    Engine,
    FinishReason,
    Generated,
    GenerationRequest,
    Limits,
    LocalEngine,
    Unfinished,
    stream,
)
from rollmux.runtime.engine.elsewhere import EngineElsewhere
from rollmux.runtime.engine.slots import slots
from rollmux.trainer.workers import Workers
from tests.runtime.engine.histories import alone
from tests.runtime.engine.models import VOCABULARY, finished, prompt, tiny
from tests.runtime.engine.test_elsewhere import Place

STOPS = tuple(range(0, VOCABULARY, 3))  # a turn is three tokens long or so
FIRST = GenerationRequest("one", prompt(1, 20), 30, 1.0, 1.0, 7, STOPS, rests=True)
PLENTY = Limits(room_tokens=1024, page_tokens=8)
TIGHT = Limits(room_tokens=112, max_running=5, prefill_tokens=9, page_tokens=8)
TOLD = prompt(2, 5)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", torch.float64)


@pytest.fixture
def engine(model: Any) -> Iterator[LocalEngine]:
    made = slots(model, PLENTY)
    yield made
    made.close()


def goes_on(before: GenerationRequest, response: Generated, told: tuple[int, ...] = TOLD) -> GenerationRequest:
    return replace(before, prompt=before.prompt + response.tokens + told, seed=before.seed + 1)


def turn(engine: Engine, request: GenerationRequest) -> Generated:
    ended = finished(engine, [request])[request.id]
    assert ended.reason is FinishReason.STOP
    return ended.response


def require_same(found: Generated, wanted: Generated) -> None:
    assert found.tokens == wanted.tokens
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-9)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_turns_that_go_on_say_what_they_would_have_said_and_compute_what_is_new_alone(family: str) -> None:
    model = tiny(family, torch.float64)
    engine, request = slots(model, PLENTY), FIRST
    tokens = len(FIRST.prompt)
    for _ in range(4):
        (wanted,) = alone(lambda: slots(model, PLENTY), [request]).values()
        found = turn(engine, request)
        require_same(found, wanted)
        tokens += len(found.tokens) + len(TOLD)
        request = goes_on(request, found)
    gauges = engine.gauges()
    assert gauges.generated_tokens + gauges.prefilled_tokens == tokens - len(TOLD) - 1  # nothing was computed twice
    assert gauges.recomputed_tokens == 0
    engine.close()


def test_what_rests_holds_its_pages_until_it_is_cancelled(engine: LocalEngine) -> None:
    turn(engine, FIRST)
    assert engine.unfinished == 0
    assert engine.gauges().held_tokens > 0
    engine.cancel(["one", "nobody"])
    assert engine.gauges().held_tokens == 0
    assert engine.step() == []


@pytest.mark.parametrize("reason", ["no stop token", "not asked for", "cancelled"])
def test_what_ends_otherwise_does_not_rest(reason: str, engine: LocalEngine) -> None:
    asked = {"no stop token": replace(FIRST, stop_tokens=()), "not asked for": replace(FIRST, rests=False)}
    engine.submit(asked.get(reason, FIRST))
    if reason == "cancelled":
        engine.step()
        engine.cancel(["one"])
    finished(engine)
    assert engine.gauges().held_tokens == 0


@pytest.mark.parametrize("differs", ["in its prompt", "in what was said", "by being shorter"])
def test_who_does_not_begin_as_it_rests_computes_all_of_it(differs: str, engine: LocalEngine, model: Any) -> None:
    said = turn(engine, FIRST)
    other = {
        "in its prompt": goes_on(replace(FIRST, prompt=prompt(9, 20)), said),
        "in what was said": goes_on(FIRST, Generated((1,), (0.0,), (0,))),
        "by being shorter": replace(FIRST, prompt=FIRST.prompt[:9]),
    }[differs]
    (wanted,) = alone(lambda: slots(model, PLENTY), [other]).values()
    require_same(finished(engine, [other])["one"].response, wanted)
    engine.cancel(["one"])
    assert engine.gauges().held_tokens == 0


@pytest.mark.parametrize("how", ["asleep", "told other weights", "told the same anew"])
def test_nothing_rests_beyond_its_memory_and_its_weights(how: str, engine: LocalEngine, model: Any) -> None:
    request = goes_on(FIRST, turn(engine, FIRST))
    if how == "asleep":
        engine.suspend()
        engine.resume()
    else:
        engine.update(1, begun=Begun.KEEP if how == "told other weights" else Begun.REFUSE)
    assert engine.gauges().held_tokens == 0
    (wanted,) = alone(lambda: slots(model, PLENTY), [request]).values()
    require_same(turn(engine, request), wanted)


def test_what_ended_with_keys_of_older_weights_does_not_rest(model: Any) -> None:
    mine, newer = (tiny("llama", torch.float64, seed) for seed in (0, 9))
    engine, fresh = slots(mine, PLENTY), slots(newer, PLENTY, version=1)
    first = turn(slots(model, PLENTY), replace(FIRST, stop_tokens=tuple(range(VOCABULARY)))).tokens
    engine.submit(replace(FIRST, stop_tokens=tuple({*range(VOCABULARY)} - {*first})))
    engine.step()
    engine.update(1, dict(newer.named_parameters()), Begun.KEEP)
    said = finished(engine)["one"]
    assert (said.reason, {*said.response.versions}) == (FinishReason.STOP, {0, 1})
    assert engine.gauges().held_tokens == 0
    request = goes_on(FIRST, said.response)
    require_same(turn(engine, request), turn(fresh, request))
    for each in (engine, fresh):
        each.close()


def test_a_doze_keeps_what_rests(engine: LocalEngine) -> None:
    request = goes_on(FIRST, turn(engine, FIRST))
    computed = engine.gauges().prefilled_tokens
    engine.suspend(keep=True)
    engine.resume()
    turn(engine, request)
    assert engine.gauges().prefilled_tokens - computed <= len(TOLD)


def test_what_waits_to_go_on_and_gets_other_weights_first_is_computed_with_these(engine: LocalEngine) -> None:
    engine.submit(goes_on(FIRST, turn(engine, FIRST)))
    engine.update(1)
    assert engine.gauges().held_tokens == 0
    assert set(finished(engine)["one"].response.versions) == {1}


def test_a_request_that_comes_from_elsewhere_with_tokens_goes_on_too(engine: LocalEngine, model: Any) -> None:
    request = goes_on(FIRST, turn(engine, FIRST))
    (wanted,) = alone(lambda: slots(model, PLENTY), [request]).values()
    had = Generated(wanted.tokens[:1], wanted.logprobs[:1], (0,))
    engine.adopt([Unfinished(request, had)])
    require_same(finished(engine)["one"].response, wanted)


def test_what_rests_makes_room_for_whoever_runs_the_oldest_first(model: Any) -> None:
    engine = slots(model, TIGHT)
    for name in "abc":
        turn(engine, replace(FIRST, id=name, prompt=prompt(3, 15)))
    held = engine.gauges().held_tokens
    assert held <= TIGHT.room_tokens
    engine.submit(replace(FIRST, id="large", prompt=prompt(4, 70)))
    engine.step()
    assert engine.gauges().running == 1
    engine.cancel(["a", "b"])
    finished(engine)
    assert engine.gauges().preemptions == 0
    engine.close()


def test_what_rests_does_not_give_way_in_vain(model: Any) -> None:
    """Who is to come in would lack room all the same."""
    engine = slots(model, TIGHT)
    runs = replace(FIRST, id="runs", prompt=prompt(4, 50), stop_tokens=())
    engine.submit(runs)
    engine.submit(FIRST)
    ended = next(each for each in stream(engine) if isinstance(each, Ended))
    held = engine.gauges().held_tokens
    engine.submit(replace(runs, id="large", prompt=prompt(5, 60)))
    engine.step()
    assert (engine.gauges().running, engine.gauges().waiting) == (1, 1)
    assert engine.gauges().held_tokens >= held
    engine.cancel(["large"])
    computed = engine.gauges().prefilled_tokens
    engine.submit(goes_on(FIRST, ended.response))
    engine.step()
    assert engine.gauges().prefilled_tokens - computed <= len(TOLD)
    engine.close()


def test_a_probe_takes_the_room_of_what_rests_and_preempts_nobody_for_it(model: Any) -> None:
    engine = slots(model, TIGHT)
    for name in "abcd":
        turn(engine, replace(FIRST, id=name, prompt=prompt(3, 15)))
    engine.probe(prompt(5, 60), 20)
    assert engine.gauges().preemptions == 0
    engine.close()


def test_those_who_wait_with_their_pages_never_keep_everybody_from_running(model: Any) -> None:
    """All pages are with requests that wait to go on, of which the first lacks one."""
    engine = slots(model, replace(TIGHT, max_running=1))
    going = []
    for number, name in enumerate("abcd"):
        first = replace(FIRST, id=name, prompt=prompt(number, 17))
        going.append(goes_on(first, turn(engine, first), prompt(6, 30)))
    for request in going:
        engine.submit(request)
    assert len(finished(engine)) == 4
    engine.cancel("abcd"[number] for number in range(4))
    assert engine.gauges().held_tokens == 0
    engine.close()


# -- any order of calls ------------------------------------------------------------------------------------------------

CALLS = (
    "submit",
    "submit",
    "on",
    "on",
    "on",
    "other",
    "step",
    "step",
    "step",
    "forget",
    "move",
    "sleep",
    "doze",
    "wake",
)


class Dialogues:
    """Two engines, and dialogues that go on with either. What a turn should come to is known from drawing it alone."""

    calls: tuple[str, ...] = (*CALLS, "update", "probe")

    def __init__(self, model: Any, rng: Random, make: Callable[[], Engine]) -> None:
        self.model, self.rng = model, rng
        self.engines = (make(), make())
        self.names = map(str, count())
        self.under_way: dict[str, GenerationRequest] = {}
        self.over: dict[str, tuple[GenerationRequest, Generated]] = {}
        self.compared = 0

    def play(self, calls: int) -> None:
        for call in self.rng.choices(self.calls, k=calls):
            getattr(self, f"_{call}")(self.rng.choice(self.engines))
            for engine in self.engines:
                assert engine.gauges().held_tokens <= engine.gauges().room_tokens
        for engine in self.engines:
            engine.resume()
            self._hear(finished(engine).values())
        for engine in self.engines:
            engine.cancel(self.over)
            assert (engine.unfinished, engine.gauges().held_tokens) == (0, 0)
        assert not self.under_way

    def _submit(self, engine: Engine) -> None:
        rng = self.rng
        request = replace(
            FIRST, id=next(self.names), prompt=prompt(rng.randrange(99), rng.randrange(1, 40)), seed=rng.randrange(99),
            max_tokens=rng.randrange(1, 20),
        )  # fmt: skip
        self._begin(engine, request)

    def _begin(self, engine: Engine, request: GenerationRequest) -> None:
        if len(request.prompt) + request.max_tokens <= TIGHT.room_tokens:
            self.under_way[request.id] = request
            engine.submit(request)
        else:
            for each in self.engines:
                each.cancel([request.id])

    def _on(self, engine: Engine) -> None:
        if self.over:
            name = self.rng.choice(list(self.over))
            self._begin(engine, goes_on(*self.over.pop(name), prompt(self.rng.randrange(99), self.rng.randrange(12))))

    def _other(self, engine: Engine) -> None:
        """The same name, and another prompt."""
        if self.over and self.rng.random() < 0.3:
            name = self.rng.choice(list(self.over))
            request, said = self.over.pop(name)
            self._begin(engine, replace(goes_on(request, said), prompt=request.prompt[1:] + said.tokens))

    def _forget(self, engine: Engine) -> None:
        if self.over:
            name = self.rng.choice(list(self.over))
            del self.over[name]
            engine.cancel([name])

    def _step(self, engine: Engine) -> None:
        self._hear([event for event in engine.step() if isinstance(event, Ended)])

    def _move(self, engine: Engine) -> None:
        other = self.engines[1 - self.engines.index(engine)]
        other.adopt(engine.export([name for name in self.under_way if self.rng.random() < 0.5]), mixed=True)

    def _sleep(self, engine: Engine) -> None:
        engine.suspend()

    def _doze(self, engine: Engine) -> None:
        engine.suspend(keep=True)

    def _wake(self, engine: Engine) -> None:
        engine.resume()

    def _update(self, engine: Engine) -> None:
        for each in self.engines:
            each.update(each.version + 1, begun=Begun.RECOMPUTE)

    def _probe(self, engine: Engine) -> None:
        if not engine.is_suspended:
            engine.probe((1, 2, 3), 3)

    def _hear(self, ends: Any) -> None:
        for ended in ends:
            if ended.id not in self.under_way:
                continue  # it was given up
            request = self.under_way.pop(ended.id)
            (wanted,) = alone(lambda: slots(self.model, PLENTY), [request]).values()
            require_same(ended.response, wanted)
            self.over[ended.id] = request, ended.response
            self.compared += 1


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_of_calls_each_turn_is_what_it_is_alone_and_no_page_is_lost(seed: int, model: Any) -> None:
    world = Dialogues(model, Random(seed), lambda: slots(model, TIGHT))
    try:
        world.play(120)
    finally:
        for engine in world.engines:
            engine.close()
    assert world.compared > 10


class Dying(Dialogues):
    """Elsewhere, where processes die, and whoever goes on may be given up."""

    calls = (*CALLS, "update", "probe", "die", "give_up")

    def __init__(self, model: Any, rng: Random) -> None:
        self.places: list[Place] = []
        super().__init__(model, rng, self._elsewhere)

    def _elsewhere(self) -> Engine:
        self.places.append(Place(lambda version: slots(self.model, TIGHT, version)))
        return EngineElsewhere(self.places[-1])

    def _die(self, engine: Engine) -> None:
        if engine.unfinished and not engine.is_suspended:
            self.places[self.engines.index(engine)].lives[-1].is_cut = True
            self._step(engine)
            self._step(engine)

    def _give_up(self, engine: Engine) -> None:
        if self.under_way:
            name = self.rng.choice(list(self.under_way))
            del self.under_way[name]
            for each in self.engines:
                each.cancel([name])


@pytest.mark.parametrize("seed", range(4))
def test_elsewhere_it_is_the_same_whoever_dies_or_is_given_up(seed: int, model: Any) -> None:
    world = Dying(model, Random(seed))
    world.play(250)
    assert world.compared > 10


# -- behind a line, and beside others ----------------------------------------------------------------------------------


def test_an_engine_elsewhere_rests_is_gone_on_from_and_is_told_where_nobody_will(model: Any) -> None:
    place = Place(lambda version: slots(model, PLENTY, version))
    engine = EngineElsewhere(place)
    said = turn(engine, FIRST)
    there = place.lives[0].engine
    assert there.gauges().held_tokens > 0
    computed = there.gauges().prefilled_tokens
    turn(engine, goes_on(FIRST, said))
    assert there.gauges().prefilled_tokens - computed <= len(TOLD)
    engine.cancel(["one"])
    assert there.gauges().held_tokens == 0
    engine.cancel(["one"])
    turn(engine, FIRST)
    place.lives[0].is_cut = True
    engine.step()
    engine.cancel(["one"])  # it rested with a process that is gone
    assert len(place.lives) <= 2
    assert turn(engine, FIRST) == said
    engine.close()


def test_what_new_weights_draw_again_rests_anew(model: Any) -> None:
    """It was over ahead of its owner, who brought new weights."""
    place = Place(lambda version: slots(model, PLENTY, version))
    engine = EngineElsewhere(place)
    engine.submit(replace(FIRST, id="other", stop_tokens=()))
    engine.step()
    engine.submit(replace(FIRST, stop_tokens=tuple(range(VOCABULARY))))
    assert {event.id for event in engine.step()} == {"other"}  # of the step before
    engine.update(1, begun=Begun.RECOMPUTE)
    assert finished(engine)["one"].response.versions == (1,)
    assert place.lives[0].engine.gauges().held_tokens > 0
    engine.cancel(["one"])
    assert place.lives[0].engine.gauges().held_tokens == 0
    engine.close()


@pytest.mark.parametrize("how", ["asleep", "told other weights", "gone on", "gone on from elsewhere"])
def test_an_engine_elsewhere_remembers_nobody_of_whom_nothing_rests_there(how: str, model: Any) -> None:
    """Who goes on with another worker meanwhile, or for the last time, is never cancelled here."""
    place = Place(lambda version: slots(model, PLENTY, version))
    engine = EngineElsewhere(place)
    last = replace(goes_on(FIRST, turn(engine, FIRST)), rests=False)
    if how == "asleep":
        engine.suspend()
    elif how == "told other weights":
        engine.update(1)
    elif how == "gone on":
        turn(engine, last)
    else:
        engine.adopt([Unfinished(last, Generated())])
        finished(engine)
    called: list[str] = []
    place.lives[0].before_send = called.append
    engine.cancel(["one"])
    assert not called
    engine.close()


def test_workers_go_on_where_it_rests_unless_that_one_is_away(model: Any) -> None:
    engines = slots(model, PLENTY), slots(model, PLENTY)
    workers = Workers(engines)
    workers.launch(replace(FIRST, id="other", stop_tokens=()))
    workers.launch(FIRST)
    said = _told(workers, "one")
    assert [engine.unfinished for engine in engines] == [1, 0]
    workers.launch(goes_on(FIRST, said))
    assert [engine.unfinished for engine in engines] == [1, 1]
    assert engines[1].gauges().held_tokens > 16
    said = _told(workers, "one")
    workers.share([0])
    workers.launch(goes_on(FIRST, said))
    assert engines[0].unfinished == 2
    _told(workers, "one")
    _told(workers, "other")
    assert engines[0].gauges().held_tokens > 0
    workers.forget(["one"])
    assert [engine.gauges().held_tokens for engine in engines] == [0, 0]
    for engine in engines:
        engine.close()


def _told(workers: Workers, name: str) -> Generated:
    while True:
        for event in workers.step():
            if isinstance(event, Ended) and event.id == name:
                return event.response
