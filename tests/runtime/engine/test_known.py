"""A model that would not be computed exactly is refused, and told why; what changes nothing is let through."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from rollmux.runtime.engine import GenerationRequest, Limits, UnsupportedModel
from rollmux.runtime.engine.slots import slots
from tests.runtime.engine.models import finished, generated, prompt, tiny

SMALL = Limits(room_tokens=160, max_running=4, page_tokens=8)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_a_model_that_would_not_be_exact_is_refused(changed: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        slots(tiny(**changed), SMALL)


def test_a_window_and_another_family_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="sliding"):
        slots(tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1), SMALL)
    model = tiny()
    model.config.model_type = "mamba"
    with pytest.raises(UnsupportedModel, match="mamba"):
        slots(model, SMALL)


def test_an_adapter_in_place_of_a_matrix_is_refused() -> None:
    model = tiny()
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)
    with pytest.raises(UnsupportedModel, match="Sequential"):
        slots(model, SMALL)


def test_parameters_of_two_types_are_refused() -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1))  # fmt: skip
    model.lm_head.to(torch.bfloat16)
    with pytest.raises(UnsupportedModel, match="bfloat16"):
        slots(model, SMALL)


class LoraEmbedding(nn.Module):
    """As an adapter's: beside the embedding, with its weight."""

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self.base_layer = base

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Any:
        return self.base_layer(x) * 3


class ScaledEmbedding(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 5


class ShiftedNorm(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, (x.shape[-1],), 1 + self.weight, self.variance_epsilon)


def adapted(model: Any) -> None:
    model.model.embed_tokens = LoraEmbedding(model.model.embed_tokens)


def scaled(model: Any) -> None:
    plain = model.model.embed_tokens
    model.model.embed_tokens = ScaledEmbedding(plain.num_embeddings, plain.embedding_dim, _weight=plain.weight)


def shifted(model: Any) -> None:
    model.model.norm = ShiftedNorm(model.model.norm)


def bounded(model: Any) -> None:
    model.model.embed_tokens.max_norm = 0.3


def steered(model: Any) -> None:
    model.model.layers[1].register_forward_hook(lambda module, given, made: made + 0.5)


def steered_before(model: Any) -> None:
    model.register_forward_pre_hook(lambda module, given: given)


def patched(model: Any) -> None:
    model.model.layers[1].mlp.forward = lambda x: x


def pruned(model: Any) -> None:
    prune.l1_unstructured(model.model.layers[1].mlp.up_proj, "weight", 0.3)  # type: ignore[no-untyped-call]


def normed(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model.model.layers[1].mlp.up_proj)


def unparametrised(model: Any) -> None:
    weight = model.lm_head.weight.detach()
    del model.lm_head.weight
    model.lm_head.weight = weight


def seeing_both_ways(model: Any) -> None:
    model.config.is_causal = False


def attending_both_ways(model: Any) -> None:
    model.model.layers[1].self_attn.is_causal = False


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (adapted, r"`model\.embed_tokens` is .*LoraEmbedding.*merge adapters"),
        (scaled, "ScaledEmbedding"),
        (shifted, r"`model\.norm` is .*ShiftedNorm"),
        (bounded, "max_norm"),
        (steered, r"`model\.layers\.1` has hooks.*`remove\(\)`"),
        (steered_before, "`LlamaForCausalLM` has hooks"),
        (patched, r"`model\.layers\.1\.mlp` was given a `forward`"),
        (pruned, r"`model\.layers\.1\.mlp\.up_proj` has hooks.*`prune\.remove`"),
        (normed, r"`model\.layers\.1\.mlp\.up_proj` is .*Parametrized"),
        (unparametrised, "the weight of `lm_head` is computed"),
        (seeing_both_ways, "causal"),
        (attending_both_ways, "causal"),
    ],
)
def test_what_changes_a_parts_output_is_refused_by_name(change: Callable[[Any], None], named: str) -> None:
    model = tiny()
    change(model)
    with pytest.raises(UnsupportedModel, match=named):
        slots(model, SMALL)


def with_gradient_checkpointing(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the name, which was another before
        model.gradient_checkpointing_enable()
    return model


def having_told_hidden_states(model: Any) -> Any:
    model(torch.tensor([[1]], device=model.device), output_hidden_states=True)
    return model


def as_accelerate_prepares_it(model: Any) -> Any:
    model.forward = model.forward
    return model


def compiled(model: Any) -> Any:
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    return model


def with_a_head_of_values(model: Any) -> Any:
    model.value = nn.Sequential(nn.Linear(32, 1, device=model.device))
    return model


@pytest.mark.parametrize(
    "change",
    [with_gradient_checkpointing, having_told_hidden_states, as_accelerate_prepares_it, compiled,
     with_a_head_of_values],
)  # fmt: skip
def test_what_changes_nothing_is_let_through(change: Callable[[Any], Any]) -> None:
    model = change(tiny())
    asked = GenerationRequest("r", prompt(1, 6), 8, temperature=0.0)
    said = finished(slots(model, SMALL), [asked])["r"].response.tokens
    assert list(said) == generated(tiny(), asked)


def test_what_is_no_causal_model_itself_is_told_what_to_give() -> None:
    model = tiny()
    wrapper = nn.Module()
    wrapper.config, wrapper.model = model.config, model
    judge = LlamaForSequenceClassification(copy.deepcopy(model.config))
    for given in (nn.DataParallel(model), wrapper, model.model, judge):
        with pytest.raises(UnsupportedModel, match=rf"{type(given).__name__} has no `.*give the causal model"):
            slots(given, SMALL)


def test_a_model_without_layers_or_data_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no layers"):
        slots(tiny(num_hidden_layers=0), SMALL)
    with pytest.raises(UnsupportedModel, match="load them"):
        slots(tiny().to("meta"), SMALL)
