"""The parts of a Hugging Face causal model, and the refusal of every model that would not be computed exactly.

Known are the Llama, Qwen2 and Qwen3 families with full attention and with rotary positions that do not depend on the
length. Parameters are referenced, never owned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollmux.runtime.engine.errors import UnsupportedModel
from rollmux.runtime.engine.projections import Packed, Projection, Referenced, packed_dtype

FAMILIES = ("llama", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Norm:
    """A root-mean-square norm."""

    weight: nn.Parameter
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `query_norm` and `key_norm`: Qwen3 has them."""

    attention_norm: Norm
    queries_keys_values: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    output: Projection
    mlp_norm: Norm
    gate_up: Projection
    down: Projection


class Layers(Protocol):
    """In their order. Whoever streams them may make each ready as it comes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Layer]: ...


@dataclass(frozen=True, slots=True)
class Anatomy:
    """All that a forward needs of a model, and the `dtype` that it computes in."""

    dtype: torch.dtype
    embedding: nn.Parameter
    layers: Layers
    norm: Norm
    head: Projection
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    max_length: int

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def projections(self) -> list[Projection]:
        each = [(x.queries_keys_values, x.output, x.gate_up, x.down) for x in self.layers]
        return [*(projection for layer in each for projection in layer), self.head]


Kind = Callable[[Sequence[nn.Linear]], Projection]


def anatomy(model: Any, packed: bool | None = None) -> Anatomy:
    """Takes a model apart. `packed` None: where it can be and is faster."""
    config = model.config
    _require_known(config)
    body = model.model
    parameter = body.embed_tokens.weight
    device, dtype = parameter.device, parameter.dtype
    others = sorted({f"{p.dtype} on {p.device}" for p in model.parameters()})
    if len(others) > 1:
        raise UnsupportedModel(f"the parameters are {' and '.join(others)}: bring them to one type on one device")
    computed = packed_dtype(device, dtype) if packed is not False else None
    if packed and computed is None:
        raise UnsupportedModel(f"{dtype} on {device} can't be packed: leave `packed` out")
    kind = Referenced if computed is None else partial(Packed, dtype=computed)
    layers = tuple(_layer(each, kind) for each in body.layers[: config.num_hidden_layers])
    return Anatomy(
        dtype=dtype if computed is None else computed,
        embedding=parameter,
        layers=layers,
        norm=_norm(body.norm),
        head=_projection(kind, model.lm_head),
        rotary=body.rotary_emb,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=body.layers[0].self_attn.head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        max_length=config.max_position_embeddings,
    )


def _require_known(config: Any) -> None:
    if config.model_type not in FAMILIES:
        raise UnsupportedModel(f"model type {config.model_type!r}: known are {', '.join(FAMILIES)}")
    if config.hidden_act not in ("silu", "swish"):
        raise UnsupportedModel(f"activation {config.hidden_act!r}: known is silu")
    rope = config.rope_parameters["rope_type"]
    if rope not in ROPES:
        raise UnsupportedModel(f"rotary positions {rope!r} may depend on the length: known are {', '.join(ROPES)}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UnsupportedModel(f"attention {sorted(kinds)}: known is full_attention")


def _layer(layer: Any, kind: Kind) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        queries_keys_values=_projection(kind, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=_projection(kind, attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_projection(kind, mlp.gate_proj, mlp.up_proj),
        down=_projection(kind, mlp.down_proj),
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight, module.variance_epsilon)


def _projection(kind: Kind, *modules: nn.Module) -> Projection:
    linears: Sequence[nn.Linear] = [_linear(module) for module in modules]
    return kind(linears)


def _linear(module: nn.Module) -> nn.Linear:
    if type(module) is not nn.Linear:
        raise UnsupportedModel(f"{type(module).__name__} where a plain Linear is known: merge adapters, unquantise")
    return module
