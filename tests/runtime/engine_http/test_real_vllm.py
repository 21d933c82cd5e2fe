"""The same promises as with the fake server, kept by a real vLLM: run with ROLLMUX_TEST_VLLM (see `real_vllm`)."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.http import HttpEngine, ServerFailed, ServerMismatch
from rollmux.runtime.engine.http import whole as whole_module
from rollmux.runtime.engine.requests import FinishReason
from rollmux.runtime.engine.seam import Begun
from tests.runtime.engine.models import forward_logprobs
from tests.runtime.engine_http.real_vllm import LENGTH, PYTHON, STREAMS, RealVllm
from tests.runtime.engine_http.rigs import PROMPT, all_ended, eventually, grown, request, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="ROLLMUX_TEST_VLLM names no vLLM")]
Weights = Mapping[str, Any] | None
LONG = tuple(range(3, 303))  # over more than one block of its cache


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    server = RealVllm(tmp_path_factory.mktemp("vllm"))
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
def engine(vllm: RealVllm) -> Iterator[HttpEngine]:
    """With the weights of `a`, whatever others left there."""
    with vllm.engine() as made:
        take(made, {"path": vllm.folder("a")})
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


def test_responses_are_what_the_model_says_with_its_log_probabilities(vllm: RealVllm, engine: HttpEngine) -> None:
    asked = [request(f"r{n}", 20 + n, prompt=LONG[n : 200 + n]) for n in range(3 * STREAMS)]  # more than run at once
    for each in asked:
        engine.submit(each)
    ended = all_ended(engine)
    for each in asked:
        response = ended[each.id].response
        assert response.tokens == vllm.says("a", each.prompt, each.max_tokens)
        assert response.logprobs == pytest.approx(forward_logprobs(vllm.models["a"], each, response), abs=1e-3)
    assert engine.gauges().generated_tokens >= sum(each.max_tokens for each in asked)


def test_a_stop_token_ends_a_response_and_is_its_last(vllm: RealVllm, engine: HttpEngine) -> None:
    whole = vllm.says("a", LONG, 20)
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


def test_a_response_may_fill_all_that_the_server_has_room_for(vllm: RealVllm, engine: HttpEngine) -> None:
    assert run(engine, request(count=LENGTH - 300, prompt=LONG)).response.tokens == vllm.says("a", LONG, LENGTH - 300)


def test_a_cancelled_request_is_ended_by_the_server(engine: HttpEngine) -> None:
    engine.submit(request(count=400))
    grown(engine, 5)
    engine.cancel(["r"])
    assert all_ended(engine)["r"].reason is FinishReason.CANCELLED
    assert eventually(lambda: engine.gauges().running == 0)


def test_an_exported_response_goes_on_in_another_engine(vllm: RealVllm, engine: HttpEngine) -> None:
    engine.submit(request(count=60, prompt=LONG))
    grown(engine, 5)
    (taken,) = engine.export()
    assert 5 <= len(taken.response.tokens) < 60
    with vllm.engine() as other:
        other.adopt([taken])
        assert all_ended(other)["r"].response.tokens == vllm.says("a", LONG, 60)


def test_a_frozen_response_goes_on_in_its_stream_even_when_it_is_sampled(engine: HttpEngine) -> None:
    whole = run(engine, request("whole", 200, temperature=1.0, seed=5)).response.tokens
    engine.submit(request(count=200, temperature=1.0, seed=5))
    grown(engine, 5)
    engine.suspend(keep=True)
    assert engine.gauges().running == 1
    engine.resume()
    assert all_ended(engine)["r"].response.tokens == whole


@pytest.mark.parametrize("frozen", [False, True])
def test_responses_sleep_and_go_on(vllm: RealVllm, frozen: bool) -> None:
    with vllm.engine(canary=(5, 6, 7)) as engine:
        take(engine, {"path": vllm.folder("a")})
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
    assert ended["r"].response.tokens == vllm.says("a", LONG, 200)
    assert (ended["sampled"].reason, len(ended["sampled"].response.tokens)) == (FinishReason.LENGTH, 200)
    for n in range(2 * STREAMS):
        assert ended[f"r{n}"].response.tokens == vllm.says("a", LONG[n:], 20)


@pytest.mark.parametrize("by", ["folder", "group"])
def test_new_weights_take_over_between_two_tokens_and_each_says_whose_it_is(
    vllm: RealVllm, engine: HttpEngine, by: str
) -> None:
    before = engine.version
    engine.submit(request(count=200, prompt=LONG))
    grown(engine, 40)
    folder = vllm.folder("b")
    take(engine, {"path": folder} if by == "folder" else by_group(folder), Begun.RECOMPUTE)
    response = all_ended(engine)["r"].response
    split = response.versions.index(engine.version)
    assert response.versions == (before,) * split + (engine.version,) * (200 - split)
    assert response.tokens[:split] == vllm.says("a", LONG, split)
    assert response.tokens[split:] == vllm.says("b", LONG + response.tokens[:split], 200 - split)


@pytest.mark.parametrize("name", ["nowhere", "damaged", "narrow"])
def test_weights_that_can_not_be_read_leave_nothing_beneath_the_next(
    vllm: RealVllm, engine: HttpEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "nowhere":
        fail(engine, {"path": vllm.folder(name)}, "answered 500")
    else:
        with pytest.raises(UpdateRefused, match=r"another model|can't be read"):
            take(engine, {"path": vllm.folder(name)})
    with monkeypatch.context() as unseen:
        unseen.setattr(whole_module, "weights_in", lambda folder: {})
        fail(engine, {"path": vllm.folder(name)}, "answered 500")
    fail(engine, by_group(vllm.folder(name)), "answered 500")
    take(engine, {"path": vllm.folder("b")})
    assert run(engine, request()).response.tokens == vllm.says("b", PROMPT, 12)


@pytest.mark.parametrize("tensors", [0, 5, 10, 20, 38])  # 5: one of two that make up a layer, 10: two of three
def test_weights_that_did_not_all_come_leave_nothing_beneath_the_next(
    vllm: RealVllm, engine: HttpEngine, tensors: int
) -> None:
    for then, times in product((by_group(vllm.folder("a")), {"path": vllm.folder("a")}), (1, 2)):
        for _ in range(times):
            fail(engine, by_group(vllm.folder("b"), tensors), "the trainer is gone")
        take(engine, then)
        assert run(engine, request()).response.tokens == vllm.says("a", PROMPT, 12)
        take(engine, by_group(vllm.folder("b")))
        assert run(engine, request()).response.tokens == vllm.says("b", PROMPT, 12)


def test_an_update_that_somebody_left_is_ended(vllm: RealVllm, engine: HttpEngine) -> None:
    httpx.post(f"{vllm.url}/start_weight_update", json={}).raise_for_status()
    fail(engine, by_group(vllm.folder("b")), "already active")
    take(engine, by_group(vllm.folder("b")))
    assert run(engine, request()).response.tokens == vllm.says("b", PROMPT, 12)


def test_a_folder_that_lacks_weights_is_refused_though_the_server_would_take_it(
    vllm: RealVllm, engine: HttpEngine
) -> None:
    with pytest.raises(
        UpdateRefused, match=r"lacks 2 of the model's 39 weights \(model.layers.1.mlp.down_proj.weight, "
    ):
        take(engine, {"path": vllm.folder("lacks")})
    assert run(engine, request()).response.tokens == vllm.says("a", PROMPT, 12)
    call = {"method": "reload_weights", "kwargs": {"weights_path": vllm.folder("lacks")}}
    assert httpx.post(f"{vllm.url}/collective_rpc", json=call, timeout=60.0).is_success


def test_responses_are_preempted_and_a_server_that_was_started_anew_serves_no_other_weights(vllm: RealVllm) -> None:
    small = RealVllm(vllm.root, ("--block-size", "32", "--num-gpu-blocks-override", "17"), models=vllm.models)
    small.start()
    try:
        with small.engine() as engine:
            for n in range(STREAMS):
                engine.submit(request(f"r{n}", 100, prompt=LONG[n : 40 + n]))
            ended = all_ended(engine)
            for n in range(STREAMS):
                assert ended[f"r{n}"].response.tokens == vllm.says("a", LONG[n : 40 + n], 100)
            assert engine.gauges().preemptions > 0
            take(engine, {"path": vllm.folder("b")})
            engine.submit(request(count=300))
            grown(engine, 5)
            small.kill()
            small.start()
            ended_late = all_ended(engine)["r"]
            assert (ended_late.reason, "version 'default'" in ended_late.why) == (FinishReason.FAILED, True)
            take(engine, {"path": vllm.folder("b")})
            assert run(engine, request()).response.tokens == vllm.says("b", PROMPT, 12)
    finally:
        small.kill()
