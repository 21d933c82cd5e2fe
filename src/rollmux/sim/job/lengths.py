"""How long responses are: a measured distribution, and how alike the responses to one prompt are.

The logarithm of a length has a part from the prompt and one from the response: a hard prompt is long every time.
Lengths are drawn from seeds only, so every system meets the same prompts.
"""

from bisect import bisect
from dataclasses import dataclass
from functools import cached_property
from math import erf, exp, log, sqrt
from random import Random

# Between the last quantile that a figure shows and the cap, only the shares at both ends are known. In between, this
# part of the logarithm of the share of longer responses falls with the length, the rest with the length's logarithm.
STRAIGHT = 0.7
TABLE = 8192
# The longest length, in tokens: if many responses were cut at the measured cap, lengths beyond it grow without bound.
LONGEST = 10**9


@dataclass(frozen=True)
class LengthQuantiles:
    """Response lengths of one domain: `tokens` at the quantiles `shares`; the share of responses longer than a length
    (`above`), and the share at the cap at which they were measured (`at_cap`).

    `alike` is the part of the variance that the prompt explains.
    """

    tokens: tuple[int, ...]
    shares: tuple[float, ...]
    above: tuple[int, float]
    at_cap: tuple[int, float]
    alike: float = 0.2

    def below(self, share: float) -> int:
        """The length that this share of responses would not exceed without a cap.

        Beyond the measured cap, the share of longer responses falls with the length as steeply as on average before it.
        """
        cap, at_cap = self.at_cap
        knee, above = self.above
        longer = 1 - share
        if longer <= at_cap:
            grown, steepness = log(at_cap / longer) * log(cap / knee), log(above / at_cap)
            return LONGEST if grown >= log(LONGEST / cap) * steepness else int(cap * exp(grown / steepness))
        if longer < above:
            return self._in_the_tail(longer, knee, above, cap, at_cap)
        shares, tokens = (*self.shares, 1 - above), (*self.tokens, knee)
        i = bisect(shares, share)
        if i == 0:
            return max(1, round(tokens[0] * share / shares[0]))
        if i == len(shares):
            return knee
        part = (share - shares[i - 1]) / (shares[i] - shares[i - 1])
        return round(tokens[i - 1] + part * (tokens[i] - tokens[i - 1]))

    @staticmethod
    def _in_the_tail(longer: float, knee: int, above: float, cap: int, at_cap: float) -> int:
        """The length between the knee and the cap. Found by bisection, as the sum of the two shapes has no inverse."""
        low, high = knee, cap
        while high - low > 1:
            middle = (low + high) // 2
            straight = 1 - (1 - at_cap / above) * (middle - knee) / (cap - knee)
            curved = log(middle / knee) / log(cap / knee) * log(at_cap / above)
            if STRAIGHT * log(straight) + (1 - STRAIGHT) * curved > log(longer / above):
                low = middle
            else:
                high = middle
        return low

    @cached_property
    def table(self) -> tuple[int, ...]:
        """Evenly spaced quantiles, of which each draw looks one up."""
        return tuple(self.below((i + 0.5) / TABLE) for i in range(TABLE))

    def drawn(self, hardness: float, rng: Random, cap: int) -> int:
        """The length of one response to a prompt of this hardness (a standard normal number)."""
        score = sqrt(self.alike) * hardness + sqrt(1 - self.alike) * rng.gauss(0.0, 1.0)
        return min(cap, self.table[int(0.5 * (1 + erf(score / sqrt(2))) * (TABLE - 1e-9))])
