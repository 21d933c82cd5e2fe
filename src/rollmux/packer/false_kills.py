"""How many of the runs that an adaptive limit killed would have passed at the ceiling, from the few that were audited.

Invariant: the upper bound never lies below the estimate, and without an audit it claims nothing.
"""

from dataclasses import dataclass
from math import exp, lgamma, log, log1p

DOUBT = 0.05  # the bound is above the true share in 95 of 100 samples
HALVINGS = 60  # of an interval of length 1, beyond the precision of a float


@dataclass(frozen=True, slots=True)
class FalseKills:
    """`killed` counts the kills below the ceiling: only they can be false. `audited` of them ran again up to it."""

    runs: int = 0
    killed: int = 0
    audited: int = 0
    would_have_passed: int = 0

    @property
    def estimate(self) -> float | None:
        """The share of the kills that were false; None before the first audit."""
        return self.would_have_passed / self.audited if self.audited else None

    @property
    def upper(self) -> float:
        """The largest share of the kills that the audits leave plausible (Clopper and Pearson, one-sided, 95 %)."""
        return largest_share(self.would_have_passed, self.audited)

    @property
    def of_runs(self) -> float | None:
        """The false-kill rate: the estimated share of false kills in all runs."""
        return None if self.estimate is None else self.estimate * self._kill_rate

    @property
    def of_runs_upper(self) -> float:
        return self.upper * self._kill_rate

    @property
    def _kill_rate(self) -> float:
        return self.killed / self.runs if self.runs else 0.0


def largest_share(hits: int, trials: int) -> float:
    """The share above which so few hits (or fewer) in so many trials are improbable."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) > DOUBT:
            low = middle
        else:
            high = middle
    return high


def _at_most(hits: int, trials: int, share: float) -> float:
    """The binomial probability of no more than so many hits."""
    ways = lgamma(trials + 1)
    terms = (
        ways - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(share) + (trials - k) * log1p(-share)
        for k in range(hits + 1)
    )
    return sum(exp(term) for term in terms)
