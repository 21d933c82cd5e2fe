"""The refusal of every model that would not be computed exactly.

Known are the Llama, Qwen2 and Qwen3 families with full attention and with rotary positions that do not depend on the
length, each part as Transformers has it: whatever replaces or wraps a part, or is hooked to it, may compute anything.
"""

from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from rollmux.runtime.engine.errors import UnsupportedModel

FAMILIES = ("llama", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3", "yarn")
PARTS = ("config", "model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head")
PLAIN = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU)
COMPILED = "torch._dynamo.eval_frame"  # its modules compute what the module within them does
# Modules whose hooks change nothing: gradient checkpointing's, and those that collect hidden states.
HARMLESS = ("transformers.modeling_utils", "transformers.utils.output_capturing")


def require_known(model: Any) -> None:
    """Refuses a model that the engine would compute otherwise than the model itself does."""
    _require_part(model, "config")
    _require_known_config(model.config)
    for part in PARTS:
        _require_part(model, part)
    body, head = model.model, model.lm_head
    if not body.layers[: model.config.num_hidden_layers]:
        raise UnsupportedModel("the model has no layers: give one that has")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModel("parameters are on the meta device, without data: load them all, offload none")
    _require_no_hooks(type(model).__name__, model)
    for name, module in chain(body.named_modules(prefix="model"), head.named_modules(prefix="lm_head")):
        _require_no_hooks(name, module)
        if type(module).__module__ != COMPILED:
            _require_plain(name, module, model.config.model_type)


def _require_part(model: Any, part: str) -> None:
    try:
        attrgetter(part)(model)
    except AttributeError:
        raise UnsupportedModel(
            f"{type(model).__name__} has no `{part}`: give the causal model with its head, and not what wraps it; "
            "PEFT's `merge_and_unload()` gives it, and the `module` of a parallel wrapper is it"
        ) from None


def _require_known_config(config: Any) -> None:
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
    if not getattr(config, "is_causal", True):
        raise UnsupportedModel("`is_causal` is False: known is causal attention")


def _require_no_hooks(name: str, module: nn.Module) -> None:
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    unknown = [hook for hook in hooks if getattr(hook, "__module__", None) not in HARMLESS]
    if unknown:
        raise UnsupportedModel(
            f"`{name}` has hooks that may change what it computes ({unknown[0]!r}): `remove()` them by their handles, "
            "end pruning by `prune.remove` and weight norm by `remove_weight_norm`; one that only looks on may be set "
            "once the engine is made"
        )


def _require_plain(name: str, module: nn.Module, family: str) -> None:
    kind = type(module)
    if kind not in PLAIN and not _is_of(family, kind):
        raise UnsupportedModel(
            f"`{name}` is {kind.__module__}.{kind.__name__}, where {family} has a plain part: merge adapters, "
            "unquantise, take back what was replaced"
        )
    if "forward" in vars(module):
        raise UnsupportedModel(f"`{name}` was given a `forward` of its own: take that back")
    weight = getattr(module, "weight", None)
    if weight is not None and not isinstance(weight, nn.Parameter):
        raise UnsupportedModel(f"the weight of `{name}` is computed ({type(weight).__name__}): known are parameters")
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise UnsupportedModel(f"`{name}` has a `max_norm`: known are embeddings without")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"`{name}` is not causal: known is causal attention")


def _is_of(family: str, kind: type[nn.Module]) -> bool:
    own = f"transformers.models.{family}.modeling_{family}"
    return kind.__module__ == own or (kind.__module__, kind.__name__) == ("transformers.activations", "SiLUActivation")
