"""The synchronous update as a textbook has it: the whole batch, one graph, one backward. And small batches to try."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rollmux.trainer.sample import Sample
from rollmux.trainer.update import Baseline, GradientSum, Loss, Objective, scorer

VOCABULARY = 11
VERSION = 3


@cache
def _original(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    _in_its_own_precision(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    converted: Any = model
    return converted.to(dtype)


def _in_its_own_precision(model: Any) -> None:
    """Transformers' norm computes in single precision whatever its input, which would hide errors up to 1e-7."""
    width, epsilon = model.config.hidden_size, model.config.rms_norm_eps
    model.model.norm = torch.nn.RMSNorm(width, epsilon)
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = (torch.nn.RMSNorm(width, epsilon) for _ in range(2))


def tiny(dtype: torch.dtype = torch.float64) -> Any:
    """A replica: the same weights each time, in parameters of its own."""
    return deepcopy(_original(dtype))


def logprobs(model: Any, sample: Sample) -> Tensor:
    """Of its response's tokens, from a forward over it alone."""
    ids = torch.tensor([sample.prompt + sample.tokens])
    table = torch.log_softmax(model(ids).logits[0], -1)
    start = len(sample.prompt) - 1
    return torch.stack([table[start + t, token] for t, token in enumerate(sample.tokens)])


@dataclass(frozen=True)
class Drawn:
    """A sample to be made: what hypothesis chooses, without log-probabilities."""

    group: int
    reward: float
    prompt_length: int
    length: int


def samples(drawn: Iterable[Drawn], off: float = 0.0, seed: int = 0) -> list[Sample]:
    """Random tokens, a prompt for each group; the drawing policy's log-probabilities are `off` by so much, times a
    normal variate.
    """
    model, source, made = _original(torch.float64), torch.Generator().manual_seed(seed), []
    prompts: dict[int, Tensor] = {}
    for each in drawn:
        if each.group not in prompts:
            prompts[each.group] = torch.randint(0, VOCABULARY, (each.prompt_length,), generator=source)
        prompt = prompts[each.group]
        tokens = torch.randint(0, VOCABULARY, (each.length,), generator=source)
        zero, version = (-1.0,) * each.length, (VERSION,) * each.length
        bare = Sample(tuple(prompt.tolist()), tuple(tokens.tolist()), zero, version, each.reward, str(each.group))
        noise = off * torch.randn(each.length, generator=source, dtype=torch.float64)
        with torch.no_grad():
            old = (logprobs(model, bare) + noise).clamp(max=0.0)
        made.append(Sample(bare.prompt, bare.tokens, tuple(old.tolist()), version, each.reward, bare.group))
    return made


def advantages(objective: Objective, batch: Sequence[Sample]) -> list[Tensor]:
    groups = {name: torch.tensor([s.reward for s in batch if s.group == name]).double() for name in _names(batch)}
    found = []
    for sample in batch:
        advantage, group = torch.tensor(sample.reward).double(), groups[sample.group]
        if objective.baseline is Baseline.GROUP_MEAN:
            advantage = advantage - group.mean()
        if objective.group_std:
            advantage = advantage / (_deviation(group) + objective.epsilon)
        found.append(advantage)
    everything = torch.stack(found)
    if objective.baseline is Baseline.BATCH_MEAN:
        everything = everything - everything.mean()
    if objective.whiten:
        everything = (everything - everything.mean()) / (_deviation(everything) + objective.epsilon)
    return list(everything)


def _names(batch: Sequence[Sample]) -> list[str]:
    return sorted({sample.group for sample in batch})


def _deviation(values: Tensor) -> Tensor:
    return values.std() if len(values) > 1 else torch.zeros(()).double()


def synchronous_loss(model: Any, objective: Objective, batch: Sequence[Sample]) -> Tensor | None:
    """None where all groups are dropped."""
    if objective.drop_equal_groups:
        varied = {name for name in _names(batch) if len({s.reward for s in batch if s.group == name}) > 1}
        batch = [sample for sample in batch if sample.group in varied]
    if not batch:
        return None
    losses = []
    for sample, advantage in zip(batch, advantages(objective, batch), strict=True):
        now = logprobs(model, sample)
        if objective.clip_low is None or objective.clip_high is None:
            losses.append(-advantage * now)
            continue
        ratio = torch.exp(now - torch.tensor(sample.logprobs, dtype=now.dtype))
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        losses.append(-torch.minimum(ratio * advantage, clipped * advantage))
    if objective.loss is Loss.TOKEN_MEAN:
        return torch.cat(losses).mean()
    return torch.stack([loss.mean() for loss in losses]).mean()


def synchronous(objective: Objective, batch: Sequence[Sample], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The gradient of each parameter."""
    model = tiny(dtype)
    loss = synchronous_loss(model, objective, batch)
    if loss is None:
        return []
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def gradients(model: Any) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def sharing() -> AbstractContextManager[object]:
    """Of models that are new to the trainer, all samples of a prompt share a row, whatever it costs."""
    return patch.object(scorer, "PAIR_IS_DEARER", 1e-9)


def streamed(objective: Objective, batch: Sequence[Sample]) -> list[Tensor]:
    """By one replica that gets all at once."""
    model = tiny()
    whole = GradientSum(model, objective)
    whole.add(batch)
    whole.finish()
    return gradients(model)


def furthest(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of any parameter's gradient, relative to that of the whole gradient or to 1e-3."""
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in wanted]
    size = max([1e-3, *(float(tensor.abs().max()) for tensor in wanted)])
    return max((float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)), default=0.0) / size
