"""The settings of an update: what a response's advantage is, where ratios are clipped, over what the loss is a mean.

Invariant: an objective that can be made can be streamed exactly; settings that contradict each other are refused.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Self

from rollmux.checks import MAX_COUNT, Checks
from rollmux.packer.gradient_share import Loss
from rollmux.trainer.settings import LEAST_CLIP


class Baseline(Enum):
    """What is subtracted from a reward."""

    NONE = "none"
    GROUP_MEAN = "group-mean"  # over the responses to the same prompt
    BATCH_MEAN = "batch-mean"


@dataclass(frozen=True, slots=True)
class Objective:
    """An advantage is the reward less `baseline`, divided by the group's deviation if `group_std`, and whitened over
    the batch if `whiten`.

    Deviations divide by n - 1, and `epsilon` is added to them. The loss of a token is -min(r A, clip(r) A), r being
    its probability now over that when it was drawn; without clips it is -A log p, which is right on-policy only.
    `SAMPLE_MEAN` is over responses, each the mean over its own tokens; `TOKEN_MEAN` over all tokens of the batch.
    With `group_size`, a group is trained when it is complete, and a batch with a group of another size is refused.
    """

    baseline: Baseline = Baseline.GROUP_MEAN
    group_std: bool = True
    whiten: bool = False
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    loss: Loss = Loss.SAMPLE_MEAN
    drop_equal_groups: bool = False  # their advantages are 0; in a token mean they would still count
    group_size: int | None = None
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        checks = Checks("objective")
        self._check_advantages(checks)
        clips = (self.clip_low, self.clip_high)
        if None in clips and clips != (None, None):
            checks.report("clip_low, clip_high", clips, "two numbers, or none", "give both, or None for both")
        elif self.clip_low is not None:
            checks.number("clip_low", self.clip_low, LEAST_CLIP, 1.0, "0.2 clips ratios below 0.8")
            checks.number("clip_high", self.clip_high, LEAST_CLIP, 1e3, "0.28 clips ratios above 1.28")
        if self.loss is Loss.SUM:
            checks.report("loss", self.loss.value, "sample-mean or token-mean", "a sum would grow with the batch")
        checks.require()

    def _check_advantages(self, checks: Checks) -> None:
        if self.group_std and self.baseline is not Baseline.GROUP_MEAN:
            checks.report("group_std", True, "False without a group mean", "take the baseline group-mean, or whiten")
        if self.whiten and self.baseline is Baseline.BATCH_MEAN:
            checks.report("baseline", self.baseline.value, "none with whiten", "whitening takes the batch's mean")
        if self.group_size is not None:
            checks.whole("group_size", self.group_size, 2, MAX_COUNT, "give the responses to each prompt, or None")
        checks.number("epsilon", self.epsilon, 1e-12, 1.0, "1e-6 keeps a quotient finite")

    @classmethod
    def grpo(cls, group_size: int | None = None) -> Self:
        """Group mean and deviation, clipped at 0.2, a mean over responses (arXiv 2402.03300, without its KL term)."""
        return cls(group_size=group_size)

    @classmethod
    def dapo(cls, group_size: int | None = None) -> Self:
        """A higher upper clip, a mean over tokens, groups of equal rewards dropped, no KL term (arXiv 2503.14476)."""
        return cls(clip_high=0.28, loss=Loss.TOKEN_MEAN, drop_equal_groups=True, group_size=group_size)

    @classmethod
    def reinforce(cls, baseline: Baseline = Baseline.BATCH_MEAN, whiten: bool = False) -> Self:
        """No ratio and no clip: one update for each batch."""
        return cls(baseline=baseline, group_std=False, whiten=whiten, clip_low=None, clip_high=None)

    @property
    def needs_group(self) -> bool:
        return self.baseline is Baseline.GROUP_MEAN or self.drop_equal_groups

    @property
    def needs_batch(self) -> bool:
        return self.whiten or self.baseline is Baseline.BATCH_MEAN
