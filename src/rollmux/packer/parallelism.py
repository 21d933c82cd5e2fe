"""Which tensor-parallel size the next rounds run with: the fastest by prediction, checked by the preemptions seen.

Invariant: the model fits in the size, and a replica of this size lies within a server. The size changes only where the
rounds ahead save more than the resizes cost, and never to a smaller one while preemptions rise, unless the longest
request fits no other way. Rounds without preemptions veto nothing: a smaller size would have room enough, but a larger
one may still be faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks
from rollmux.packer.round_time import DecodeRates, Prediction, RoundLoad, predict


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The GPUs of a rollout and the rules of the published heuristic.

    `smallest` is the smallest size that the model fits in. `rise` and `quiet_rounds` are the paper's: a short round
    with more than 1.05 times the preemptions of the one before asks for twice the size, four rounds without any for
    half of it.
    """

    gpus: int
    server_gpus: int
    smallest: int = 1
    resize_s: float = 0.0
    rise: float = 1.05
    quiet_rounds: int = 4

    def __post_init__(self) -> None:
        checks = Checks("planner")
        counts = [
            checks.whole("gpus", self.gpus, 1, 10**6, "give all GPUs of the rollout"),
            checks.whole("server_gpus", self.server_gpus, 1, 1024, "give the GPUs of one server"),
            checks.whole("smallest", self.smallest, 1, 1024, "give the smallest size that the model fits in"),
        ]
        if all(counts) and not self.sizes:
            limit = f"a divisor of the {self.gpus} GPUs and of the {self.server_gpus} of a server"
            checks.report("smallest", self.smallest, limit, "choose a size that makes whole replicas within servers")
        checks.number("resize_s", self.resize_s, 0.0, MAX_SECONDS, "give the seconds that a change of size takes")
        checks.number("rise", self.rise, 1.0, 1e6, "1.05 is a rise by more than 5 %")
        checks.whole("quiet_rounds", self.quiet_rounds, 1, 10**6, "give a number of rounds")
        checks.require()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that make whole replicas, none across servers: the smallest, its double, and so on."""
        doubled = (self.smallest << n for n in range(self.server_gpus.bit_length()))
        return tuple(size for size in doubled if not self.server_gpus % size and not self.gpus % size)


class Ground(Enum):
    """What a choice of size rests on."""

    PREDICTION = "prediction"
    PREEMPTIONS = "preemptions"
    DISAGREEMENT = "disagreement"  # preemptions rise, and the prediction is for a smaller size: the size stays


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The size for the next round, and how it came about.

    `saving_s` is what the rounds ahead save over staying, less the resizes; `predicted` is the next round, by size.
    """

    size: int
    ground: Ground
    by_preemptions: int
    by_prediction: int | None = None
    saving_s: float = 0.0
    predicted: tuple[tuple[int, Prediction], ...] = ()


