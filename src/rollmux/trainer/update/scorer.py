"""The log-probabilities of responses under the model as it is, with their graph.

Invariant: a sample's score does not depend on the samples beside it. Rows are padded on the right, which a causal model
does not see, and the head is computed only for drawn tokens. Samples that share a row share its prompt: their responses
follow it one after the other. Each has the positions that it would have alone, and sees no other response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rollmux.trainer.sample import Sample
from rollmux.trainer.update.errors import UntrainableModel

PROBE_TOKENS = 8
PROBE_LOGIT = 1e3  # above any cap that a model may have
# A pair of attention has few products, and a token many: each product of a pair takes so many times as long.
PAIR_IS_DEARER = 2.0
_proved: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()  # with `pairs_per_token`

Rows = Sequence[Sequence[Sample]]  # samples of a row have the same prompt


@dataclass(frozen=True, slots=True)
class Scored:
    """For each drawn token of a micro-batch: its log-probability now and when drawn, and the number of its sample.
    `lengths` are the drawn tokens of each sample."""

    now: Tensor
    drawn: Tensor
    owner: Tensor
    lengths: Tensor


class Scorer:
    """Scores samples with a Hugging Face causal model.

    `pairs_per_token`: how many pairs of attention cost as much as a token's other work; 0 if samples can't share rows.
    """

    def __init__(self, model: nn.Module) -> None:
        _refuse_dropout(model)
        if model not in _proved:
            _prove_parts(model)
            _proved[model] = _pairs_per_token(model) if _shares(model) else 0.0
        self.pairs_per_token = _proved[model]
        self._name, self._fixed_places = type(model).__name__, _fixed_places(model)
        self._body, self._head = _parts(model)
        self.vocabulary: int = self._head.weight.shape[0]
        self.device: torch.device = self._head.weight.device

    def __call__(self, rows: Rows) -> Scored:
        samples = [sample for row in rows for sample in row]
        self._require_fixed_places(samples)
        lengths = torch.tensor([sample.drawn for sample in samples])
        hidden = _hidden(self._body, rows, self.device, self._head.weight.dtype)
        now = _logprobs(self._head(hidden), self._tokens(samples))
        values = [sample.logprobs[place] for sample in samples for place in sample.places]
        drawn = torch.tensor(values, dtype=now.dtype)
        owner = torch.repeat_interleave(torch.arange(len(samples)), lengths)
        return Scored(now, drawn.to(self.device), owner.to(self.device), lengths.to(self.device))

    def _require_fixed_places(self, samples: Sequence[Sample]) -> None:
        if max(sample.length for sample in samples) - 1 > self._fixed_places:
            most = int(self._fixed_places)
            raise UntrainableModel(
                f"{self._name} turns all positions otherwise once one is beyond {most} (its rope_parameters), and a "
                f"score would depend on the samples beside it: set rollout.max_length to {most}"
            )

    def _tokens(self, samples: Sequence[Sample]) -> Tensor:
        tokens = [sample.tokens[place] for sample in samples for place in sample.places]
        return torch.tensor(tokens, device=self.device)


def _hidden(body: nn.Module, rows: Rows, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The hidden states from which each drawn token is predicted, in the order of rows and samples."""
    starts = [_starts(row) for row in rows]
    width = max(each[-1] for each in starts)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    chosen = []
    for number, row in enumerate(rows):
        prompt = len(row[0].prompt)
        ids[number, :prompt] = torch.tensor(row[0].prompt)
        for sample, start in zip(row, starts[number], strict=False):
            count = len(sample.tokens) - 1  # nothing follows the last token
            ids[number, start : start + count] = torch.tensor(sample.tokens[:-1], dtype=torch.long)
            chosen += [number * width + (start + place if place else prompt) - 1 for place in sample.places]
    shape: dict[str, Tensor] = {}
    if any(len(row) > 1 for row in rows):
        places, mask = _apart(rows, starts, width, dtype)
        shape = {"position_ids": places.to(device), "attention_mask": mask.to(device)}
    hidden = body(input_ids=ids.to(device), use_cache=False, **shape).last_hidden_state
    found: Tensor = hidden.reshape(-1, hidden.shape[-1])[torch.tensor(chosen, device=device)]
    return found


def _starts(row: Sequence[Sample]) -> list[int]:
    """Where each response begins in its row, and where the last one ends."""
    return list(accumulate((len(sample.tokens) - 1 for sample in row), initial=len(row[0].prompt)))


