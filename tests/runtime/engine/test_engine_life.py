"""Updates, sleep, moves, damage and the end of an engine that computes a model."""

import gc
import math
import resource
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollmux.errors import InvalidSpec, InvariantViolated
from rollmux.runtime.engine import (
    Begun,
    Canary,
    CanaryDied,
    Ended,
    EngineClosed,
    EngineSuspended,
    FinishReason,
    Generated,
    GenerationRequest,
    Limits,
    LocalEngine,
    Unfinished,
    UpdateRefused,
)
from rollmux.runtime.engine import slots as slots_module
from rollmux.runtime.engine.desk import Live
from rollmux.runtime.engine.slots import slots
from rollmux.runtime.residency import CpuMemory, NotFreed
from tests.runtime.engine.models import finished, forward_logprobs, generated, on_processors, prompt, tiny

LIMITS = Limits(room_tokens=320, max_running=4, page_tokens=8)


def request(name: str = "r", tokens: int = 12, seed: int = 1) -> GenerationRequest:
    return GenerationRequest(name, prompt(seed, 6), tokens, temperature=0)


def other_weights(seed: int = 9) -> Mapping[str, Tensor]:
    return {name: weight.detach() for name, weight in tiny(seed=seed).named_parameters()}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("asleep", [False, True])
def test_after_an_update_the_new_weights_draw_every_token(in_place: bool, asleep: bool) -> None:
    model, engine = tiny(), None
    engine = slots(model, LIMITS)
    finished(engine, [request()])
    if asleep:
        engine.suspend()
    if in_place:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(other_weights()[name])
    engine.update(4, None if in_place else other_weights())
    engine.resume()
    response = finished(engine, [request()])["r"].response
    assert list(response.tokens) == generated(tiny(seed=9), request())
    assert set(response.versions) == {4}


def test_an_update_is_refused_while_responses_have_begun_and_changes_nothing() -> None:
    model = tiny()
    engine = slots(model, LIMITS)
    engine.submit(request())
    engine.step()
    with pytest.raises(UpdateRefused, match="'r' among them"):
        engine.update(1, other_weights())
    assert engine.version == 0
    assert list(finished(engine)["r"].response.tokens) == generated(tiny(), request())


def test_a_request_without_a_token_is_in_nobodys_way() -> None:
    engine = slots(tiny(), Limits(room_tokens=320, prefill_tokens=2, page_tokens=8))
    engine.submit(request())
    assert engine.step() == []  # some of its prompt is computed, under the old weights
    engine.update(1, other_weights())
    assert list(finished(engine)["r"].response.tokens) == generated(tiny(seed=9), request())


def test_recomputed_responses_go_on_under_the_new_weights_alone_and_say_so() -> None:
    engine = slots(tiny(), LIMITS)
    engine.submit(request())
    for _ in range(5):
        engine.step()
    engine.update(1, other_weights(), Begun.RECOMPUTE)
    response = finished(engine)["r"].response
    assert response.versions == (0,) * 5 + (1,) * 7
    assert response.logprobs[5:] == pytest.approx(forward_logprobs(tiny(seed=9), request(), response)[5:], abs=2e-5)
    assert engine.gauges().recomputed_tokens == 6 + 4


def test_kept_responses_go_on_without_computing_anything_anew() -> None:
    engine = slots(tiny(), LIMITS)
    engine.submit(request())
    for _ in range(5):
        engine.step()
    engine.update(1, other_weights(), Begun.KEEP)
    response = finished(engine)["r"].response
    assert response.versions == (0,) * 5 + (1,) * 7
    assert engine.gauges().recomputed_tokens == 0
    pure = forward_logprobs(tiny(seed=9), request(), response)
    assert response.logprobs[6:] != pytest.approx(pure[6:], abs=1e-3), "old keys and values take part"


def test_versions_only_rise_and_wrong_weights_change_nothing() -> None:
    model = tiny()
    engine = slots(model, LIMITS, version=3)
    for version in (True, 4.5):
        with pytest.raises(UpdateRefused, match="no whole number"):
            engine.update(version)  # type: ignore[arg-type]
    with pytest.raises(UpdateRefused, match="version 3 is not above 3"):
        engine.update(3)
    wrong: dict[str, Any] = {**other_weights(), "model.norm.weight": torch.zeros(7), "head": torch.zeros(2)}
    with pytest.raises(InvalidSpec, match="head") as told:
        engine.update(4, wrong)
    assert len(told.value.problems) == 2
    assert engine.version == 3
    assert list(finished(engine, [request()])["r"].response.tokens) == generated(tiny(), request())


