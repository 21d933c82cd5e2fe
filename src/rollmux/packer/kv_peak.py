"""How much KV the unfinished responses of a round will need at their peak, before any of them has ended.

Invariant: where the known lengths hold the true lengths, and none is above the cap, a projection at quantile 1 is never
below what the responses then need.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import ceil

QUANTILE_ROUNDING = 1e-9


class KnownLengths:
    """Lengths of finished responses, and what they say about the end of an unfinished one.

    Use whole rounds of the past: the responses that have finished in a round that still runs are its short ones.
    """

    def __init__(self, lengths: Iterable[int], *, cap_tokens: int, quantile: float, support: int) -> None:
        self._ordered = sorted(lengths)
        self._cap, self._quantile, self._support = cap_tokens, quantile, support

    def final(self, tokens: int) -> int:
        """The length at which a response that has `tokens` ends, by the quantile; the cap where too few got so far."""
        first = bisect_right(self._ordered, tokens)
        longer = len(self._ordered) - first
        if longer < self._support:
            return max(self._cap, tokens)
        place = max(1, ceil(self._quantile * longer - QUANTILE_ROUNDING))
        return min(self._ordered[first + place - 1], max(self._cap, tokens))


def peak_tokens(requests: Iterable[tuple[int, int]]) -> int:
    """The most KV that requests `(tokens held, tokens to come)` hold together when all advance at the same pace.

    The total only falls when a request ends, so the peak is just before an end. A longer request never lowers the peak.
    """
    by_end = sorted(requests, key=lambda request: request[1], reverse=True)
    held = accumulate(context for context, _ in by_end)
    return max(
        (kv + left * alive for alive, (kv, (_, left)) in enumerate(zip(held, by_end, strict=True), 1)), default=0
    )
