"""What responses score that share the row of their prompt, by models of several families."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rollmux.trainer.sample import Sample
from rollmux.trainer.update import GradientSum, Objective, UntrainableModel
from rollmux.trainer.update.scorer import Scorer
from tests.trainer.update.naive import furthest, gradients, sharing

SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
GPT2_SHAPE: dict[str, Any] = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}


def made(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    makes: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | more)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE | more)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE | {"head_dim": 8} | more)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE | more)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2_SHAPE | more)),
    }
    return makes[name]().eval()  # GPT-2 drops out while it trains


def drawn(prompt: int, *lengths: int, seed: int = 0) -> list[Sample]:
    """Of one prompt."""
    source = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 50, (count,), generator=source).tolist())

    asked = tokens(prompt)
    return [
        Sample(asked, tokens(length), (0.0,) * length, (0,) * length, float(place), str(seed))
        for place, length in enumerate(lengths)
    ]


GROUPS = [drawn(9, 5, 1, 12), drawn(20, 2, 3, seed=1), drawn(1, 4, 4, seed=2), drawn(7, 6, seed=3)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def test_responses_that_share_a_row_score_what_they_score_alone(name: str, attention: str) -> None:
    model = made(name, sliding_window=None) if name == "mistral" else made(name)
    model.set_attn_implementation(attention)
    scorer = Scorer(model)
    assert scorer.pairs_per_token > 0
    alone = [[sample] for group in GROUPS for sample in group]
    together, apart = scorer(GROUPS), scorer(alone)
    torch.testing.assert_close(together.now, apart.now, rtol=1e-4, atol=1e-5)
    assert torch.equal(together.owner, apart.owner)
    assert torch.equal(together.lengths, apart.lengths)


def test_rows_that_are_longer_than_a_sample_need_no_more_places_than_it() -> None:
    """What pads the shorter row stands as far behind as the longer row is long."""
    groups = [drawn(30, 8, 9, 10), drawn(30, 5, 6, seed=1)]
    scorer = Scorer(made("gpt2", n_positions=40))
    apart = scorer([[sample] for group in groups for sample in group])
    torch.testing.assert_close(scorer(groups).now, apart.now, rtol=1e-4, atol=1e-5)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}


@pytest.mark.parametrize("rope", [{"rope_type": "dynamic", "factor": 4.0}, LONGROPE])
def test_no_sample_is_so_long_that_its_positions_change_what_others_score(rope: dict[str, Any]) -> None:
    rope = {"rope_theta": 10000.0, "original_max_position_embeddings": 32, **rope}
    places = 128 if rope["rope_type"] == "longrope" else 32
    scorer = Scorer(made("llama", rope_parameters=rope, max_position_embeddings=places))
    short, most, longer = drawn(5, 6), drawn(20, 13, seed=1), drawn(20, 14, seed=2)
    torch.testing.assert_close(scorer([short, most]).now[:6], scorer([short]).now, rtol=1e-4, atol=1e-5)
    with pytest.raises(UntrainableModel, match=r"beyond 32 .* set rollout\.max_length to 32"):
        scorer([short, longer])


def test_a_model_that_caps_its_logits_is_refused_though_none_is_large_yet() -> None:
    config = Gemma2Config(**SHAPE | {"head_dim": 8}, final_logit_softcapping=30.0)
    with pytest.raises(UntrainableModel, match="changes its logits after its head"):
        Scorer(Gemma2ForCausalLM(config).eval())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_share_rows_too(dtype: torch.dtype) -> None:
    assert Scorer(made("llama", hidden_size=64, num_hidden_layers=8).to(dtype)).pairs_per_token > 0


def update(name: str, groups: Sequence[Sequence[Sample]], **more: Any) -> list[torch.Tensor]:
    model = made(name, **more).to(torch.float64)
    whole = GradientSum(model, Objective.reinforce())
    whole.add([sample for group in groups for sample in group])
    whole.finish()
    return gradients(model)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_their_gradients_are_those_of_samples_alone(name: str) -> None:
    apart = update(name, GROUPS)
    with sharing():
        assert furthest(update(name, GROUPS), apart) < 1e-5  # their norms are in single precision


def test_a_long_prompt_is_computed_once() -> None:
    model, seen = made("llama"), list[int]()
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    whole = GradientSum(model, Objective.reinforce())
    seen.clear()  # of the proof that it can share
    whole.add(drawn(100, 4, 4, 4, 4))
    whole.finish()
    assert seen == [100 + 4 * 3]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mistral", {"sliding_window": 4}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ],
)
def test_attention_of_another_form_shares_no_row(name: str, more: dict[str, Any]) -> None:
    assert Scorer(made(name, **more)).pairs_per_token == 0


def test_a_model_that_takes_no_such_mask_shares_no_row() -> None:
    """Or takes no notice of it."""
    for refused in (TypeError, None):
        model = made("llama")
        forward = model.model.forward

        def without(refused: Any = refused, forward: Any = forward, **inputs: Any) -> Any:
            if refused is not None and inputs.get("attention_mask") is not None:
                raise refused("no such thing")
            return forward(**inputs | {"attention_mask": None})

        model.model.forward = without
        assert Scorer(model).pairs_per_token == 0