def test_who_suspends_hears_whether_the_memory_is_the_devices_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[object]()

    class Books(CpuMemory):
        def expect(self, nbytes: int, piece: int | None) -> None:
            told.append(nbytes)

        def release(self) -> None:
            told.append("asked")
            if len(told) > 4:
                raise NotFreed("kept")

    monkeypatch.setattr(slots_module, "memory_of", lambda device: Books())
    engine = slots(tiny(), LIMITS)
    held = engine.gauges().nbytes
    for _ in range(2):
        engine.suspend()
        engine.suspend()
        engine.resume()
    assert told == [held, "asked"] * 2
    with pytest.raises(NotFreed):
        engine.suspend()


@pytest.mark.parametrize("keep", [False, True])
def test_a_suspended_engine_stands_still_and_goes_on_where_it_was(keep: bool) -> None:
    engine = slots(tiny(), LIMITS)
    engine.submit(request())
    for _ in range(4):
        engine.step()
    held = engine.gauges().nbytes
    engine.suspend(keep)
    engine.suspend(keep)
    assert engine.is_suspended
    assert engine.step() == []
    assert engine.gauges().nbytes == (held if keep else 0)
    engine.submit(request("later"))
    engine.resume()
    engine.resume()
    ends = finished(engine)
    assert [list(end.response.tokens) for end in ends.values()] == [generated(tiny(), request())] * 2
    assert engine.gauges().recomputed_tokens == (0 if keep else 6 + 3)


def test_what_is_cancelled_in_sleep_is_told_in_sleep() -> None:
    engine = slots(tiny(), LIMITS)
    engine.submit(request())
    engine.step()
    engine.suspend()
    engine.cancel(["r", "r", "nobody"])
    (event,) = engine.step()
    assert event == finished_event(event)
    assert engine.step() == []


def finished_event(event: Any) -> Any:
    assert event.reason is FinishReason.CANCELLED
    assert len(event.response.tokens) == 1
    return event


def test_a_move_to_weights_of_another_version_is_refused_unless_mixing_is_meant() -> None:
    here, there = slots(tiny(), LIMITS), slots(tiny(), LIMITS, version=1)
    here.submit(request())
    here.step()
    moved = here.export()
    assert here.unfinished == 0
    with pytest.raises(UpdateRefused, match=r"versions \[0\], the engine has version 1"):
        there.adopt(moved)
    assert there.unfinished == 0
    there.adopt(moved, mixed=True)
    assert finished(there)["r"].response.versions == (0,) + (1,) * 11


def test_adopting_is_all_or_nothing() -> None:
    here, there = slots(tiny(), LIMITS), slots(tiny(), LIMITS)
    for name in ("a", "b"):
        here.submit(request(name))
    there.submit(request("b"))
    with pytest.raises(InvalidSpec, match="no other unfinished"):
        there.adopt(here.export())
    assert there.unfinished == 1


@pytest.mark.parametrize("token", [-1, -100, 1.0, 61])
def test_a_response_with_what_is_no_token_of_the_models_is_not_adopted(token: Any) -> None:
    engine = slots(tiny(), LIMITS)
    with pytest.raises(InvalidSpec, match=f"{token}"):
        engine.adopt([Unfinished(request("bad"), Generated((3, token), (-1.0, -1.0), (0, 0)))])
    assert engine.unfinished == 0


def test_ids_that_are_one_text_are_refused() -> None:
    engine = slots(tiny(), LIMITS)
    for name in ("1", "r1"):
        engine.submit(request(name))
    for call in (engine.cancel, engine.export):
        with pytest.raises(InvalidSpec, match="in a list"):
            call("r1")
    assert engine.unfinished == 2


