"""The bias report: which lengths were offered, and which were trained.

A response is offered when its prompt comes to its end, whether it is trained, lost its race or is filtered out. An
aborted response counts with the length that it had come to. What was launched for a prompt that is then deferred is not
offered: the prompt runs again, whole, so its lengths are not lost.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rollmux.packer.lengths import Lengths, kolmogorov_smirnov, wasserstein


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """A distribution of lengths, in tokens."""

    responses: int
    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, lengths: Lengths) -> "LengthSummary":
        return cls(lengths.count, lengths.mean, lengths.quantile(0.5), lengths.quantile(0.9), lengths.quantile(0.99))


@dataclass(frozen=True, slots=True)
class Bias:
    """Trained lengths against offered ones. Distances in tokens are relative to the mean offered length.

    `mean_shift` is below zero where shorter responses are trained than were offered.
    """

    offered: LengthSummary
    trained: LengthSummary
    kolmogorov_smirnov: float
    wasserstein: float
    mean_shift: float

    @classmethod
    def between(cls, offered: Lengths, trained: Lengths) -> "Bias":
        scale = offered.mean or 1.0
        shift = trained.mean - offered.mean if trained.count else 0.0
        return cls(
            LengthSummary.of(offered),
            LengthSummary.of(trained),
            kolmogorov_smirnov(offered, trained),
            wasserstein(offered, trained) / scale,
            shift / scale,
        )


@dataclass(frozen=True, slots=True)
class BiasReport:
    """The bias over everything, and that of each domain."""

    overall: Bias
    domains: dict[str, Bias]


class LengthBias:
    """Counts offered and trained lengths by domain."""

    __slots__ = ("_offered", "_trained")

    def __init__(self) -> None:
        self._offered, self._trained = defaultdict[str, Lengths](Lengths), defaultdict[str, Lengths](Lengths)

    def offered(self, domain: str, lengths: Collection[int]) -> None:
        if lengths:
            self._offered[domain].extend(lengths)

    def trained(self, domain: str, lengths: Collection[int]) -> None:
        if lengths:
            self._trained[domain].extend(lengths)

    def report(self) -> BiasReport:
        domains = sorted({*self._offered, *self._trained})
        none = Lengths()
        each = {d: Bias.between(self._offered.get(d, none), self._trained.get(d, none)) for d in domains}
        return BiasReport(Bias.between(_all(self._offered), _all(self._trained)), each)

    def state(self) -> dict[str, Any]:
        return {
            "offered": {domain: lengths.state() for domain, lengths in self._offered.items()},
            "trained": {domain: lengths.state() for domain, lengths in self._trained.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LengthBias":
        bias = cls()
        bias._offered |= {domain: Lengths.from_state(each) for domain, each in state["offered"].items()}
        bias._trained |= {domain: Lengths.from_state(each) for domain, each in state["trained"].items()}
        return bias


def _all(counts: dict[str, Lengths]) -> Lengths:
    total = Lengths()
    for lengths in counts.values():
        total.merge(lengths)
    return total
