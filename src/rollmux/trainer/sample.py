"""One response as the update sees it: its tokens, who drew them, and its reward.

Invariant: each token carries its log-probability under the policy that drew it, and the version of those weights.
"""

from dataclasses import dataclass

from rollmux.checks import Checks
from rollmux.runtime.rewards.reward import MOST

LOWEST = -1e9
ROUNDING = 0.05  # an engine in bfloat16 may give the logarithm of a probability near 1 as a little more than 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A response to `prompt` with its reward; samples of the same `group` answer the same prompt."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reward: float
    group: str

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
        checks.number("reward", self.reward, -MOST, MOST, "leave out a response that could not be scored")
        if not self.group:
            checks.report("group", self.group, "a text that is not empty", "name the prompt that it answers")
        checks.require()

    @property
    def length(self) -> int:
        """Prompt and response together."""
        return len(self.prompt) + len(self.tokens)
