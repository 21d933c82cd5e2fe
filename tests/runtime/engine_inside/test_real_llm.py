"""The same promises as with the fake one, kept by a real vLLM in its own process, where there is one (`real_llm`)."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    GenerationRequest,
    Grown,
    Limits,
    UpdateRefused,
)
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.histories import CALLS, History, alone, some_requests
from tests.runtime.engine.models import finished, forward_logprobs
from tests.runtime.engine_http.real_servers import LENGTH, STREAMS, VOCABULARY, RealVllm
from tests.runtime.engine_inside.real_llm import PYTHON, Inside, Owner, real_llm

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="ROLLMUX_TEST_VLLM names none")]
PROMPT = (11, 12, 13)
LONG = tuple(range(3, 303))  # over more than one block of its cache
ROOM = Limits(room_tokens=8192, max_length=LENGTH)


@dataclass(frozen=True)
class Models:
    """In folders, and here."""

    of: RealVllm

    def folder(self, name: str) -> str:
        return self.of.folder(name)

    def says(self, name: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        return self.of.says(name, prompt, count)

    def model(self, name: str) -> Any:
        return self.of.models[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    written = RealVllm(tmp_path_factory.mktemp("inside"))
    written.write("a", 0)
    written.write("b", 1)
    written.write("narrow", 2, hidden_size=64)
    return Models(written)


@pytest.fixture(scope="module")
def owner(models: Models) -> Iterator[Owner]:
    config = {"max_model_len": LENGTH, "max_num_seqs": STREAMS, "disable_log_stats": False}
    with real_llm(models.folder("a"), config) as made:
        yield made


@pytest.fixture
def engine(owner: Owner, models: Models) -> Iterator[Inside]:
    """With the weights of `a`, whatever others left there; nothing is left in the LLM by it."""
    made = owner.engine()
    owner.ask("update", 1, models.folder("a"))
    yield made
    made.close()
    assert not owner.ask("has_unfinished")
    if not owner.ask("is_sleeping"):
        assert len(owner.ask("generates", PROMPT, 3)) == 3


def request(name: str = "r", count: int = 12, **said: Any) -> GenerationRequest:
    return GenerationRequest(name, said.pop("prompt", PROMPT), count, **({"temperature": 0.0} | said))


def grown(engine: Engine, count: int) -> list[Event]:
    events: list[Event] = []
    while sum(len(event.gained.tokens) for event in events if isinstance(event, Grown)) < count:
        events += engine.step()
    return events


def test_responses_are_what_the_model_says_with_its_log_probabilities(models: Models, engine: Inside) -> None:
    asked = [request(f"r{n}", 20 + n, prompt=LONG[n : 200 + n]) for n in range(3 * STREAMS)]  # more than run at once
    asked.append(request("sampled", 30, temperature=0.7, top_p=0.9, seed=3))
    ended = finished(engine, asked)
    for each in asked:
        response = ended[each.id].response
        assert response.logprobs == pytest.approx(forward_logprobs(models.model("a"), each, response), abs=1e-3)
        if not each.temperature:
            assert response.tokens == models.says("a", each.prompt, each.max_tokens)
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.held_tokens) == (0, 0, 0)
    assert gauges.nbytes > 0
    assert engine.probe(LONG, 9) == models.says("a", LONG, 9)


def test_a_stop_token_ends_a_response_and_is_its_last(models: Models, engine: Inside) -> None:
    whole = models.says("a", LONG, 20)
    ended = finished(engine, [request(count=20, prompt=LONG, stop_tokens=(whole[9],))])["r"]
    assert (ended.reason, ended.response.tokens) == (FinishReason.STOP, whole[: whole.index(whole[9]) + 1])


@pytest.mark.parametrize("seed", [0, 3, 2**63 - 1, 2**63, 2**64 - 1])
def test_the_seed_decides_what_is_drawn(engine: Inside, seed: int) -> None:
    asked = [request(name, 30, temperature=1.0, seed=seed) for name in ("one", "other")]
    ended = finished(engine, [*asked, request("another", 30, temperature=1.0, seed=seed ^ 2)])
    assert ended["one"].response.tokens == ended["other"].response.tokens != ended["another"].response.tokens


def test_what_the_owner_wants_of_each_draw_is_heeded(models: Models, owner: Owner, engine: Inside) -> None:
    greedy = owner.engine(sampling={"top_k": 1})
    drawn = finished(greedy, [request(temperature=1.0)])["r"].response
    assert drawn.tokens == models.says("a", PROMPT, 12)


def test_a_response_may_fill_all_that_there_is_room_for(models: Models, engine: Inside) -> None:
    count = LENGTH - len(LONG)
    assert finished(engine, [request(count=count, prompt=LONG)])["r"].response.tokens == models.says("a", LONG, count)
    for wrong in (request(count=count + 1, prompt=LONG), request(prompt=(5, VOCABULARY)), request(temperature=3.0)):
        with pytest.raises(InvalidSpec):
            engine.submit(wrong)


def test_a_cancelled_request_ends_with_what_it_has(models: Models, owner: Owner, engine: Inside) -> None:
    engine.submit(request(count=400))
    had = len(grown(engine, 5))
    engine.cancel(["r"])
    assert not owner.ask("has_unfinished")
    (ended,) = engine.step()
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.response.tokens) == (FinishReason.CANCELLED, models.says("a", PROMPT, had))


def test_responses_go_to_and_fro_between_engines_of_other_kinds(models: Models, engine: Inside) -> None:
    here = slots(models.model("a"), ROOM, version=1)
    engines: tuple[Engine, Engine] = (engine, here)
    rng, moves = Random(5), 0
    asked = [request(f"r{n}", 40 + n, prompt=LONG[n : 3 * n + 2]) for n in range(2 * STREAMS)]
    for one in asked:
        rng.choice(engines).submit(one)
    ended: dict[str, Ended] = {}
    while any(each.unfinished for each in engines):
        for each in engines:
            ended |= {event.id: event for event in each.step() if isinstance(event, Ended)}
        if rng.random() < 0.3:
            giver, taker = rng.sample(engines, 2)
            taken = giver.export([one.id for one in asked if rng.random() < 0.3])
            taker.adopt(taken)
            moves += len(taken)
    here.close()
    assert moves > 20
    for one in asked:
        assert ended[one.id].response.tokens == models.says("a", one.prompt, one.max_tokens)


@pytest.mark.parametrize("seed", range(3))
def test_requests_end_once_and_as_if_alone_in_any_order_of_calls(models: Models, engine: Inside, seed: int) -> None:
    rng, model = Random(seed), models.model("a")
    asked = [replace(each, temperature=0.0) for each in some_requests(rng, 12, VOCABULARY)]
    known = alone(lambda: slots(model, ROOM, version=1), asked)
    here = slots(model, ROOM, version=1)
    History((engine, here), known, rng, within=1e-3).play(rng.choices(CALLS, k=150))
    here.close()


def test_a_frozen_response_goes_on_with_its_draws_though_its_owner_generates(
    models: Models, owner: Owner, engine: Inside
) -> None:
    whole = finished(engine, [request("whole", 200, temperature=1.0, seed=5)])["whole"].response.tokens
    engine.submit(request(count=200, temperature=1.0, seed=5))
    grown(engine, 5)
    engine.suspend(keep=True)
    assert engine.step() == []
    assert engine.gauges().running == 1
    engine.resume()
    assert finished(engine)["r"].response.tokens == whole
    engine.submit(request(count=200))
    grown(engine, 5)
    engine.suspend(keep=True)
    with pytest.raises(RuntimeError):
        owner.ask("generates", PROMPT, 3)  # it is told of ours too, to their end
    engine.resume()
    assert finished(engine)["r"].response.tokens == models.says("a", PROMPT, 200)


@pytest.mark.parametrize("frozen", [False, True])
def test_responses_sleep_and_go_on(models: Models, owner: Owner, engine: Inside, frozen: bool) -> None:
    asked = [request(f"r{n}", 20, prompt=LONG[n:]) for n in range(2 * STREAMS)]  # some wait
    for each in (request(count=200, prompt=LONG), request("sampled", 200, temperature=1.0), *asked):
        engine.submit(each)
    grown(engine, 20)
    if frozen:
        engine.suspend(keep=True)
    engine.suspend()
    assert owner.ask("is_sleeping")
    assert not owner.ask("has_unfinished")
    assert engine.gauges().nbytes == 0
    engine.resume()
    ended = finished(engine)
    assert ended["r"].response.tokens == models.says("a", LONG, 200)
    assert (ended["sampled"].reason, len(ended["sampled"].response.tokens)) == (FinishReason.LENGTH, 200)
    for each in asked:
        assert ended[each.id].response.tokens == models.says("a", each.prompt, 20)


@pytest.mark.parametrize("asleep", [False, True])
def test_new_weights_take_over_between_two_tokens_and_each_says_whose_it_is(
    models: Models, owner: Owner, engine: Inside, asleep: bool
) -> None:
    engine.submit(request(count=200, prompt=LONG))
    grown(engine, 40)
    if asleep:
        engine.suspend()
    with pytest.raises(UpdateRefused, match="'r' among them"):
        owner.ask("update", 2, models.folder("b"))
    owner.ask("update", 2, models.folder("b"), Begun.RECOMPUTE)
    engine.resume()
    require_taken_over(models, finished(engine, [request("again", prompt=LONG)]))


def require_taken_over(models: Models, ended: Any) -> None:
    response = ended["r"].response
    split = response.versions.index(2)
    assert response.versions == (1,) * split + (2,) * (200 - split)
    assert response.tokens[:split] == models.says("a", LONG, split)
    assert response.tokens[split:] == models.says("b", LONG + response.tokens[:split], 200 - split)
    assert ended["again"].response.tokens == models.says("b", LONG, 12)


@pytest.mark.parametrize("tensors", [0, 5, 10, 20, 38])  # 5: one of two that make up a layer, 10: two of three
def test_weights_that_did_not_all_come_leave_nothing_beneath_the_next(
    models: Models, owner: Owner, engine: Inside, tensors: int
) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="told to break off"):
            owner.ask("update", 2, models.folder("b"), breaks_after=tensors)
    with pytest.raises(InvariantViolated, match="did not end"):
        finished(engine, [request()])
    with pytest.raises(UpdateRefused, match="give them all"):
        engine.update(2)
    owner.ask("update", 2, models.folder("b"))
    assert finished(engine)["r"].response.tokens == models.says("b", PROMPT, 12)
    with pytest.raises(UpdateRefused, match="other shape"):
        owner.ask("update", 3, models.folder("narrow"))
    assert finished(engine, [request()])["r"].response.tokens == models.says("b", PROMPT, 12)


def test_a_step_that_fails_loses_nothing(models: Models, owner: Owner, engine: Inside) -> None:
    asked = [request(f"r{n}", 40, prompt=LONG[n:]) for n in range(2 * STREAMS)]
    for each in asked:
        engine.submit(each)
    grown(engine, 50)
    owner.ask("fail", 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="told to fail"):
            engine.step()
        assert not owner.ask("has_unfinished")
    ended = finished(engine)
    for each in asked:
        assert ended[each.id].response.tokens == models.says("a", each.prompt, 40)


def test_responses_are_preempted_and_say_the_same(models: Models) -> None:
    config = {
        "max_model_len": LENGTH,
        "max_num_seqs": STREAMS,
        "block_size": 32,
        "num_gpu_blocks_override": 17,
        "disable_log_stats": False,
    }
    with real_llm(models.folder("a"), config, sleeps=False) as owner:
        engine = owner.engine()
        asked = [request(f"r{n}", 100, prompt=LONG[n : 40 + n]) for n in range(STREAMS)]
        asked.append(request("sampled", 100, temperature=1.0, seed=4))
        ended = finished(engine, asked)
        assert engine.gauges().preemptions > 0
        for each in asked[:-1]:
            assert ended[each.id].response.tokens == models.says("a", each.prompt, 100)
        alone = finished(engine, asked[-1:])["sampled"]
        assert ended["sampled"].response.tokens == alone.response.tokens
        assert not owner.ask("has_unfinished")


def test_an_llm_as_trl_makes_it_takes_weights_that_are_written_in_place(models: Models) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    config = {
        "tensor_parallel_size": 1, "max_model_len": LENGTH, "max_num_seqs": STREAMS, "model_impl": "auto",
        "distributed_executor_backend": "external_launcher", "seed": 0, "max_num_batched_tokens": 4096,
        "logprobs_mode": "processed_logprobs", "quantization": None, "trust_remote_code": False,
    }  # fmt: skip
    with real_llm(models.folder("a"), config, packed=False, sleeps=False, environment=ranks) as owner:
        engine = owner.engine(version=1, as_drawn=True)
        warm = request("warm", 30, temperature=0.8, seed=9)
        ended = finished(engine, [warm, request("greedy")])
        logits = models.model("a")(torch.tensor([PROMPT + ended["warm"].response.tokens])).logits[0, len(PROMPT) - 1 :]
        drawn_from = torch.log_softmax(logits.detach() / 0.8, -1)
        for place, (token, logprob) in enumerate(
            zip(ended["warm"].response.tokens, ended["warm"].response.logprobs, strict=True)
        ):
            assert logprob == pytest.approx(drawn_from[place, token].item(), abs=1e-3)
        assert ended["greedy"].response.tokens == models.says("a", PROMPT, 12)
        engine.submit(request(count=200, prompt=LONG))
        grown(engine, 40)
        owner.ask("write_in_place", models.folder("b"))
        engine.update(2, begun=Begun.RECOMPUTE)
        require_taken_over(models, finished(engine, [request("again", prompt=LONG)]))
        owner.ask("update", 3, models.folder("a"))
        assert finished(engine, [request()])["r"].response.tokens == models.says("a", PROMPT, 12)
        owner.ask("write_in_place", models.folder("b"))
        engine.update(4)
        assert finished(engine, [request()])["r"].response.tokens == models.says("b", PROMPT, 12)
        engine.close()
        assert not owner.ask("has_unfinished")
        assert owner.ask("generates", PROMPT, 12) == models.says("b", PROMPT, 12)