def test_many_leave_from_among_many_in_any_order_and_who_is_left_keeps_its_place() -> None:
    engine = slots(tiny(), Limits(room_tokens=320, max_running=1, page_tokens=8))
    names = [f"r{n}" for n in range(9)]
    for name in names:
        engine.submit(request(name, tokens=2))
    engine.step()
    engine.cancel(["r4", "r8", "r2"])
    assert [each.request.id for each in engine.export(["r6", "r1"])] == ["r6", "r1"]
    engine.suspend()  # the one that runs is the first again
    engine.resume()
    ended = [name for name, end in finished(engine).items() if end.reason is FinishReason.LENGTH]
    assert ended == ["r0", "r3", "r5", "r7"]


def test_who_leaves_is_not_searched_for_among_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[object]()
    engine = slots(tiny(), LIMITS)
    names = [f"r{n}" for n in range(300)]
    for name in names:
        engine.submit(request(name))
    engine.step()

    def equal(one: Live, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(Live, "__eq__", equal)
    engine.cancel(reversed(names[100:]))
    engine.export(reversed(names))
    assert len(compared) <= LIMITS.max_running**2


@pytest.mark.parametrize("call", ["done", "grow"])
def test_what_was_drawn_and_lost_to_an_interrupt_is_drawn_again(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = slots(tiny(), LIMITS)
    asked = [GenerationRequest(f"r{n}", prompt(n, 5), 6, seed=n) for n in range(3)]
    want = {name: end.response.tokens for name, end in finished(slots(tiny(), LIMITS), asked).items()}
    for each in asked:
        engine.submit(each)
    engine.step()

    def interrupted(*told: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(engine._desk, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    events = [event for _ in range(20) for event in engine.step()]
    assert {event.id: event.response.tokens for event in events if isinstance(event, Ended)} == want


def test_a_request_that_could_never_run_is_refused_at_once() -> None:
    engine = slots(tiny(), Limits(room_tokens=16, page_tokens=8))
    with pytest.raises(InvalidSpec, match="at most 17 with the prompt"):
        engine.submit(request(tokens=12))
    engine.submit(request(tokens=11))  # the last token's keys and values are never needed
    with pytest.raises(InvalidSpec, match="no other unfinished"):
        engine.submit(request(tokens=2))
    with pytest.raises(InvalidSpec, match="tokens below 61"):
        engine.submit(GenerationRequest("foreign", (61,), 1))
    with pytest.raises(InvalidSpec, match="at most 128"):
        engine.submit(request("long", tokens=123))
    assert len(finished(engine)["r"].response.tokens) == 11


def test_one_that_gives_way_comes_back_first_and_says_the_same() -> None:
    engine = slots(tiny(dtype=torch.float64), Limits(room_tokens=48, page_tokens=8))
    asked = [GenerationRequest(f"r{n}", prompt(n, 9), 30, seed=n) for n in range(3)]
    ends = finished(engine, asked)
    assert engine.gauges().preemptions > 0
    assert engine.gauges().recomputed_tokens > 0
    assert list(ends) == ["r0", "r1", "r2"]
    for each in asked:
        calm = finished(slots(tiny(dtype=torch.float64), LIMITS), [each])
        assert calm[each.id].response.tokens == ends[each.id].response.tokens


def test_output_that_is_no_number_fails_its_request_and_harms_no_other() -> None:
    model = tiny()
    engine = slots(model, LIMITS)
    with torch.no_grad():
        model.model.embed_tokens.weight[60] = math.nan
    sick = GenerationRequest("sick", (3, 60, 4, 5, 6, 7, 8), 5)
    well = GenerationRequest("well", prompt(1, 6), 40, temperature=0, stop_tokens=(60,))
    ends = finished(engine, [well, sick])  # the page of the last is the next to be taken
    assert ends["sick"].reason is FinishReason.FAILED
    assert "not a number" in ends["sick"].why
    assert ends["well"].reason is not FinishReason.FAILED
    again = [GenerationRequest(f"w{n}", (n, n + 1), 20, temperature=0, stop_tokens=(60,)) for n in range(4)]
    assert FinishReason.FAILED not in {end.reason for end in finished(engine, again).values()}


def test_what_is_no_number_harms_nobody_where_it_has_moved_from() -> None:
    """The first to end leaves a gap, into which the last page of the sick one moves before it draws."""
    model = tiny()
    engine = slots(model, Limits(room_tokens=64, max_running=4, prefill_tokens=8, page_tokens=8))
    with torch.no_grad():
        model.model.embed_tokens.weight[60] = math.nan
    first = GenerationRequest("first", (1, 2, 3), 2, temperature=0)
    sick = GenerationRequest("sick", (60,) * 15, 4, temperature=0)
    assert finished(engine, [first, sick])["sick"].reason is FinishReason.FAILED
    again = [GenerationRequest(f"w{n}", (1, 2, 3), 3, temperature=0) for n in range(4)]
    assert FinishReason.FAILED not in {end.reason for end in finished(engine, again).values()}


SICK = GenerationRequest("sick", (60,) * 30, 4, temperature=0)  # its prompt comes in pieces
GONE_UNSEEN: Mapping[str, Callable[[LocalEngine], object]] = {
    "cancel": lambda engine: engine.cancel(["sick"]),
    "export": lambda engine: engine.export(["sick"]),
    "update": lambda engine: engine.update(1, {"model.embed_tokens.weight": torch.ones(61, 32)}),
}


@pytest.mark.parametrize("call", GONE_UNSEEN)
def test_what_is_no_number_harms_nobody_where_it_was_given_back_before_a_token_was_drawn(call: str) -> None:
    model = tiny()
    engine = slots(model, Limits(room_tokens=64, max_running=4, prefill_tokens=8, page_tokens=8))
    with torch.no_grad():
        model.model.embed_tokens.weight[60] = math.nan
    engine.submit(SICK)
    assert engine.step() == []
    GONE_UNSEEN[call](engine)
    assert -1 not in engine.probe((1, 2, 3), 5)
    engine.cancel(["sick"])
    again = [GenerationRequest(f"w{n}", (1, 2, 3), 3, temperature=0) for n in range(4)]
    assert FinishReason.FAILED not in {end.reason for end in finished(engine, again).values()}


def test_what_could_not_be_wiped_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    engine = slots(model, LIMITS)
    with torch.no_grad():
        model.model.embed_tokens.weight[60] = math.nan

    def fails(pages: list[int]) -> None:
        raise MemoryError

    asked = [GenerationRequest(f"r{n}", (token, 1), 3, temperature=0) for n, token in enumerate((2, 60, 3))]
    for each in asked:
        engine.submit(each)
    with monkeypatch.context() as patched:
        patched.setattr(engine._desk.room, "_wipe", fails)
        with pytest.raises(MemoryError):
            engine.step()
    ends = finished(engine)
    assert [ends[each.id].reason is FinishReason.FAILED for each in asked] == [False, True, False]


def test_many_pages_move_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MOVED_AT_ONCE", 2)
    model = tiny(dtype=torch.float64)
    asked = [GenerationRequest(f"r{n}", prompt(n, 20), 12, temperature=0) for n in range(8)]
    engine = slots(model, Limits(room_tokens=256, max_running=8, prefill_tokens=256, page_tokens=4))
    for each in asked:
        engine.submit(each)
    engine.step()
    engine.export([each.id for each in asked[:4]])
    ends = finished(engine)
    for each in asked[4:]:
        assert list(ends[each.id].response.tokens) == generated(model, each)


def test_the_canary_lives_through_sleep_and_dies_of_damage() -> None:
    model = tiny()
    engine = slots(model, LIMITS)
    canary = Canary.learn(engine, prompt(2, 5), 8)
    engine.submit(request())
    engine.step()
    engine.suspend()
    with pytest.raises(EngineSuspended):
        canary.check(engine)
    engine.resume()
    canary.check(engine)
    engine.suspend()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1)
    engine.resume()
    with pytest.raises(CanaryDied, match="before it was"):
        canary.check(engine)


def test_a_canary_of_other_weights_is_no_canary() -> None:
    engine = slots(tiny(), LIMITS)
    canary = Canary.learn(engine, (1, 2), 4)
    engine.update(1)
    with pytest.raises(CanaryDied, match="learn it anew"):
        canary.check(engine)
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(CanaryDied, match="not a number"):
        Canary.learn(slots(model, LIMITS), (1, 2), 4)


def test_a_probe_finds_room_in_a_full_engine_and_changes_no_response() -> None:
    model = tiny(dtype=torch.float64)
    engine = slots(model, Limits(room_tokens=48, page_tokens=8))
    asked = [GenerationRequest(f"r{n}", prompt(n, 9), 25, seed=n) for n in range(3)]
    quiet = finished(slots(model, LIMITS), asked)
    for each in asked:
        engine.submit(each)
    for _ in range(5):
        engine.step()
    assert engine.probe(prompt(7, 20), 5) == engine.probe(prompt(7, 20), 5)
    assert {name: end.response.tokens for name, end in finished(engine).items()} == {
        name: end.response.tokens for name, end in quiet.items()
    }


def test_a_computation_that_raises_draws_nothing_and_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = slots(tiny(), LIMITS)
    engine.submit(request())
    engine.step()
    with monkeypatch.context() as broken:
        broken.setattr(torch, "baddbmm", _no_memory)
        with pytest.raises(MemoryError):
            engine.step()
    assert list(finished(engine)["r"].response.tokens) == generated(tiny(), request())


def _no_memory(*_: Any, **__: Any) -> Tensor:
    raise MemoryError("none is left")


def test_close_tells_what_was_left_and_leaves_nothing() -> None:
    model = tiny()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    engine = slots(model, LIMITS)
    engine.submit(request())
    engine.submit(request("waits"))
    engine.step()
    engine.step()
    ended = {event.id: event for event in engine.close() if hasattr(event, "reason")}
    assert {name: len(end.response.tokens) for name, end in ended.items()} == {"r": 2, "waits": 2}  # type: ignore[union-attr]
    assert engine.close() == []
    assert engine.gauges().nbytes == 0
    assert_refuses_all(engine)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def assert_refuses_all(engine: LocalEngine) -> None:
    for call in (engine.step, engine.resume, engine.suspend, engine.export, lambda: engine.submit(request()),
                 lambda: engine.adopt(()), lambda: engine.update(9), lambda: engine.probe((1,), 1)):  # fmt: skip
        with pytest.raises(EngineClosed):
            call()


def test_memory_comes_and_goes_with_sleep_and_does_not_grow() -> None:
    engine = slots(tiny(), LIMITS)
    held = engine.gauges().nbytes
    for cycle in range(20):
        finished(engine, [request(f"r{cycle}")])
        engine.suspend()
        assert engine.gauges().nbytes == 0
        engine.resume()
        assert engine.gauges().nbytes == held
    tensors = tensors_there()
    finished(engine, [request("last")])
    engine.suspend()
    engine.resume()
    assert tensors_there() <= tensors


@on_processors
def test_a_room_takes_memory_as_it_is_used_and_gives_it_back() -> None:
    limits = Limits(room_tokens=2**20, max_running=4, page_tokens=8)
    before = resident_bytes()
    engine = slots(tiny(), limits)
    room = engine.gauges().nbytes
    assert room > 2**28
    finished(engine, [request()])
    assert resident_bytes() - before < room / 8
    forward = engine._compute._require()  # type: ignore[attr-defined]
    assert not forward.keys[:, -1].any()
    with torch.inference_mode():
        forward.keys.fill_(1)
    assert resident_bytes() - before > room / 3
    del forward
    engine.suspend()
    assert resident_bytes() - before < room / 8


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def tensors_there() -> int:
    gc.collect()
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


@pytest.mark.parametrize("begun", Begun)
def test_a_prompt_that_is_half_computed_is_computed_anew_by_new_weights(begun: Begun) -> None:
    model = tiny(dtype=torch.float64)
    engine = slots(model, Limits(room_tokens=320, prefill_tokens=16, page_tokens=8))
    asked = GenerationRequest("r", prompt(1, 40), 8, temperature=0.0)
    engine.submit(asked)
    assert engine.step() == engine.step() == []
    new = tiny(seed=9, dtype=torch.float64)
    engine.update(1, dict(new.named_parameters()), begun)
    response = finished(engine)["r"].response
    assert set(response.versions) == {1}
    assert list(response.tokens) == generated(new, asked)
    assert response.logprobs == pytest.approx(forward_logprobs(new, asked, response), abs=1e-5)


def test_weights_without_data_are_refused_before_any_is_copied() -> None:
    model = tiny()
    engine, before = slots(model, LIMITS), {name: each.clone() for name, each in model.named_parameters()}
    weights = {name: torch.zeros_like(each) for name, each in before.items()}
    weights[list(weights)[-1]] = weights[list(weights)[-1]].to("meta")
    with pytest.raises(InvalidSpec, match="with data"):
        engine.update(1, weights)
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


def test_a_probe_is_refused_as_a_request_would_be_and_may_be_as_long() -> None:
    engine = slots(tiny(), Limits(room_tokens=16, page_tokens=8, max_length=40))
    asked = GenerationRequest("r", prompt(1, 14), 3, temperature=0.0)
    assert engine.probe(asked.prompt, 3) == finished(engine, [asked])["r"].response.tokens
    with pytest.raises(InvalidSpec, match="at most 40"):
        engine.probe(prompt(1, 30), 11)
    with pytest.raises(InvalidSpec, match="use the tokenizer of this model"):
        engine.probe((10**6,), 2)


@pytest.mark.parametrize("form", [torch.sparse_coo, torch.int8, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_that_a_copy_would_cast_silently_or_break_off_at_are_refused(form: Any) -> None:
    model = tiny()
    engine, before = slots(model, LIMITS), {name: each.clone() for name, each in model.named_parameters()}
    weights: dict[str, Any] = {**other_weights()}
    last = weights.pop("model.norm.weight")
    weights["model.norm.weight"] = last.to_sparse() if form is torch.sparse_coo else last.to(form)
    with pytest.raises(InvalidSpec, match=r"weights\.model\.norm\.weight.*dense"):
        engine.update(1, weights)
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_is_computed_with_weights_that_are_half_new(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    engine = slots(model, LIMITS)
    engine.submit(request())
    with monkeypatch.context() as patched:
        patched.setattr(engine._compute, "_refresh", _no_memory)  # all are copied, none is packed anew
        with pytest.raises(MemoryError):
            engine.update(1, None if in_place else other_weights())
    for call in (engine.step, lambda: engine.probe((1, 2), 2)):
        with pytest.raises(InvariantViolated, match="update to version 1 did not end"):
            call()
    engine.suspend()
    engine.resume()
    with pytest.raises(InvariantViolated, match="update again"):
        engine.step()
    assert engine.version == 0
    engine.update(1, other_weights())
    response = finished(engine)["r"].response
    assert (set(response.versions), list(response.tokens)) == ({1}, generated(tiny(seed=9), request()))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_who_was_told_that_memory_is_not_free_may_go_on_or_ask_again(
    at_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    is_free = False

    class Books(CpuMemory):
        def expect(self, nbytes: int, piece: int | None) -> None:
            asked.append(nbytes)

        def release(self) -> None:
            asked.append(-1)
            if not is_free:
                raise NotFreed("kept")

    monkeypatch.setattr(slots_module, "memory_of", lambda device: Books())
    engine = slots(tiny(), LIMITS)
    held = engine.gauges().nbytes
    engine.submit(request())
    engine.step()
    for _ in range(2):
        with pytest.raises(NotFreed):
            engine.close() if at_the_end else engine.suspend()
    assert asked == [held, -1, -1]
    assert engine.is_suspended
    if not at_the_end:
        engine.resume()
        assert list(finished(engine)["r"].response.tokens) == generated(tiny(), request())
        with pytest.raises(NotFreed):
            engine.suspend()
    is_free = True
    engine.suspend()
    engine.suspend()
    assert asked == [held, -1, -1] + ([] if at_the_end else [held, -1]) + [-1]
    assert [type(event) for event in engine.close()] == ([Ended] if at_the_end else [])


def test_tied_parameters_get_one_value() -> None:
    model = tiny(tie_word_embeddings=True)
    engine = slots(model, LIMITS)
    before = model.lm_head.weight.clone()
    ones = torch.ones_like(before)
    with pytest.raises(InvalidSpec, match=r"weights\.lm_head\.weight.*those of model\.embed_tokens\.weight"):
        engine.update(1, {"model.embed_tokens.weight": ones, "lm_head.weight": 2 * ones})
    assert torch.equal(model.lm_head.weight, before)
    for version, other in enumerate((ones, ones.view_as(ones), ones.clone(), ones.double())):
        engine.update(version + 1, {"model.embed_tokens.weight": ones, "lm_head.weight": other})
    assert torch.equal(model.lm_head.weight, ones)
    engine.update(9, tiny(tie_word_embeddings=True).state_dict())
    assert torch.equal(model.lm_head.weight, before)