class ParallelismPlanner:
    """It is told of every round that ends and of every resize that was done, and asked for a size before a round."""

    def __init__(self, settings: PlannerSettings, rates: Sequence[DecodeRates] = (), size: int | None = None) -> None:
        self.settings = settings
        self.size = settings.smallest if size is None else size
        self._rates = {each.size: each for each in rates}
        self._last_short: int | None = None
        self._risen = False
        self._quiet = 0
        self._check(self.size, rates)

    def _check(self, size: int, rates: Sequence[DecodeRates]) -> None:
        checks, sizes = Checks("planner"), self.settings.sizes
        limit = f"one of {', '.join(map(str, sizes))}"
        if size not in sizes:
            checks.report("size", size, limit, "begin with a size that the settings allow")
        for place, each in enumerate(rates):
            if each.size not in sizes or self._rates[each.size] is not each:
                checks.report(f"rates[{place}].size", each.size, f"{limit}, each once", "leave these rates out")
        checks.require()

    def observe(self, preemptions: int, *, short: bool) -> None:
        """A round has ended. Only short rounds are compared with each other; quiet rounds of both kinds are counted."""
        checks = Checks("round")
        checks.whole("preemptions", preemptions, 0, MAX_COUNT, "count the preemptions of all replicas")
        checks.require()
        self._quiet = 0 if preemptions else self._quiet + 1
        if short:
            before, self._last_short = self._last_short, preemptions
            self._risen = before is not None and preemptions > self.settings.rise * before

    def resized(self, size: int) -> None:
        """The rollout now runs with this size: preemptions with the old one say nothing about it."""
        if size != self.size:
            self._check(size, ())
            self.size, self._last_short, self._risen, self._quiet = size, None, False, 0

    def choose(self, ahead: Sequence[RoundLoad] = ()) -> SizeChoice:
        """The size for the first of the rounds ahead, within which a resize must pay.

        Without rounds ahead, or without rates of the present size, with which other sizes are compared, preemptions
        alone decide, as published.
        """
        asked = self._by_preemptions()
        if self.size not in self._rates:
            return SizeChoice(asked, Ground.PREEMPTIONS, asked)
        rows = {load: self._predictions(load) for load in dict.fromkeys(ahead)}
        table = [rows[load] for load in ahead if rows[load]]
        if not table:
            return SizeChoice(asked, Ground.PREEMPTIONS, asked)
        best, saving_s = self._cheapest(table)
        if best < self.size and self._risen and self.size in table[0]:
            return SizeChoice(self.size, Ground.DISAGREEMENT, asked, best, 0.0, tuple(table[0].items()))
        return SizeChoice(best, Ground.PREDICTION, asked, best, saving_s, tuple(table[0].items()))

    def _by_preemptions(self) -> int:
        sizes = self.settings.sizes
        if self._risen and self.size < sizes[-1]:
            return self.size * 2
        if self._quiet >= self.settings.quiet_rounds and self.size > sizes[0]:
            return self.size // 2
        return self.size

    def _predictions(self, load: RoundLoad) -> dict[int, Prediction]:
        found = {size: predict(rates, load, self.settings.gpus) for size, rates in sorted(self._rates.items())}
        return {size: prediction for size, prediction in found.items() if prediction is not None}

    def _cheapest(self, table: Sequence[dict[int, Prediction]]) -> tuple[int, float]:
        """The first size on the cheapest way through the rounds, resizes counted in; what that saves over staying."""
        sizes = {self.size, *(size for row in table for size in row)}
        cost = rest = dict.fromkeys(sizes, 0.0)
        stay = 0.0
        for row in reversed(table):
            cost = {size: _round_s(row, size) + rest[size] for size in sizes}
            stay += _round_s(row, self.size)
            rest = {size: min(self._moved_s(size, to) + cost[to] for to in sizes) for size in sizes}
        first = min(sizes, key=lambda to: (self._moved_s(self.size, to) + cost[to], to != self.size, to))
        return first, stay - rest[self.size] if rest[self.size] < stay else 0.0

    def _moved_s(self, size: int, to: int) -> float:
        return self.settings.resize_s if size != to else 0.0

    def state(self) -> dict[str, Any]:
        """Plain data that pass through JSON unchanged."""
        return {"size": self.size, "last_short": self._last_short, "risen": self._risen, "quiet": self._quiet}

    @classmethod
    def from_state(
        cls, settings: PlannerSettings, state: dict[str, Any], rates: Sequence[DecodeRates] = ()
    ) -> "ParallelismPlanner":
        """The planner that goes on where the saved one stopped."""
        checks = Checks("planner_state")
        if checks.keys(state, ("size", "last_short", "risen", "quiet")):
            checks.whole("quiet", state["quiet"], 0, MAX_COUNT, "restore from what state() gave")
            if not isinstance(state["risen"], bool):
                checks.report("risen", state["risen"], "true or false", "restore from what state() gave")
            if state["last_short"] is not None:
                checks.whole("last_short", state["last_short"], 0, MAX_COUNT, "restore from what state() gave")
        checks.require()
        planner = cls(settings, rates, state["size"])
        planner._last_short, planner._risen, planner._quiet = state["last_short"], state["risen"], state["quiet"]
        return planner


def _round_s(row: dict[int, Prediction], size: int) -> float:
    return row[size].round_s if size in row else inf
