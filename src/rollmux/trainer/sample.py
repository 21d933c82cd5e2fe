"""One response as the update sees it: its tokens, the version of the weights that drew each, and its reward.

Invariant: each drawn token carries its log-probability under the policy that drew it, and the version of those weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rollmux.checks import Checks
from rollmux.runtime.rewards.reward import MOST

LOWEST = -1e9
ROUNDING = 0.05  # an engine in bfloat16 may give the logarithm of a probability near 1 as a little more than 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A response to `prompt` with its reward; samples of the same `group` answer the same prompt.

    `mask` says which tokens the policy drew; it is empty if it drew all. The others, such as what a tool has said, are
    seen by the tokens behind them, and not trained.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reward: float
    group: str
    mask: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        checks = Checks("sample")
        for name in ("prompt", "tokens"):
            ids = getattr(self, name)
            if not ids:
                checks.report(name, ids, "at least one token", "leave out what has no token to train")
            elif min(ids) < 0:
                checks.report(name, min(ids), "token ids from 0", "give token ids, without padding")
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            counts = (len(self.tokens), len(self.logprobs), len(self.versions))
            checks.report("tokens", counts, "as many as logprobs and versions", "give the three of each token")
        wrong = next((value for value in self.logprobs if not LOWEST <= value <= ROUNDING), None)
        if wrong is not None:
            checks.report("logprobs", wrong, "numbers of at most 0", "give the logarithms of probabilities")
        if self.mask and len(self.mask) != len(self.tokens):
            checks.report(
                "mask", len(self.mask), "as many as tokens, or none", "say of each token whether it was drawn"
            )
        elif self.mask and not any(self.mask):
            checks.report("mask", 0, "at least one that was drawn", "leave out what has no token to train")
        checks.number("reward", self.reward, -MOST, MOST, "leave out a response that could not be scored")
        if not self.group:
            checks.report("group", self.group, "a text that is not empty", "name the prompt that it answers")
        checks.require()

    @property
    def places(self) -> Sequence[int]:
        """The places of the drawn tokens."""
        return [place for place, drawn in enumerate(self.mask) if drawn] if self.mask else range(len(self.tokens))

    @property
    def drawn(self) -> int:
        """How many tokens were drawn."""
        return len(self.places)

    @property
    def turns(self) -> int:
        """How many stretches of drawn tokens there are."""
        return sum(drawn and not before for before, drawn in pairwise((False, *self.mask))) if self.mask else 1

    @property
    def length(self) -> int:
        """The tokens of prompt and response together."""
        return len(self.prompt) + len(self.tokens)
