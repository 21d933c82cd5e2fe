"""A micro-batch through the model, forwards and backwards, into the sums.

Invariant: a pass that raises has added nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollmux.trainer.update.objective import Objective
from rollmux.trainer.update.scorer import Rows, Scorer
from rollmux.trainer.update.stats import Measured
from rollmux.trainer.update.sums import Gradient, Sums
from rollmux.trainer.update.surrogate import Surrogate


class Passes:
    """The gradients of `model` under an objective."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.sums = Sums(self.parameters)
        self._scorer = Scorer(model)
        self._objective = objective

    @property
    def vocabulary(self) -> int:
        return self._scorer.vocabulary

    @property
    def pairs_per_token(self) -> float:
        return self._scorer.pairs_per_token

    def final(self, rows: Rows, advantages: Sequence[float]) -> Measured:
        """Trains samples whose advantages won't change any more."""
        surrogate = self._surrogate(rows)
        weights = surrogate.weights(torch.tensor(advantages, dtype=torch.float64))
        self.sums.add(self._backward(surrogate, weights.tokens), weights.value)
        return surrogate.measured(torch.ones(len(advantages), dtype=torch.bool), weights.clipped)

    def linear(self, rows: Rows, advantages: Sequence[float]) -> tuple[Measured, list[bool]]:
        """Trains samples whose advantages the whole batch will shift and scale; also tells which are in the sums now.

        It takes one forward and two backwards. Samples that a clip could bind, on either side, are left out: which side
        binds depends on the advantage's sign, which is not known yet.
        """
        surrogate = self._surrogate(rows)
        free = surrogate.free().cpu()
        if bool(free.any()):
            pivot = advantages[0] if self.sums.pivot is None else self.sums.pivot
            main = surrogate.linear_weights((torch.tensor(advantages, dtype=torch.float64) - pivot) * free)
            plain = surrogate.linear_weights(free.to(torch.float64))
            gradient = self._backward(surrogate, main.tokens, keep=True)
            plain_gradient = self._backward(surrogate, plain.tokens)
            self.sums.add_linear((gradient, main.value), (plain_gradient, plain.value), pivot)
        return surrogate.measured(free, 0), free.tolist()

    def _surrogate(self, rows: Rows) -> Surrogate:
        with torch.enable_grad():
            scored = self._scorer(rows)
        return Surrogate.of(self._objective, scored, [sample for row in rows for sample in row])

    def _backward(self, surrogate: Surrogate, weights: Tensor, keep: bool = False) -> Gradient:
        now = surrogate.scored.now
        return torch.autograd.grad(now, self.parameters, weights, retain_graph=keep, allow_unused=True)
