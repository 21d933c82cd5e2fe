"""The `slots` engine computes what the model's own code computes, whatever runs beside."""

import copy
from typing import Any

import pytest
import torch

from rollmux.runtime.engine import GenerationRequest, Limits, projections
from rollmux.runtime.engine.projections import packed_dtype
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.models import finished, forward_logprobs, generated, on_processors, prompt, tiny

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with grouped heads": ("llama", {}),
    "llama with tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama with as many keys as heads, and biases": (
        "llama",
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "llama with one head of keys": ("llama", {"num_key_value_heads": 1}),
    "llama with positions of llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama with linear positions": ("llama", {"rope_parameters": LINEAR}),
    "llama with yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen2 with tied embeddings": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3 with heads wider than the model": ("qwen3", {"head_dim": 16}),
    "qwen3 with tied embeddings": ("qwen3", {"tie_word_embeddings": True}),
}
SMALL = Limits(room_tokens=160, max_running=4, prefill_tokens=9, page_tokens=8)


def requests(temperature: float = 0.0) -> list[GenerationRequest]:
    """Prompts shorter and longer than a page and than a step's budget."""
    return [
        GenerationRequest(f"r{n}", prompt(n, 1 + 7 * n), 6 + 5 * n, temperature=temperature, seed=n) for n in range(5)
    ]


@pytest.mark.parametrize(
    ("packed", "blocked_weights"),
    [(None, 0), (None, 2**62), (False, 0)],
    ids=["blocked where it can be", "copied", "referenced"],
)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_generate_and_logprobs_those_of_a_forward(
    name: str, packed: bool | None, blocked_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "BLOCKED_WEIGHTS", blocked_weights)
    family, changed = MODELS[name]
    model = tiny(family, **changed)
    engine = slots(model, SMALL, packed=packed)
    ends = finished(engine, requests())
    said = set()
    for request in requests():
        response = ends[request.id].response
        assert list(response.tokens) == generated(model, request)
        assert response.logprobs == pytest.approx(forward_logprobs(model, request, response), abs=2e-5)
        said |= set(response.tokens)
    assert len(said) > 4, "a model that says little shows little"


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_prompts_that_are_computed_as_one_do_not_see_each_other(kv_heads: int) -> None:
    """Some are equally long, one is a single token, and of one only the first part fits into the step's budget."""
    model = tiny(num_key_value_heads=kv_heads)
    limits = Limits(room_tokens=512, max_running=8, prefill_tokens=50, page_tokens=8)
    lengths = (5, 9, 1, 5, 9, 5, 30)
    asked = [GenerationRequest(f"r{n}", prompt(n, length), 9, temperature=0.0) for n, length in enumerate(lengths)]
    ends = finished(slots(model, limits), asked)
    for request in asked:
        response = ends[request.id].response
        assert list(response.tokens) == generated(model, request)
        assert response.logprobs == pytest.approx(forward_logprobs(model, request, response), abs=2e-5)


def test_sampled_tokens_have_the_logprobs_of_a_forward_at_temperature_one() -> None:
    model = tiny()
    asked = requests(temperature=0.7)
    ends = finished(slots(model, SMALL), asked)
    for request in asked:
        response = ends[request.id].response
        assert response.logprobs == pytest.approx(forward_logprobs(model, request, response), abs=2e-5)


@pytest.mark.parametrize("packed", [None, False])
def test_autocast_around_an_engine_changes_nothing(packed: bool | None) -> None:
    model, asked = tiny(), requests(temperature=0.7)
    want = finished(slots(model, SMALL, packed=packed), asked)
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        assert finished(slots(model, SMALL, packed=packed), asked) == want


def test_bfloat16_is_as_near_to_single_precision_as_the_models_own_code() -> None:
    model, exact = tiny(dtype=torch.bfloat16), tiny()
    for request in requests(temperature=1.0)[1:]:
        response = finished(slots(model, SMALL), [request])[request.id].response
        want = torch.tensor(forward_logprobs(exact, request, response))
        own = torch.tensor(forward_logprobs(model, request, response))
        ours = torch.tensor(response.logprobs)
        assert (ours - want).abs().mean() < 2 * (own - want).abs().mean() + 0.02


@on_processors
def test_without_products_in_bfloat16_its_weights_are_computed_with_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "has_bfloat16", lambda: False)
    model, device = tiny("qwen2", dtype=torch.bfloat16), torch.device("cpu")
    if packed_dtype(device, torch.bfloat16) is None:
        pytest.skip("oneDNN is not there")
    weights_nbytes = sum(weight.nbytes for weight in model.parameters())
    engines = {packed: slots(model, SMALL, packed=packed) for packed in (None, False)}
    ends = finished(engines[None], requests(temperature=1.0))
    single = copy.deepcopy(model).float()
    for request in requests(temperature=1.0):
        response = ends[request.id].response
        assert response.logprobs == pytest.approx(forward_logprobs(single, request, response), abs=2e-5)
    assert engines[None].gauges().nbytes > engines[False].gauges().nbytes + weights_nbytes  # keys and values, too
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_stop_token_ends_a_response_and_is_its_last_token() -> None:
    model = tiny()
    free = finished(slots(model, SMALL), [GenerationRequest("r", prompt(1, 5), 30, temperature=0)])["r"]
    stop = free.response.tokens[7]
    request = GenerationRequest("r", prompt(1, 5), 30, temperature=0, stop_tokens=(stop,))
    ended = finished(slots(model, SMALL), [request])["r"]
    until = free.response.tokens.index(stop) + 1
    assert ended.response.tokens == free.response.tokens[:until]
    assert ended.reason.value == "stop"


@on_processors
@pytest.mark.parametrize("blocked_weights", [0, 2**62], ids=["blocked", "copied"])
def test_all_ways_to_multiply_agree(blocked_weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed_dtype(torch.device("cpu"), torch.float32) is None:
        pytest.skip("oneDNN is not there")
    monkeypatch.setattr(projections, "BLOCKED_WEIGHTS", blocked_weights)
    model = tiny("qwen2")
    for packed, referenced in zip(
        *(finished(slots(model, SMALL, packed=way), requests()).values() for way in (True, False)), strict=True
    ):
        assert packed.response.tokens == referenced.response.tokens
        assert packed.response.logprobs == pytest.approx(referenced.response.logprobs, abs=1e-5)
