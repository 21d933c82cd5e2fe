"""The update of a policy, streamed: gradients are added up while samples arrive, and equal those of the whole batch.

gradients = GradientSum(model, Objective.grpo(group_size=8), version=version)   # one for each replica and update
gradients.add(samples)                                                         # as they come, in any order
stats = gradients.finish(Replicas())                                           # leaves `grad`; the optimizer steps
"""

from rollmux.packer.gradient_share import Loss
from rollmux.trainer.update.errors import NotANumber, UntrainableModel, WrongVersion
from rollmux.trainer.update.exchange import ALONE, Exchange, Replicas
from rollmux.trainer.update.gradient_sum import GradientSum, WholeBatch
from rollmux.trainer.update.objective import Baseline, Objective
from rollmux.trainer.update.stats import Stats

__all__ = [
    "ALONE",
    "Baseline",
    "Exchange",
    "GradientSum",
    "Loss",
    "NotANumber",
    "Objective",
    "Replicas",
    "Stats",
    "UntrainableModel",
    "WholeBatch",
    "WrongVersion",
]
