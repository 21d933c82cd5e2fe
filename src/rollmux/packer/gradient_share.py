"""How gradients of parts of a batch combine to that of the whole, and which parts may be trained before all are there.

Invariant: the weights given for chunks that make up a batch, with the scale at its end, yield the gradient of one
synchronous update, exactly; advantages that need the whole batch never see a part of it.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import starmap

from rollmux.checks import MAX_COUNT, Checks
from rollmux.errors import IllegalEvent


class Loss(Enum):
    """What the synchronous update minimises, over the N responses and T tokens of the batch."""

    SUM = "sum"  # of the responses' losses
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

    def __add__(self, other: "Count") -> "Count":
        return Count(self.samples + other.samples, self.tokens + other.tokens)


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
        """What turns a chunk's gradient into that of the sum of its losses; it needs no total."""
        return Fraction(self._units(chunk)) if self.given is Given.MEAN else Fraction(1)

    def at_end(self, total: Count) -> Fraction:
        """What turns the sum over the whole batch into the synchronous gradient."""
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


class Whitening(Enum):
    """What advantages need beside their own prompt's responses, and how that is waited for."""

    NONE = "none"  # nothing: a chunk of whole prompts can be trained at once
    DEFER = "defer"  # the whole batch: no work before it is complete
    TWO_PASS = "two-pass"  # the whole batch: what needs no advantage is computed now, gradients when it is complete


class Pass(Enum):
    """What may be done with a chunk now."""

    GRADIENT = "gradient"
    FORWARD = "forward"  # log-probabilities, values, rewards: kept until the batch is complete
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Work:
    """One pass over a chunk; `weight` multiplies its gradient before it is accumulated."""

    chunk: str
    kind: Pass
    weight: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """What is left when the batch is complete: gradient passes, then `scale` on all that was accumulated."""

    work: tuple[Work, ...]
    scale: Fraction


class StreamedBatch:
    """The chunks of one update as their prompts finish. Each is trained exactly once, before or at the closing.

    With the batch's total known, weights are final as they are given; without it sums are accumulated, and the scale
    comes at the end. A chunk that is refused changes nothing.
    """

    def __init__(self, share: GradientShare, whitening: Whitening = Whitening.NONE, total: Count | None = None) -> None:
        self._share, self._whitening, self._total = share, whitening, total
        self._chunks: dict[str, Count] = {}
        self._so_far: Count | None = None
        self._closed = False

    def add(self, chunk: str, count: Count) -> Work:
        """A chunk of whole prompts is there: what may be done with it now."""
        self._refuse_late(chunk)
        if chunk in self._chunks:
            raise IllegalEvent(f"chunk {chunk!r} was added before: it would count twice")
        so_far = count if self._so_far is None else self._so_far + count
        if self._total is not None and (so_far.samples > self._total.samples or so_far.tokens > self._total.tokens):
            raise IllegalEvent(f"chunk {chunk!r} makes {so_far}, more than the batch's {self._total}")
        if self._whitening is Whitening.NONE:
            work = self._gradient(chunk, count)
        else:
            work = Work(chunk, Pass.FORWARD if self._whitening is Whitening.TWO_PASS else Pass.NOTHING)
        self._chunks[chunk], self._so_far = count, so_far
        return work

    def close(self) -> Closing:
        """All chunks are there: the passes that had to wait, and the scale at the end."""
        self._refuse_late("the end")
        whole = self._so_far
        if whole is None:
            raise IllegalEvent("a batch without chunks has no gradient")
        if self._total is not None and whole != self._total:
            raise IllegalEvent(f"the chunks make {whole}, the batch was to be {self._total}")
        late = () if self._whitening is Whitening.NONE else tuple(starmap(self._gradient, self._chunks.items()))
        closing = Closing(late, self._share.at_end(whole) if self._total is None else Fraction(1))
        self._closed = True
        return closing

    def _gradient(self, chunk: str, count: Count) -> Work:
        weight = self._share.weight(count, self._total) if self._total is not None else self._share.to_sum(count)
        return Work(chunk, Pass.GRADIENT, weight)

    def _refuse_late(self, what: str) -> None:
        if self._closed:
            raise IllegalEvent(f"{what!r} comes after the batch was closed")
