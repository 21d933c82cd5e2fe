"""A distribution of lengths in bounded memory, and how far two of them are apart.

Lengths are counted in bins 2 % wide, so quantiles and distances are right within 1 %; counts and means are exact. All
distributions have the same bins, so equal lengths give a distance of exactly zero.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import exp, inf, log
from typing import Any

WIDTH = log(1.02)
EMPTY = -1  # the bin of responses without a token


class Lengths:
    """How many responses had which length."""

    __slots__ = ("bins", "count", "total")

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0
        self.total = 0

    def add(self, tokens: int, times: int = 1) -> None:
        """Counts a length; with `times=-1` takes back one that was counted."""
        place = int(log(tokens) / WIDTH) if tokens > 0 else EMPTY
        self.bins[place] = self.bins.get(place, 0) + times
        self.count += times
        self.total += times * tokens

    def extend(self, lengths: Iterable[int]) -> None:
        """Counts each of these."""
        bins = self.bins
        for tokens in lengths:
            place = int(log(tokens) / WIDTH) if tokens > 0 else EMPTY
            bins[place] = bins.get(place, 0) + 1
            self.count += 1
            self.total += tokens

    def merge(self, other: "Lengths") -> None:
        for place, count in other.bins.items():
            self.bins[place] = self.bins.get(place, 0) + count
        self.count += other.count
        self.total += other.total

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The length that this share of the responses does not exceed."""
        reached = 0
        for place, count in sorted(self.bins.items()):
            reached += count
            if count and reached >= share * self.count:
                return _middle(place)
        return 0.0

    def longest(self, share: float) -> float:
        """The length from which on a response is one of the longest, which are at most this share of all.

        If more than this share are as long as the very longest (as at a limit of tokens), these are the longest. If
        they are more than half of all, none is.
        """
        reached, edge = 0, inf
        for place, count in sorted(self.bins.items(), reverse=True):
            reached += count
            if reached > self.count * (share if edge < inf else max(share, 0.5)):
                break
            if count:
                edge = exp(place * WIDTH) * (1.0 - 1e-9)
        return edge

    def state(self) -> dict[str, Any]:
        return {"bins": sorted(map(list, self.bins.items())), "count": self.count, "total": self.total}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Lengths":
        lengths = cls()
        lengths.bins = dict(state["bins"])
        lengths.count, lengths.total = state["count"], state["total"]
        return lengths


def kolmogorov_smirnov(one: Lengths, other: Lengths) -> float:
    """The largest difference, at any length, between the two shares of responses that are no longer: 0 to 1."""
    return max((abs(gap) for _, gap in _gaps(one, other)), default=0.0)


def wasserstein(one: Lengths, other: Lengths) -> float:
    """How many tokens a response has to change by, on average, to make one distribution of the other."""
    steps = list(_gaps(one, other))
    return sum(abs(gap) * (_middle(after) - _middle(place)) for (place, gap), (after, _) in pairwise(steps))


def _gaps(one: Lengths, other: Lengths) -> Iterator[tuple[int, float]]:
    """For each bin, the share of `one` up to it less that of `other`. Nothing if either is empty."""
    if not one.count or not other.count:
        return
    reached_one = reached_other = 0
    for place in sorted({*one.bins, *other.bins}):
        reached_one += one.bins.get(place, 0)
        reached_other += other.bins.get(place, 0)
        yield place, reached_one / one.count - reached_other / other.count


def _middle(place: int) -> float:
    return 0.0 if place == EMPTY else exp((place + 0.5) * WIDTH)
