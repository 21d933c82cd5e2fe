"""The clipped objective, token by token: the weight of each log-probability's gradient.

Invariant: the gradient of min(r A, clip(r) A) is r A times that of log p where the clip does not bind, else 0. So if no
ratio of a sample leaves the clips, its gradient is linear in A, whatever A will turn out to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import torch
from torch import Tensor

from rollmux.packer.gradient_share import Loss
from rollmux.trainer.sample import Sample
from rollmux.trainer.update.errors import NotANumber
from rollmux.trainer.update.objective import Objective
from rollmux.trainer.update.scorer import Scored
from rollmux.trainer.update.stats import Measured


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of the tokens, the objective's value with them, and how many tokens were clipped."""

    tokens: Tensor
    value: float
    clipped: int


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A scored micro-batch under an objective. `share` is a token's part in its sample: 1, or 1 / length.

    `worth` is what an advantage of 1 makes of a token: its ratio, or its log-probability where there is no ratio.
    """

    scored: Scored
    log_ratio: Tensor
    ratio: Tensor
    worth: Tensor
    share: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, objective: Objective, scored: Scored, samples: Sequence[Sample]) -> Self:
        log_ratio = scored.now.detach() - scored.drawn
        unclipped = objective.clip_low is None or objective.clip_high is None
        ratio = torch.ones_like(log_ratio) if unclipped else log_ratio.exp()
        if not bool((torch.isfinite(ratio) & torch.isfinite(log_ratio)).all()):
            names = sorted({sample.group for sample in samples})
            raise NotANumber(f"a log-probability or ratio in groups {names} is not finite: look at weights and engine")
        share = torch.ones_like(ratio)
        if objective.loss is Loss.SAMPLE_MEAN:
            share = share / scored.lengths[scored.owner]
        low = -inf if objective.clip_low is None else 1 - objective.clip_low
        high = inf if objective.clip_high is None else 1 + objective.clip_high
        return cls(scored, log_ratio, ratio, scored.now.detach() if unclipped else ratio, share, low, high)

    def free(self) -> Tensor:
        """For each sample, whether no clip can bind, whatever its advantage."""
        outside = ((self.ratio < self.low) | (self.ratio > self.high)).long()
        return torch.zeros_like(self.scored.lengths).index_add(0, self.scored.owner, outside) == 0

    def weights(self, advantages: Tensor) -> Weights:
        """The weights for final advantages, one a sample. A clip binds on the side that the advantage pulls to."""
        each = self._of_tokens(advantages)
        clipped = ((each > 0) & (self.ratio > self.high)) | ((each < 0) & (self.ratio < self.low))
        tokens = torch.where(clipped, 0.0, self.share * each * self.ratio)
        value = self.share * each * torch.where(clipped, self.ratio.clamp(self.low, self.high), self.worth)
        return Weights(tokens, _total(value), int(clipped.sum()))

    def linear_weights(self, factors: Tensor) -> Weights:
        """The weights for factors of which advantages will be a linear combination; give 0 for samples not `free`."""
        shares = self.share * self._of_tokens(factors)
        return Weights(shares * self.ratio, _total(shares * self.worth), 0)

    def measured(self, of: Tensor, clipped: int) -> Measured:
        """The measurements over the samples that `of` marks."""
        here = self._of_tokens(of).bool()
        log_ratio = self.log_ratio[here]
        divergence = _total(log_ratio.expm1() - log_ratio)
        furthest = float(log_ratio.abs().max()) if len(log_ratio) else 0.0
        return Measured(clipped, len(log_ratio), divergence, furthest)

    def _of_tokens(self, of_samples: Tensor) -> Tensor:
        return of_samples.to(self.ratio)[self.scored.owner]


def _total(values: Tensor) -> float:
    return float(values.sum(dtype=torch.float64))
