"""The same promises as with the fake server, kept by real ones, where there are some (see `real_servers`)."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.http import HttpEngine, ServerFailed, ServerMismatch
from rollmux.runtime.engine.http import whole as whole_module
from rollmux.runtime.engine.requests import FinishReason
from rollmux.runtime.engine.seam import Begun
from tests.runtime.engine.models import forward_logprobs
from tests.runtime.engine_http.real_servers import KINDS, LENGTH, STREAMS, VOCABULARY, RealServer
from tests.runtime.engine_http.rigs import PROMPT, all_ended, eventually, grown, request, run

pytestmark = pytest.mark.slow
of_vllm = pytest.mark.parametrize("real", ["vllm"], indirect=True)  # as over a group, which needs another process here
Weights = Mapping[str, Any] | None
LONG = tuple(range(3, 303))  # over more than one block of its cache


@pytest.fixture(scope="module", params=list(KINDS))
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    kind = KINDS[request.param]
    if not kind.python:
        pytest.skip(f"ROLLMUX_TEST_{request.param.upper()} names none")
    server = kind(tmp_path_factory.mktemp(request.param))
    server.write("a", 0)
    server.write("b", 1)
    server.write("narrow", 2, hidden_size=64)
    server.write("damaged", 3)
    (server.root / "damaged" / "model.safetensors").write_bytes(b"\0" * 1000)
    server.write("lacks", 1)
    weights = load_file(server.root / "b" / "model.safetensors")
    del weights["model.layers.2.self_attn.q_proj.weight"], weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, server.root / "lacks" / "model.safetensors", {"format": "pt"})
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def engine(real: RealServer) -> Iterator[HttpEngine]:
    """With the weights of `a`, whatever others left there."""
    with real.engine() as made:
        take(made, {"path": real.folder("a")})
        yield made


def take(engine: HttpEngine, weights: Weights, begun: Begun = Begun.REFUSE) -> None:
    """New weights under the next version, also where others began to come and did not all come."""
    engine.update(max(engine.version, *TOLD) + 1, weights, begun)
    TOLD.append(engine.version)
    engine.resume()


def fail(engine: HttpEngine, weights: Weights, why: str) -> None:
    TOLD.append(max(engine.version, *TOLD) + 1)
    with pytest.raises(ServerFailed, match=why):
        engine.update(TOLD[-1], weights)
    with pytest.raises(ServerMismatch, match="did not end"):
        engine.resume()


TOLD = [0]  # no two engines use a version


def by_group(folder: str, breaks_after: int = -1) -> Weights:
    return {"update_info": {"folder": folder, "breaks_after": breaks_after}}


def test_responses_are_what_the_model_says_with_its_log_probabilities(real: RealServer, engine: HttpEngine) -> None:
    asked = [request(f"r{n}", 20 + n, prompt=LONG[n : 200 + n]) for n in range(3 * STREAMS)]  # more than run at once
    for each in asked:
        engine.submit(each)
    ended = all_ended(engine)
    for each in asked:
        response = ended[each.id].response
        assert response.tokens == real.says("a", each.prompt, each.max_tokens)
        assert response.logprobs == pytest.approx(forward_logprobs(real.models["a"], each, response), abs=1e-3)
    assert engine.gauges().generated_tokens >= sum(each.max_tokens for each in asked)


def test_a_stop_token_ends_a_response_and_is_its_last(real: RealServer, engine: HttpEngine) -> None:
    whole = real.says("a", LONG, 20)
    stop = whole[9]
    ended = run(engine, request(count=20, prompt=LONG, stop_tokens=(stop,)))
    assert (ended.reason, ended.response.tokens) == (FinishReason.STOP, whole[: whole.index(stop) + 1])


@pytest.mark.parametrize("seed", [0, 3, 2**63 - 1, 2**63, 2**64 - 1])
def test_the_seed_decides_what_is_drawn(engine: HttpEngine, seed: int) -> None:
    for name in ("one", "other"):
        engine.submit(request(name, 30, temperature=1.0, seed=seed))
    engine.submit(request("another", 30, temperature=1.0, seed=seed ^ 2))
    ended = all_ended(engine)
    assert ended["one"].response.tokens == ended["other"].response.tokens != ended["another"].response.tokens


def test_a_response_may_fill_all_that_the_server_has_room_for(real: RealServer, engine: HttpEngine) -> None:
    count = LENGTH - real.dialect.spare - len(LONG)
    assert run(engine, request(count=count, prompt=LONG)).response.tokens == real.says("a", LONG, count)


def test_a_token_that_the_model_does_not_have_is_refused_and_ends_nothing(real: RealServer, engine: HttpEngine) -> None:
    with pytest.raises(InvalidSpec, match=f"tokens below {VOCABULARY}"):
        engine.submit(request(prompt=(5, VOCABULARY)))
    assert run(engine, request(prompt=(VOCABULARY - 1,))).response.tokens == real.says("a", (VOCABULARY - 1,), 12)


def test_a_cancelled_request_is_ended_by_the_server(engine: HttpEngine) -> None:
    engine.submit(request(count=400))
    grown(engine, 5)
    engine.cancel(["r"])
    assert all_ended(engine)["r"].reason is FinishReason.CANCELLED
    assert eventually(lambda: engine.gauges().running == 0)


def test_an_exported_response_goes_on_in_another_engine(real: RealServer, engine: HttpEngine) -> None:
    engine.submit(request(count=60, prompt=LONG))
    grown(engine, 5)
    (taken,) = engine.export()
    assert 5 <= len(taken.response.tokens) < 60
    with real.engine() as other:
        other.adopt([taken])
        assert all_ended(other)["r"].response.tokens == real.says("a", LONG, 60)


def test_a_frozen_response_goes_on_in_its_stream_even_when_it_is_sampled(engine: HttpEngine) -> None:
    whole = run(engine, request("whole", 200, temperature=1.0, seed=5)).response.tokens
    engine.submit(request(count=200, temperature=1.0, seed=5))
    grown(engine, 5)
    engine.suspend(keep=True)
    assert engine.gauges().running == 1
    engine.resume()
    assert all_ended(engine)["r"].response.tokens == whole


@pytest.mark.parametrize("frozen", [False, True])
def test_responses_sleep_and_go_on(real: RealServer, frozen: bool) -> None:
    with real.engine(canary=(5, 6, 7)) as engine:
        take(engine, {"path": real.folder("a")})
        engine.submit(request(count=200, prompt=LONG))
        engine.submit(request("sampled", 200, temperature=1.0))
        for n in range(2 * STREAMS):
            engine.submit(request(f"r{n}", 20, prompt=LONG[n:]))  # some wait in the server's queue
        grown(engine, 20)
        if frozen:
            engine.suspend(keep=True)
        engine.suspend()
        engine.resume()
        ended = all_ended(engine)
    assert ended["r"].response.tokens == real.says("a", LONG, 200)
    assert (ended["sampled"].reason, len(ended["sampled"].response.tokens)) == (FinishReason.LENGTH, 200)
    for n in range(2 * STREAMS):
        assert ended[f"r{n}"].response.tokens == real.says("a", LONG[n:], 20)


def test_new_weights_take_over_between_two_tokens_and_each_says_whose_it_is(
    real: RealServer, engine: HttpEngine
) -> None:
    require_taking_over(real, engine, {"path": real.folder("b")})


@of_vllm
def test_weights_by_group_take_over_between_two_tokens_too(real: RealServer, engine: HttpEngine) -> None:
    require_taking_over(real, engine, by_group(real.folder("b")))


def require_taking_over(real: RealServer, engine: HttpEngine, weights: Weights) -> None:
    before = engine.version
    engine.submit(request(count=200, prompt=LONG))
    grown(engine, 40)
    take(engine, weights, Begun.RECOMPUTE)
    response = all_ended(engine)["r"].response
    split = response.versions.index(engine.version)
    assert response.versions == (before,) * split + (engine.version,) * (200 - split)
    assert response.tokens[:split] == real.says("a", LONG, split)
    assert response.tokens[split:] == real.says("b", LONG + response.tokens[:split], 200 - split)


@pytest.mark.parametrize("name", ["damaged", "narrow", "lacks"])
def test_a_folder_that_can_be_seen_to_be_wrong_is_refused_and_changes_nothing(
    real: RealServer, engine: HttpEngine, name: str
) -> None:
    lacks = r"lacks 2 of the model's 39 weights \(model.layers.1.mlp.down_proj.weight, "
    with pytest.raises(UpdateRefused, match=rf"another model|can't be read|{lacks}"):
        take(engine, {"path": real.folder(name)})
    assert run(engine, request()).response.tokens == real.says("a", PROMPT, 12)


@of_vllm
@pytest.mark.parametrize("name", ["nowhere", "damaged", "narrow"])
def test_weights_that_can_not_be_read_leave_nothing_beneath_the_next(
    real: RealServer, engine: HttpEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unseen:
        unseen.setattr(whole_module, "weights_in", lambda folder: {})
        fail(engine, {"path": real.folder(name)}, "answered 500")
    fail(engine, by_group(real.folder(name)), "answered 500")
    take(engine, {"path": real.folder("b")})
    assert run(engine, request()).response.tokens == real.says("b", PROMPT, 12)


@of_vllm
@pytest.mark.parametrize("tensors", [0, 5, 10, 20, 38])  # 5: one of two that make up a layer, 10: two of three
def test_weights_that_did_not_all_come_leave_nothing_beneath_the_next(
    real: RealServer, engine: HttpEngine, tensors: int
) -> None:
    for then, times in product((by_group(real.folder("a")), {"path": real.folder("a")}), (1, 2)):
        for _ in range(times):
            fail(engine, by_group(real.folder("b"), tensors), "the trainer is gone")
        take(engine, then)
        assert run(engine, request()).response.tokens == real.says("a", PROMPT, 12)
        take(engine, by_group(real.folder("b")))
        assert run(engine, request()).response.tokens == real.says("b", PROMPT, 12)


@of_vllm
def test_an_update_that_somebody_left_is_ended(real: RealServer, engine: HttpEngine) -> None:
    httpx.post(f"{real.url}/start_weight_update", json={}).raise_for_status()
    fail(engine, by_group(real.folder("b")), "already active")
    take(engine, by_group(real.folder("b")))
    assert run(engine, request()).response.tokens == real.says("b", PROMPT, 12)


@of_vllm
def test_a_folder_that_lacks_weights_would_be_taken(real: RealServer) -> None:
    call = {"method": "reload_weights", "kwargs": {"weights_path": real.folder("lacks")}}
    assert httpx.post(f"{real.url}/collective_rpc", json=call, timeout=60.0).is_success


def test_responses_are_preempted_and_a_server_that_was_started_anew_serves_no_other_weights(real: RealServer) -> None:
    small = type(real)(real.root, real.crowded, models=real.models)
    small.start()
    try:
        with small.engine() as engine:
            said = {f"r{n}": real.says("a", LONG[n : 40 + n], 100) for n in range(STREAMS)}
            for n, answer in enumerate(said.values()):
                unsaid = max(set(range(VOCABULARY)) - set(answer))  # of what can't stop SGLang lets in no more than fit
                engine.submit(request(f"r{n}", 100, prompt=LONG[n : 40 + n], stop_tokens=(unsaid,)))
            assert {name: each.response.tokens for name, each in all_ended(engine).items()} == said
            assert engine.gauges().preemptions > 0
            take(engine, {"path": real.folder("b")})
            engine.submit(request(count=300))
            grown(engine, 5)
            small.kill()
            small.start()
            ended_late = all_ended(engine)["r"]
            assert ended_late.reason is FinishReason.FAILED
            assert "version 'default'" in ended_late.why
            take(engine, {"path": real.folder("b")})
            assert run(engine, request()).response.tokens == real.says("b", PROMPT, 12)
    finally:
        small.kill()
