"""Are two means equal within a margin? Two one-sided t-tests on differences of pairs.

At the 5 % level two means are equal within a margin if the 90 % confidence interval of their difference lies within
it. That no difference is found is no such proof: few and noisy pairs differ significantly from nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from rollmux.sim.sweep import student_t


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of differences, and half of its 90 % confidence interval."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Difference":
        """Of at least two pairs."""
        pairs = [one - other for one, other in zip(ours, theirs, strict=True)]
        return cls(fmean(pairs), student_t(len(pairs) - 1, 0.9) * stdev(pairs) / sqrt(len(pairs)))

    @property
    def margin(self) -> float:
        """The smallest one within which they are equal at the 5 % level."""
        return abs(self.mean) + self.half_width

    def verdict(self, margin: float) -> str:
        """What the tests say. `worse` and `better` are one-sided at the 5 % level too, and may be so by little."""
        side = "worse" if self.mean + self.half_width < 0 else "better" if self.mean - self.half_width > 0 else ""
        if self.margin < margin:
            return f"equal, {side} by little" if side else "equal"
        return side or "not decided"
