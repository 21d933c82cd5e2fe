"""The parts of a Hugging Face causal model that is `known`. Parameters are referenced, never owned."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollmux.runtime.engine.errors import UnsupportedModel
from rollmux.runtime.engine.known import require_known
from rollmux.runtime.engine.projections import Packed, Projection, Referenced, packed_dtype


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
    """A model's layers, in their order. Whoever streams them may make each one ready as it comes."""

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
    """Takes a model apart. With `packed` None, weights are packed if that is possible and faster."""
    require_known(model)
    config, body = model.config, model.model
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
        head=kind([model.lm_head]),
        rotary=body.rotary_emb,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=body.layers[0].self_attn.head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        max_length=config.max_position_embeddings,
    )


def _layer(layer: Any, kind: Kind) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        queries_keys_values=kind([attention.q_proj, attention.k_proj, attention.v_proj]),
        query_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=kind([attention.o_proj]),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=kind([mlp.gate_proj, mlp.up_proj]),
        down=kind([mlp.down_proj]),
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight, module.variance_epsilon)
