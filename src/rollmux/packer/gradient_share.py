"""How the gradients of parts of a batch combine to the gradient of the whole batch.

Invariant: the weights given for chunks that make up a batch, with the scale at its end, yield the gradient of one
synchronous update, exactly.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from rollmux.checks import MAX_COUNT, Checks
from rollmux.errors import IllegalEvent


class Loss(Enum):
    """What the synchronous update minimises, over the N responses and T tokens of the batch."""

    SUM = "sum"  # the sum of the responses' losses
    SAMPLE_MEAN = "sample-mean"  # their sum / N; a response's own loss may be a mean over its tokens
    TOKEN_MEAN = "token-mean"  # the sum over all tokens / T


class Given(Enum):
    """What the backward pass over a chunk yields: the gradient of the sum of its losses, or of their mean.

    The mean is over the chunk's tokens where the loss is a mean over tokens, else over its responses.
    """

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Count:
    """The responses and the trained tokens of a chunk, or of the batch. A chunk may be masked altogether."""

    samples: int
    tokens: int

    def __post_init__(self) -> None:
        checks = Checks("count")
        checks.whole("samples", self.samples, 1, MAX_COUNT, "count the responses")
        checks.whole("tokens", self.tokens, 0, MAX_COUNT, "count the tokens that the loss covers")
        checks.require()


@dataclass(frozen=True, slots=True)
class GradientShare:
    """The weights of chunks. `averaged_ranks` is how many ranks the exchange averages over; 1 where it sums.

    An exchange that averages divides by the ranks once more, which the weights undo.
    """

    loss: Loss
    given: Given
    averaged_ranks: int = 1

    def __post_init__(self) -> None:
        checks = Checks("gradients")
        checks.whole("averaged_ranks", self.averaged_ranks, 1, 10**6, "1 where the exchange sums")
        checks.require()

    def to_sum(self, chunk: Count) -> Fraction:
        """The factor that turns a chunk's gradient into that of the sum of its losses; it needs no batch total."""
        return Fraction(self._units(chunk)) if self.given is Given.MEAN else Fraction(1)

    def at_end(self, total: Count) -> Fraction:
        """The factor that turns the gradient summed over the whole batch into the synchronous gradient."""
        if self.loss is Loss.SUM:
            return Fraction(self.averaged_ranks)
        if not self._units(total):
            raise IllegalEvent("a batch without trained tokens has no mean over tokens: skip its update")
        return Fraction(self.averaged_ranks, self._units(total))

    def weight(self, chunk: Count, total: Count) -> Fraction:
        """Both at once: n/N for means, 1/N for sums, with tokens in place of responses for a mean over tokens."""
        return self.to_sum(chunk) * self.at_end(total)

    def _units(self, count: Count) -> int:
        return count.tokens if self.loss is Loss.TOKEN_MEAN else count.samples
