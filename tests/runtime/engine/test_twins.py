"""A prompt that several responses answer is computed once, and none of them can tell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.runtime.engine import Begun, FinishReason, Generated, GenerationRequest, Limits, LocalEngine, Unfinished
from rollmux.runtime.engine.desk import LEAST_SHARED, Desk
from rollmux.runtime.engine.room import Room
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.histories import CALLS, History, alone
from tests.runtime.engine.models import VOCABULARY, finished, prompt, tiny

PLENTY = Limits(room_tokens=2048, page_tokens=8, prefill_tokens=64)
PROMPT = prompt(1, 43)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", torch.float64)


@pytest.fixture
def engine(model: Any) -> Iterator[LocalEngine]:
    made = slots(model, PLENTY)
    yield made
    made.close()


def group(count: int, of: tuple[int, ...] = PROMPT, tokens: int = 9) -> list[GenerationRequest]:
    return [GenerationRequest(f"{seed}", of, tokens, seed=seed) for seed in range(count)]


def require_as_alone(model: Any, found: Any, asked: Sequence[GenerationRequest]) -> None:
    wanted = alone(lambda: slots(model, PLENTY), asked)
    for request in asked:
        response: Generated = found[request.id].response
        assert response.tokens == wanted[request].tokens
        assert response.logprobs == pytest.approx(wanted[request].logprobs, abs=1e-9)


@pytest.mark.parametrize("length", [LEAST_SHARED + 1, 24, 25, 40, 41, 100])
def test_a_group_s_prompt_is_computed_once_and_each_answers_as_if_alone(
    length: int, engine: LocalEngine, model: Any
) -> None:
    """Pages end within it, with it, and a token before its end; with 100 it comes by pieces."""
    asked = group(6, prompt(2, length))
    require_as_alone(model, finished(engine, asked), asked)
    gauges = engine.gauges()
    assert gauges.prefilled_tokens + gauges.generated_tokens == length + 5 + 6 * 8
    assert gauges.recomputed_tokens == 0


def test_who_comes_later_has_it_too_without_what_was_answered(engine: LocalEngine, model: Any) -> None:
    first, *others = group(5)
    engine.submit(first)
    for _ in range(4):
        engine.step()
    before = engine.gauges()
    require_as_alone(model, finished(engine, others), others)
    after = engine.gauges()
    computed = after.prefilled_tokens + after.generated_tokens - before.prefilled_tokens - before.generated_tokens
    assert computed == 5 + 4 * 9


def test_short_prompts_wait_for_nobody(engine: LocalEngine) -> None:
    for request in group(4, prompt(3, LEAST_SHARED)):
        engine.submit(request)
    assert len(engine.step()) == 4


def test_two_groups_at_once_take_each_from_its_own(engine: LocalEngine, model: Any) -> None:
    other = (*PROMPT[:-1], PROMPT[-1] ^ 1)
    asked = [
        replace(each, id=f"{name}{each.id}") for name, of in (("a", PROMPT), ("b", other)) for each in group(3, of)
    ]
    require_as_alone(model, finished(engine, asked), asked)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_where_the_first_is_cancelled_the_next_computes_it(steps: int, engine: LocalEngine, model: Any) -> None:
    """Before, within and after its prompt, which takes two steps."""
    asked = group(4, prompt(4, 90))
    for request in asked:
        engine.submit(request)
    for _ in range(steps):
        engine.step()
    engine.cancel(["0"])
    require_as_alone(model, finished(engine), asked[1:])


def test_after_an_update_that_keeps_what_began_a_prompt_is_computed_by_the_new_weights(model: Any) -> None:
    """The old one's keys and values are of the old weights."""
    mine = tiny("llama", torch.float64)
    engine = slots(mine, PLENTY)
    old, new = group(2)
    engine.submit(old)
    engine.step()
    engine.step()
    weights = {name: weight + 0.05 * torch.randn_like(weight) for name, weight in mine.named_parameters()}
    engine.update(1, weights, Begun.KEEP)
    found = finished(engine, [new])
    changed = slots(mine, PLENTY)
    assert found["1"].response.tokens == finished(changed, [new])["1"].response.tokens
    for each in (engine, changed):
        each.close()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_copy_that_is_broken_off_is_made_again(
    is_gone: bool, engine: LocalEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the one that was copied from is still there or not."""
    asked = group(4)
    for request in asked:
        engine.submit(request)
    engine.step()
    compute, calls = engine._compute, []
    whole = compute.copy

    def breaks(*told: Any) -> None:
        calls.append(told)
        if len(calls) == 2:
            raise MemoryError("once")
        whole(*told)

    monkeypatch.setattr(compute, "copy", breaks)
    with pytest.raises(MemoryError):
        engine.step()
    if is_gone:
        engine.cancel(["0"])
    engine.probe((1, 2, 3), 2)  # in between, over whatever is there
    require_as_alone(model, finished(engine), asked[is_gone:])
    assert len(calls) == 5 - is_gone


@pytest.mark.parametrize("seed", range(6))
def test_groups_end_as_if_alone_in_any_order_of_calls_and_little_room(seed: int, model: Any) -> None:
    rng = Random(seed)
    tight = Limits(room_tokens=160, max_running=6, prefill_tokens=11, page_tokens=8)
    prompts = [prompt(number, rng.randrange(17, 50)) for number in range(3)]
    asked = [
        GenerationRequest(
            f"r{n}", rng.choice(prompts), rng.randrange(1, 30), seed=n, stop_tokens=rng.choice(((), (5, 9)))
        )
        for n in range(14)
    ]
    known = alone(lambda: slots(model, tight), asked)
    history = History((slots(model, tight), slots(model, tight)), known, rng)
    history.play(rng.choices(CALLS, k=110))
    for each in history.engines:
        each.close()


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_no_order_of_arrivals_and_ends_keeps_a_desk_from_coming_to_its_end(seed: int) -> None:
    """Pure: whoever is planned is computed, and nobody waits for a twin that is gone."""
    rng = Random(seed)
    room = Room(24, 8, lambda pages: None, lambda out, into: None)
    desk = Desk(room, rng.randrange(1, 9), 192, VOCABULARY, rng.randrange(1, 40))
    prompts = [tuple(range(rng.randrange(1, 60))) for _ in range(3)]
    left = [GenerationRequest(str(n), rng.choice(prompts), rng.randrange(1, 20)) for n in range(12)]
    idle = 0
    while (left or desk.live) and idle < 50:
        if left and rng.random() < 0.5:
            desk.add([Unfinished(left.pop(), Generated())])
        if desk.live and rng.random() < 0.1:
            desk.end(desk.live[rng.choice(list(desk.live))], FinishReason.CANCELLED)
        work = desk.plan()
        room.settle()
        for sources, targets, tokens in desk.copies():
            assert len(sources) >= room.needed(tokens) <= len(targets)
        desk.twins.clear()
        idle = 0 if work or not desk.live else idle + 1
        for live, count in work:
            owed = live.owed
            desk.done(live, count)
            if owed == count:
                desk.grow(live, 1, -1.0, 0)
    assert not desk.live
    assert room.used == 0
