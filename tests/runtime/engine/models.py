"""Tiny models with random weights, large enough that their answers differ, and plain ways to ask them.

They are on the processor, or where ROLLMUX_TEST_DEVICE says: with `cuda` the same tests try the engine on a GPU.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rollmux.runtime.engine import Ended, Engine, Generated, GenerationRequest, stream

VOCABULARY = 61
DEVICE = torch.device(os.environ.get("ROLLMUX_TEST_DEVICE", "cpu"))
on_processors = pytest.mark.skipif(DEVICE.type != "cpu", reason="how processors do it")
KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def tiny(family: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 0, **changed: Any) -> Any:
    """A model of two layers whose weights are large, so that it does not repeat itself at once."""
    torch.manual_seed(seed)
    kind, config = KINDS[family]
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    model = kind(config(**shape | changed)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.15)
    return model.to(DEVICE, dtype)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def finished(engine: Engine, requests: Iterable[GenerationRequest] = ()) -> Mapping[str, Ended]:
    """Runs these, and all that is there, to the end."""
    for request in requests:
        engine.submit(request)
    return {event.id: event for event in stream(engine) if isinstance(event, Ended)}


def generated(model: Any, request: GenerationRequest) -> list[int]:
    """What `generate` says greedily."""
    ids = torch.tensor([request.prompt], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.max_tokens, do_sample=False, pad_token_id=0
    )
    tokens: list[int] = out[0, len(request.prompt) :].tolist()
    return tokens


def forward_logprobs(model: Any, request: GenerationRequest, response: Generated) -> list[float]:
    """The log-probabilities of a response, from one forward over all of it."""
    with torch.no_grad():
        logits = model(torch.tensor([request.prompt + response.tokens], device=model.device)).logits[0]
    table = torch.log_softmax(logits.float(), -1)
    start = len(request.prompt) - 1
    return [table[start + place, token].item() for place, token in enumerate(response.tokens)]
