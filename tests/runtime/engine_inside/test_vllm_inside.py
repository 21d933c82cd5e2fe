"""A vLLM in this process keeps the promises of the seam, whether it computes a step ahead or not."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rollmux.errors import InvalidSpec, InvariantViolated
from rollmux.runtime.engine import (
    Begun,
    Ended,
    EngineClosed,
    EngineSuspended,
    FinishReason,
    Generated,
    GenerationRequest,
    Grown,
    Unfinished,
    UpdateRefused,
    stream,
)
from rollmux.runtime.engine.http import Memory, MemoryHeld
from rollmux.runtime.engine.vllm_inside import VllmInside
from tests.runtime.engine.histories import CALLS, History, alone, some_requests
from tests.runtime.engine.models import finished
from tests.runtime.engine_http.fake_machine import VOCABULARY, draw, greedy
from tests.runtime.engine_inside.fake_llm import FakeLLM, Refused, weights

PROMPT = (11, 12, 13)
MODES = pytest.mark.parametrize("ahead", [False, True])


def request(name: str = "r", count: int = 12, **said: Any) -> GenerationRequest:
    return GenerationRequest(name, said.pop("prompt", PROMPT), count, **({"temperature": 0.0} | said))


def grown(engine: VllmInside, count: int) -> tuple[int, ...]:
    """Steps until so many tokens have been told."""
    tokens: tuple[int, ...] = ()
    while len(tokens) < count:
        for event in engine.step():
            assert isinstance(event, Grown)
            tokens += event.gained.tokens
    return tokens


def require_empty(llm: FakeLLM) -> None:
    """Nothing of ours is left there, and its owner can go on."""
    assert not llm.llm_engine.has_unfinished_requests()
    assert not llm.llm_engine.scheduler.requests
    assert llm.generate() == []


@MODES
def test_a_response_is_what_the_model_says_with_its_log_probabilities(ahead: bool) -> None:
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm, version=3)
    engine.submit(request())
    *pieces, ended = stream(engine)
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.response.tokens) == (FinishReason.LENGTH, greedy("base", PROMPT, 12))
    texts = [PROMPT + ended.response.tokens[:place] for place in range(12)]
    assert ended.response.logprobs == tuple(draw("base", text, None)[1] for text in texts)
    assert ended.response.versions == (3,) * 12
    assert [piece.first for piece in pieces if isinstance(piece, Grown)] == list(range(12))
    require_empty(llm)


@MODES
def test_more_requests_than_run_at_once_and_than_there_is_room_for_all_end(ahead: bool) -> None:
    llm = FakeLLM(blocks=9, rows=4, ahead=ahead)
    engine = VllmInside(llm)
    asked = [request(f"r{n}", 20 + n, prompt=(n + 1, 2)) for n in range(12)]
    ended = finished(engine, asked)
    assert {name: each.response.tokens for name, each in ended.items()} == {
        each.id: greedy("base", each.prompt, each.max_tokens) for each in asked
    }
    gauges = engine.gauges()
    assert gauges.preemptions > 0
    assert (gauges.ended, gauges.generated_tokens) == (12, sum(each.max_tokens for each in asked))
    assert (gauges.prefilled_tokens, gauges.recomputed_tokens) == (24, 0)
    require_empty(llm)


@MODES
def test_a_stop_token_ends_a_response_and_is_its_last(ahead: bool) -> None:
    answer = greedy("base", PROMPT, 12)
    (ended,) = finished(VllmInside(FakeLLM(ahead=ahead)), [request(stop_tokens=(answer[5],))]).values()
    assert (ended.reason, ended.response.tokens) == (FinishReason.STOP, answer[:6])


def test_the_seed_decides_what_is_drawn_and_each_of_64_bits_counts() -> None:
    seeds = {"a": 5, "b": 5, "c": 2**64 - 1, "d": 2**64 - 1, "e": 0, "f": 2**63}
    asked = [request(name, temperature=1.0, seed=seed) for name, seed in seeds.items()]
    drawn = {name: each.response.tokens for name, each in finished(VllmInside(FakeLLM()), asked).items()}
    assert drawn["a"] == drawn["b"]
    assert drawn["c"] == drawn["d"]
    assert len(set(drawn.values())) == 4


def test_what_the_owner_wants_of_each_draw_is_handed_on() -> None:
    llm = FakeLLM()
    engine = VllmInside(llm, sampling={"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1})
    engine.submit(request(temperature=0.7, top_p=0.9))
    engine.step()
    (asked,) = llm.llm_engine.known.values()
    params = asked.params
    assert (params.top_k, params.min_p, params.repetition_penalty) == (20, 0.1, 1.1)
    assert (params.temperature, params.top_p) == (0.7, 0.9)


@MODES
def test_a_cancelled_request_ends_with_what_it_has_and_is_ended_in_the_llm(ahead: bool) -> None:
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm)
    engine.submit(request(count=400))
    tokens = grown(engine, 3)
    engine.cancel(["r", "nobody"])
    engine.cancel(["r"])
    (ended,) = engine.step()
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.response.tokens) == (FinishReason.CANCELLED, tokens)
    assert engine.step() == []
    require_empty(llm)
    for take in (engine.cancel, engine.export):
        with pytest.raises(InvalidSpec, match="give them in a list"):
            take("r1")


@MODES
def test_an_exported_request_goes_on_in_another_engine(ahead: bool) -> None:
    llm, other = FakeLLM(ahead=ahead), FakeLLM(ahead=ahead)
    here, there = VllmInside(llm), VllmInside(other)
    here.submit(request(count=60))
    here.submit(request("sampled", count=60, temperature=1.0, seed=2))
    grown(here, 10)
    taken = here.export()
    assert here.unfinished == 0
    require_empty(llm)
    there.adopt(taken)
    ended = finished(there)
    assert {each.reason for each in ended.values()} == {FinishReason.LENGTH}
    assert ended["r"].response.tokens == greedy("base", PROMPT, 60)
    assert len(ended["sampled"].response.tokens) == 60
    assert there.gauges().recomputed_tokens == 10
    seeds = {*llm.llm_engine.seeds, *other.llm_engine.seeds}
    assert len(seeds) == 4, "with its old seed it would meet its first draws again"
    with pytest.raises(UpdateRefused, match="has version 1"):
        VllmInside(FakeLLM(), version=1).adopt(taken)


@MODES
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_new_weights_take_over_between_two_tokens_and_meet_no_old_keys(
    ahead: bool, frozen: bool, in_place: bool
) -> None:
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm)
    engine.submit(request(count=30))
    had = grown(engine, 5)
    if frozen:
        engine.suspend(keep=True)
    if in_place:
        llm.weights = "new"
    with pytest.raises(UpdateRefused, match="'r' among them"):
        engine.update(1)
    with pytest.raises(UpdateRefused, match="say RECOMPUTE"):
        engine.update(1, begun=Begun.KEEP)
    with pytest.raises(UpdateRefused, match="version 0 is not above 0"):
        engine.update(0, begun=Begun.RECOMPUTE)
    engine.update(1, None if in_place else weights("new"), Begun.RECOMPUTE)
    engine.resume()
    asked = [request("again"), request("longer", prompt=PROMPT + had)]
    ended = finished(engine, asked)
    response = ended["r"].response
    assert response.versions == (0,) * 5 + (1,) * 25
    assert response.tokens == had + greedy("new", PROMPT + had, 25)
    for each in asked:
        assert ended[each.id].response.tokens == greedy("new", each.prompt, 12)
    require_empty(llm)


@MODES
def test_the_prompts_of_requests_without_a_token_are_computed_with_the_new_weights(ahead: bool) -> None:
    llm = FakeLLM(ahead=ahead, rows=1)
    engine = VllmInside(llm)
    engine.submit(request())
    if ahead:
        assert engine.step() == []  # its first token is on its way, and is not of the new weights
    engine.update(1, weights("new"))
    assert finished(engine)["r"].response == Generated(
        greedy("new", PROMPT, 12),
        tuple(draw("new", PROMPT + greedy("new", PROMPT, n), None)[1] for n in range(12)),
        (1,) * 12,
    )


def test_nothing_is_computed_with_weights_that_are_half_new() -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    engine.submit(request())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exceeds dimension"):
            engine.update(1, weights("other", bad=1))
    for call in (engine.step, lambda: engine.probe((1, 2), 2)):
        with pytest.raises(InvariantViolated, match="update to version 1 did not end"):
            call()
    with pytest.raises(UpdateRefused, match="give them all"):
        engine.update(1)
    assert engine.version == 0
    engine.update(1, weights("new"))
    assert finished(engine)["r"].response.tokens == greedy("new", PROMPT, 12)


def test_weights_that_are_not_all_of_the_models_are_refused_and_change_nothing(tmp_path: Path) -> None:
    whole = {name: torch.zeros(tensor.shape) for name, tensor in weights("any").items()}
    save_file(whole, tmp_path / "model.safetensors")
    for model in (str(tmp_path), "a name on the hub"):
        llm = FakeLLM(model=model)
        engine = VllmInside(llm)
        if model != str(tmp_path):
            engine.update(1, weights("base"))  # the first that it takes are the measure
        lacking = {name: tensor for name, tensor in weights("new").items() if name != "layer.1"}
        other = weights("new") | {"layer.1": replace(weights("new")["layer.1"], shape=(3, 3))}
        empty = weights("new") | {"layer.1": replace(weights("new")["layer.1"], is_meta=True)}
        unknown = weights("new") | {"layer.7": weights("new")["layer.1"]}
        refused: tuple[tuple[Mapping[str, Any], str], ...] = (
            (lacking, "lacks 1 of the model's 3"),
            (other, r"other shape, \[3, 3\], not \[2, 3\]"),
            (empty, "layer.1"),
            (unknown, "no 'layer.7'"),
            ({}, "lacks 3"),
        )
        for wrong, why in refused:
            with pytest.raises(UpdateRefused, match=why):
                engine.update(5, wrong)
        assert finished(engine, [request()])["r"].response.tokens == greedy("base", PROMPT, 12)


@MODES
@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_suspended_engine_stands_still_and_goes_on_where_it_was(
    ahead: bool, sleeps: bool, keep: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rollmux")
    llm = FakeLLM(ahead=ahead, enable_sleep_mode=sleeps)
    engine = VllmInside(llm)
    assert engine.gives_memory_back is sleeps
    assert ("keeps its memory" in caplog.text) is not sleeps
    engine.submit(request(count=30))
    engine.submit(request("sampled", count=30, temperature=1.0))
    grown(engine, 10)
    held = engine.gauges().nbytes
    for _ in range(2):
        engine.suspend(keep)
    assert engine.is_suspended
    assert engine.step() == []
    with pytest.raises(EngineSuspended):
        engine.probe((1,), 1)
    assert llm.llm_engine.is_sleeping() is (sleeps and not keep)
    assert engine.gauges().nbytes == (0 if sleeps and not keep else held)
    engine.submit(request("later"))
    for _ in range(2):
        engine.resume()
    ended = finished(engine)
    assert ended["r"].response.tokens == greedy("base", PROMPT, 30)
    assert len(ended["sampled"].response.tokens) == 30
    assert ended["later"].response.tokens == greedy("base", PROMPT, 12)
    assert (engine.gauges().recomputed_tokens > 0) is not keep
    require_empty(llm)


@pytest.mark.parametrize("in_place", [False, True])
def test_new_weights_wake_no_keys_and_values(in_place: bool) -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    engine.submit(request(count=30))
    had = grown(engine, 5)
    engine.suspend()
    if in_place:
        llm.wake_up(["weights"])
        llm.weights = "new"
    engine.update(1, None if in_place else weights("new"), Begun.RECOMPUTE)
    assert llm.llm_engine.model_executor.sleeping_tags == {"kv_cache"}
    assert engine.is_suspended
    engine.suspend()  # what is half awake sleeps again
    assert len(llm.llm_engine.model_executor.sleeping_tags) == 2
    engine.resume()
    assert finished(engine)["r"].response.tokens == had + greedy("new", PROMPT + had, 25)


def test_a_sleep_counts_once_its_bytes_are_seen_to_be_free() -> None:
    llm = FakeLLM()
    bytes_of = {True: 10, False: 100}
    memory = Memory(lambda: bytes_of[llm.llm_engine.is_sleeping()], {}, asleep_bytes=20, leak_bytes=0, settle_s=0.05)
    engine = VllmInside(llm, memory=memory)
    engine.suspend()
    engine.resume()
    bytes_of[True] = 30
    with pytest.raises(MemoryHeld, match="holds 30 bytes"):
        engine.suspend()
    assert engine.is_suspended
    bytes_of[True] = 10
    engine.suspend()


def test_what_is_cancelled_in_sleep_is_told_in_sleep() -> None:
    engine = VllmInside(FakeLLM())
    engine.submit(request())
    grown(engine, 1)
    engine.suspend()
    engine.cancel(["r"])
    (ended,) = engine.step()
    assert isinstance(ended, Ended)
    assert (ended.reason, len(ended.response.tokens)) == (FinishReason.CANCELLED, 1)


@MODES
def test_a_step_that_fails_is_tried_again_and_nothing_of_it_is_met_again(ahead: bool) -> None:
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm)
    for n in range(12):
        engine.submit(request(f"r{n}", 20, prompt=(n, 5)))
    grown(engine, 30)
    for fails in (1, 2):
        llm.fails = fails
        for _ in range(fails):
            with pytest.raises(IndexError):
                engine.step()
            require_empty(llm)
    grown(engine, 1)
    llm.fails = 1
    with pytest.raises(IndexError):
        engine.probe((3,), 2)
    for name, each in finished(engine).items():
        assert each.response.tokens == greedy("base", (int(name[1:]), 5), 20)


@pytest.mark.parametrize("call", [VllmInside.suspend, lambda engine: engine.update(1, weights("new"), Begun.RECOMPUTE)])
def test_where_the_last_step_fails_before_a_sleep_or_new_weights_nothing_of_it_is_met_again(
    call: Callable[[VllmInside], None],
) -> None:
    llm = FakeLLM(ahead=True)
    engine = VllmInside(llm)
    engine.submit(request())
    grown(engine, 3)
    llm.fails = 1
    with pytest.raises(IndexError):
        call(engine)
    engine.resume()
    assert finished(engine)["r"].response.tokens == greedy("base", PROMPT, 12)


@MODES
@pytest.mark.parametrize("count", [6, 30])
def test_what_others_have_heard_in_its_place_is_not_lost(ahead: bool, count: int) -> None:
    """Its owner generates with the LLM, which tells him of all that it has."""
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm)
    engine.submit(request("r", count))
    engine.submit(request("longer", 40, prompt=(7,)))
    grown(engine, 4)
    engine.suspend(keep=True)
    for _ in range(10):
        llm.llm_engine.step()
    if count == 30:
        llm.generate()
    engine.resume()
    ended = finished(engine)
    assert ended["r"].response.tokens == greedy("base", PROMPT, count)
    assert ended["longer"].response.tokens == greedy("base", (7,), 40)


def test_an_llm_that_somebody_else_put_to_sleep_computes_nothing_and_loses_nothing() -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    engine.submit(request(count=20))
    grown(engine, 4)
    llm.sleep(1)
    for call in (engine.step, lambda: engine.probe((1,), 1)):
        with pytest.raises(EngineSuspended, match="not by this engine"):
            call()
    llm.wake_up(["weights", "kv_cache"])
    grown(engine, 4)
    llm.sleep(1)
    llm.wake_up(["weights", "kv_cache"])
    assert finished(engine)["r"].response.tokens == greedy("base", PROMPT, 20)
    require_empty(llm)


def test_whose_keys_others_hold_no_new_weights_come_over() -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    params = replace(llm.get_default_sampling_params(), ignore_eos=True, detokenize=False, logprobs=0)
    llm.llm_engine.add_request("owner's", {"prompt_token_ids": [1]}, params)
    llm.llm_engine.step()
    with pytest.raises(InvariantViolated, match="requests of others"):
        engine.update(1, weights("new"))
    assert (engine.version, llm.weights) == (0, "base")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request(prompt=(5, VOCABULARY)), f"tokens below {VOCABULARY}"),
        (request(count=510), "at most 512 with the 3 tokens"),
        (request(temperature=0.005), "at least 0.01"),
        (request(temperature=2.1), "at most 2"),
        (request("taken"), "no other unfinished"),
    ],
)
def test_a_request_that_could_not_run_as_it_says_is_refused_at_once(asked: GenerationRequest, why: str) -> None:
    engine = VllmInside(FakeLLM())
    engine.submit(request("taken"))
    with pytest.raises(InvalidSpec, match=why):
        engine.submit(asked)
    with pytest.raises(InvalidSpec, match=why):
        engine.adopt([Unfinished(request("fine"), Generated()), Unfinished(asked, Generated())])
    assert engine.unfinished == 1
    assert len(finished(engine)["taken"].response.tokens) == 12


def test_a_request_that_vllm_itself_refuses_waits_for_who_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    engine.submit(request("first"))

    def refuses(name: str, *told: object) -> None:
        llm.llm_engine.known[name] = next(iter(llm.llm_engine.known.values()))  # its front has it by then
        raise Refused

    engine.step()
    engine.submit(request("second"))
    with monkeypatch.context() as patched:
        patched.setattr(llm.llm_engine, "add_request", refuses)
        with pytest.raises(Refused):
            engine.step()
    assert engine.unfinished == 2
    assert len(llm.llm_engine.known) == 1
    assert {name: len(each.response.tokens) for name, each in finished(engine).items()} == {"first": 12, "second": 12}
    require_empty(llm)


def test_log_probabilities_of_what_was_drawn_from_are_taken_for_the_models_own_only_where_they_are() -> None:
    engine = VllmInside(FakeLLM(logprobs_mode="processed_logprobs"))
    for fine in (request("greedy", top_p=0.5), request("own", temperature=1.0)):
        engine.submit(fine)
    for wrong in (request(temperature=0.9), request(temperature=1.0, top_p=0.9)):
        with pytest.raises(InvalidSpec, match="say `as_drawn`"):
            engine.submit(wrong)
    drawn = VllmInside(FakeLLM(logprobs_mode="processed_logprobs"), sampling={"top_k": 5}, as_drawn=True)
    drawn.submit(request(temperature=0.9, top_p=0.9))


@pytest.mark.parametrize(
    ("config", "said", "why"),
    [
        ({"distributed_executor_backend": "external_launcher", "world_size": 2}, {}, "its ranks must all be asked"),
        ({"data_parallel_size": 2}, {}, "an engine of each replica"),
        ({"kv_transfer_config": "to the host"}, {}, "without a KV connector"),
        ({"logprobs_mode": "raw_logits"}, {}, "logprobs_mode='raw_logprobs'"),
        ({"logprobs_mode": "processed_logprobs"}, {"sampling": {"top_k": 5}}, "or say `as_drawn`"),
        ({}, {"as_drawn": True}, "logprobs_mode='processed_logprobs'"),
        ({}, {"sampling": {"temperature": 1.0}}, "requests say the rest"),
        ({}, {"sampling": {"presence_penalty": 1.0}}, "from where it is begun anew"),
    ],
)
def test_an_llm_that_can_not_be_driven_as_the_seam_says_is_refused(
    config: Mapping[str, Any], said: Mapping[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSpec, match=why):
        VllmInside(FakeLLM(**config), **said)


def test_an_llm_that_is_elsewhere_or_asleep_is_refused() -> None:
    elsewhere, asleep = FakeLLM(), FakeLLM()
    elsewhere.llm_engine.model_executor = None
    asleep.sleep(1)
    with pytest.raises(InvalidSpec, match="VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        VllmInside(elsewhere)
    with pytest.raises(InvalidSpec, match="wake it first"):
        VllmInside(asleep)
    with pytest.raises(Refused):
        VllmInside(FakeLLM(), sampling={"min_p": 7})


@MODES
def test_a_probe_is_greedy_and_harms_nobody(ahead: bool) -> None:
    engine = VllmInside(FakeLLM(ahead=ahead, rows=2))
    for n in range(3):
        engine.submit(request(f"r{n}", 20, prompt=(n,)))
    grown(engine, 3)
    assert engine.probe((4, 5), 6) == greedy("base", (4, 5), 6)
    for name, each in finished(engine).items():
        assert each.response.tokens == greedy("base", (int(name[1:]),), 20)
    for prompt, count in (((VOCABULARY,), 2), (PROMPT, 511)):
        with pytest.raises(InvalidSpec):
            engine.probe(prompt, count)


@MODES
@pytest.mark.parametrize("count", [4, 8, 30])
def test_what_nobody_was_told_of_is_of_the_new_weights_and_of_the_next_engine(ahead: bool, count: int) -> None:
    """It was drawn while a probe was answered, and may have been the last."""
    llm = FakeLLM(ahead=ahead)
    engine, other = VllmInside(llm), VllmInside(FakeLLM(), version=1)
    for name in ("stays", "goes"):
        engine.submit(request(name, count))
    engine.probe((4, 5), 4)
    engine.probe((4, 5), 2)
    engine.update(1, weights("new"))
    other.adopt(engine.export(["goes"]))
    (grown_again, *_) = stream(other)
    assert isinstance(grown_again, Grown)
    assert grown_again.first == 0
    assert finished(engine)["stays"].response == Generated(
        greedy("new", PROMPT, count),
        tuple(draw("new", PROMPT + greedy("new", PROMPT, n), None)[1] for n in range(count)),
        (1,) * count,
    )
    require_empty(llm)


@MODES
def test_what_was_drawn_beside_a_probe_is_told_by_the_next_step(ahead: bool) -> None:
    engine = VllmInside(FakeLLM(ahead=ahead))
    for name, count in (("short", 4), ("long", 20)):
        engine.submit(request(name, count))
    grown(engine, 2)
    engine.probe((4, 5), 8)
    engine.probe((4, 5), 2)
    events = engine.step()
    assert [event.id for event in events if isinstance(event, Ended)] == ["short"]
    assert sum(len(event.gained.tokens) for event in events if isinstance(event, Grown)) >= 11
    assert finished(engine)["long"].response.tokens == greedy("base", PROMPT, 20)
    assert engine.gauges().recomputed_tokens == 0


BROKEN: Mapping[str, Callable[[Any], None]] = {
    "not all numbers": lambda choice: choice.logprobs[-1][choice.token_ids[-1]].__dict__.update(logprob=float("nan")),
    "1 tokens came with 0 log-prob": lambda choice: setattr(choice, "logprobs", choice.logprobs[:-1]),
    "ended as 'error'": lambda choice: setattr(choice, "finish_reason", "error"),
    "name it among `stop_tokens`": lambda choice: setattr(choice, "finish_reason", "stop"),
    "the server's own limit": lambda choice: setattr(choice, "finish_reason", "length"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_what_contradicts_itself_fails_and_is_ended(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = FakeLLM()
    engine = VllmInside(llm)
    engine.submit(request())
    told = llm.llm_engine._told

    def breaks(*each: Any) -> Any:
        output = told(*each)
        if len(output.outputs[0].token_ids) == 3:
            BROKEN[why](output.outputs[0])
        return output

    monkeypatch.setattr(llm.llm_engine, "_told", breaks)
    ended = finished(engine)["r"]
    assert ended.reason is FinishReason.FAILED
    assert why in ended.why
    require_empty(llm)
    assert engine.probe(PROMPT, 5) == (-1,) * 5
    require_empty(llm)


@MODES
def test_a_closed_engine_has_ended_what_it_had_and_leaves_the_llm_to_its_owner(ahead: bool) -> None:
    llm = FakeLLM(ahead=ahead)
    engine = VllmInside(llm)
    engine.submit(request())
    grown(engine, 2)
    (ended,) = engine.close()
    assert isinstance(ended, Ended)
    assert (ended.reason, len(ended.response.tokens)) == (FinishReason.CANCELLED, 2)
    assert engine.close() == []
    require_empty(llm)
    for call in (engine.step, engine.export, engine.resume, engine.gauges, lambda: engine.submit(request())):
        with pytest.raises(EngineClosed):
            call()
    assert len(finished(VllmInside(llm), [request()])["r"].response.tokens) == 12


@given(st.integers(0, 2**32), st.integers(0, 120), st.booleans(), st.booleans())
def test_requests_end_once_and_as_if_alone_in_any_order_of_calls(
    seed: int, calls: int, ahead: bool, sleeps: bool
) -> None:
    rng = Random(seed)
    asked = [replace(each, temperature=0.0) for each in some_requests(rng, 12, VOCABULARY)]
    known = alone(lambda: VllmInside(FakeLLM()), asked)
    llms = [FakeLLM(blocks=10, rows=3, ahead=ahead, enable_sleep_mode=sleeps) for _ in range(2)]
    History([VllmInside(llm) for llm in llms], known, rng).play(rng.choices(CALLS, k=calls))
    for llm in llms:
        require_empty(llm)