def _apart(rows: Rows, starts: Sequence[Sequence[int]], width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each token's position in its own sample, and a mask: it sees the prompt, and its own response up to itself."""
    places = torch.arange(width).repeat(len(rows), 1)
    whose = torch.full((len(rows), width), -1)  # -1: padding
    for number, row in enumerate(rows):
        prompt = len(row[0].prompt)
        whose[number, :prompt] = 0
        for owner, (start, end) in enumerate(zip(starts[number], starts[number][1:], strict=False), 1):
            whose[number, start:end] = owner
            places[number, start:end] -= start - prompt
        places[number, starts[number][-1] :] = 0  # padding: a model may have no position so far behind
    sees = (whose[:, None, :] == whose[:, :, None]) | (whose[:, None, :] == 0)
    sees &= torch.ones(width, width, dtype=torch.bool).tril()
    mask = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
    return places, mask[:, None]


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The tokens' log-probabilities, computed in single precision at least."""
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return exact.gather(1, tokens[:, None])[:, 0] - exact.logsumexp(1)


def _parts(model: Any) -> tuple[nn.Module, Any]:
    return model.base_model, model.get_output_embeddings()


def _refuse_dropout(model: Any) -> None:
    """Refuses a model with dropout: it would score samples with another network each time."""
    config = model.config.to_dict()
    rates = {name: rate for name, rate in config.items() if name.endswith(("dropout", "pdrop")) and rate}
    if model.training and rates:
        raise UntrainableModel(f"the model drops out ({rates}): set these to 0, or call model.eval()")


def _prove_parts(model: Any) -> None:
    """Body and head, called apart, must give what the model gives: some models scale or cap logits in between."""
    if model.get_output_embeddings() is None:
        raise UntrainableModel(f"{type(model).__name__} has no output embeddings: give a causal language model")
    body, head = _parts(model)
    ids = torch.arange(PROBE_TOKENS, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        apart = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        whole = model(input_ids=ids, use_cache=False).logits
        large = torch.linspace(-PROBE_LOGIT, PROBE_LOGIT, apart.shape[-1], dtype=apart.dtype, device=apart.device)
        with head.register_forward_hook(lambda *told: large.expand_as(apart)):
            beyond = model(input_ids=ids, use_cache=False).logits
    for one, other in ((apart, whole), (large.expand_as(apart), beyond)):
        if not torch.allclose(one.float(), other.float(), rtol=1e-3, atol=1e-3, equal_nan=True):
            raise UntrainableModel(f"{type(model).__name__} changes its logits after its head: no such model is known")


def _fixed_places(model: Any) -> float:
    """How many positions turn in the same way whatever the longest sample of a pass is."""
    said = getattr(model.config, "rope_parameters", None) or {}
    each_layers = [each for each in (said, *said.values()) if isinstance(each, dict)]
    growing = [each for each in each_layers if each.get("rope_type") in ("dynamic", "longrope")]
    known = "original_max_position_embeddings"
    return min((each.get(known) or model.config.max_position_embeddings for each in growing), default=inf)


def _shares(model: Any) -> bool:
    """Whether rows of several samples give the same scores: not if attention has another form, or takes no mask."""
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    if set(kinds) != {"full_attention"} or getattr(model.config, "sliding_window", None):
        return False
    body, head = _parts(model)
    prompt, nothing = tuple(number % head.weight.shape[0] for number in range(PROBE_TOKENS)), (0.0, 0.0, 0.0)
    samples = [Sample(prompt, prompt[at : at + 3], nothing, (0, 0, 0), 0.0, "probe") for at in (1, 4)]
    try:
        with torch.no_grad():
            together, apart = (
                _hidden(body, rows, head.weight.device, head.weight.dtype)
                for rows in ([samples], [[s] for s in samples])
            )
    except (TypeError, ValueError, RuntimeError):  # the model takes no such mask or positions
        return False
    apart_by, size = (float(each.float().norm()) for each in (together - apart, apart))
    return apart_by <= size * max(1e-3, 4 * torch.finfo(head.weight.dtype).eps)


def _pairs_per_token(model: Any) -> float:
    """`pairs_per_token` by the products that each takes; 0 if the model does not tell its shape."""
    config, embeddings = model.config, model.get_input_embeddings()
    layers, hidden = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    if not layers or not hidden:
        return 0.0
    body, _ = _parts(model)
    weights = sum(each.numel() for each in body.parameters()) - embeddings.weight.numel()
    return float(weights / (2 * layers * hidden * PAIR_IS_DEARER))
