"""The log-probabilities of responses under the model as it is, with their graph.

Invariant: what a sample scores does not depend on the samples beside it. Rows are padded on the right, which a causal
model cannot see, and the head is computed for response tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from rollmux.trainer.sample import Sample
from rollmux.trainer.update.errors import UntrainableModel

PROBE_TOKENS = 8
_proved: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True, slots=True)
class Scored:
    """Of each response token of a micro-batch: its log-probability now and when drawn, and whose it is."""

    now: Tensor
    drawn: Tensor
    row: Tensor
    lengths: Tensor


class Scorer:
    """Scores samples with a Hugging Face causal model."""

    def __init__(self, model: nn.Module) -> None:
        _refuse_dropout(model)
        if model not in _proved:
            _prove_parts(model)
            _proved.add(model)
        self._body, self._head = _parts(model)
        self.vocabulary: int = self._head.weight.shape[0]
        self.device: torch.device = self._head.weight.device

    def __call__(self, samples: Sequence[Sample]) -> Scored:
        width = max(sample.length for sample in samples) - 1  # nothing follows the last token
        rows = [(*sample.prompt, *sample.tokens[:-1]) for sample in samples]
        ids = torch.tensor([(*row, *(0,) * (width - len(row))) for row in rows])
        places = [n * width + len(s.prompt) - 1 + t for n, s in enumerate(samples) for t in range(len(s.tokens))]
        lengths = torch.tensor([len(sample.tokens) for sample in samples])
        hidden = self._body(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1])[torch.tensor(places, device=self.device)]
        now = _logprobs(self._head(chosen), self._tokens(samples))
        drawn = torch.tensor([value for sample in samples for value in sample.logprobs], dtype=now.dtype)
        row = torch.repeat_interleave(torch.arange(len(samples)), lengths)
        return Scored(now, drawn.to(self.device), row.to(self.device), lengths.to(self.device))

    def _tokens(self, samples: Sequence[Sample]) -> Tensor:
        return torch.tensor([token for sample in samples for token in sample.tokens], device=self.device)


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """In single precision at least."""
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return exact.gather(1, tokens[:, None])[:, 0] - exact.logsumexp(1)


def _parts(model: Any) -> tuple[nn.Module, Any]:
    return model.base_model, model.get_output_embeddings()


def _refuse_dropout(model: Any) -> None:
    """Samples would be scored by other networks than the one that drew them, each time by another."""
    config = model.config.to_dict()
    rates = {name: rate for name, rate in config.items() if name.endswith(("dropout", "pdrop")) and rate}
    if model.training and rates:
        raise UntrainableModel(f"the model drops out ({rates}): set these to 0, or call model.eval()")


def _prove_parts(model: Any) -> None:
    """Body and head, apart, must give what the model gives: some scale or cap their logits in between."""
    if model.get_output_embeddings() is None:
        raise UntrainableModel(f"{type(model).__name__} has no output embeddings: give a causal language model")
    body, head = _parts(model)
    ids = torch.arange(PROBE_TOKENS, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        apart = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        whole = model(input_ids=ids, use_cache=False).logits
    if not torch.allclose(apart.float(), whole.float(), rtol=1e-3, atol=1e-3, equal_nan=True):
        raise UntrainableModel(f"{type(model).__name__} changes its logits after its head: no such model is known")
