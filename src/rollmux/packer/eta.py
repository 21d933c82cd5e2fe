"""How much more is launched than wanted in the next short round: policies that look at past rounds only.

A policy is asked before every round and told every batch; asking changes nothing. Its memory is part of the checkpoint.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import exp, log
from operator import mul
from statistics import NormalDist, fmean
from typing import Any, Protocol

from rollmux.checks import Checks
from rollmux.packer.batching import MAX_FACTOR, Batching, Race, launches
from rollmux.packer.commands import Batch, RoundKind, TrainedPrompt


@dataclass(frozen=True, slots=True)
class Factors:
    """Launched over wanted: prompts of a step, and responses of a prompt."""

    prompts: float
    responses: float


class EtaPolicy(Protocol):
    """Chooses the factors of each round."""

    def factors(self, batching: Batching) -> Factors:
        """The factors for the next round, if it is short."""

    def observe(self, batch: Batch) -> None:
        """Is told the batch of a round that is over."""

    def state(self) -> Any:
        """All that the policy remembers, as JSON values."""

    def restore(self, state: Any) -> None:
        """Takes over what another policy of its kind remembered."""


@dataclass(frozen=True, slots=True)
class FixedEta:
    """The same factors always."""

    prompts: float
    responses: float

    def __post_init__(self) -> None:
        checks = Checks("fixed_eta")
        _check_factors(checks, "", self)
        checks.require()

    def factors(self, batching: Batching) -> Factors:
        return Factors(self.prompts, self.responses)

    def observe(self, batch: Batch) -> None:
        pass

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Sample:
    """The log lengths of one prompt's winners: their mean, and their spread (if normal: the standard deviation)."""

    mean_log: float
    spread: float
    launched: int


class AdaptiveEta:
    """The factors with the least predicted time for a trained prompt, given the lengths that past rounds have shown.

    A log length is taken as an effect of its prompt, distributed as observed, plus a normal effect of the response. The
    winners of a short round are taken as the smallest of all that was launched. Every prompt is trained in the end, the
    long ones in long rounds, so the prompts trained in whole cycles are a fair sample of the data, and so are the
    prompts of rounds that deferred no prompt.
    """

    STEP = 0.05

    def __init__(
        self,
        start: Factors = Factors(1.25, 1.25),
        most: Factors = Factors(2.0, 1.25),
        crowding: float = 0.3,
        rounds: int = 24,
    ) -> None:
        checks = Checks("adaptive_eta")
        _check_factors(checks, "start.", start)
        _check_factors(checks, "most.", most)
        checks.number("crowding", crowding, 0.0, 100.0, "0 where more requests slow nothing down")
        checks.whole("rounds", rounds, 1, 10**4, "remember a few cycles of short rounds and a long one")
        checks.require()
        self.start = start  # used while every round was short and deferred prompts: the long ones were not seen yet
        self.most = most
        self.crowding = crowding  # how much slower a token is with twice the requests
        self.seen: deque[tuple[RoundKind, list[_Sample]]] = deque(maxlen=rounds)

    def factors(self, batching: Batching) -> Factors:
        if not any(kind is RoundKind.LONG for kind, _ in self.seen):
            return self.start
        return self._best(batching)

    def observe(self, batch: Batch) -> None:
        # A round that defers no prompt shows the long ones too. Otherwise factors of 1 would never be left for good.
        kind = batch.kind if batch.deferred or batch.diverted else RoundKind.LONG
        self.seen.append((kind, [_sample(prompt) for prompt in batch.prompts]))

    def state(self) -> Any:
        return [[kind.value, [[s.mean_log, s.spread, s.launched] for s in samples]] for kind, samples in self.seen]

    def restore(self, state: Any) -> None:
        self.seen.clear()
        self.seen.extend((RoundKind(kind), [_Sample(*fields) for fields in samples]) for kind, samples in state)

    def _best(self, batching: Batching) -> Factors:
        wanted = batching.responses
        samples = [sample for _, samples in self.seen for sample in samples]
        if not samples:  # the data have ended
            return self.start
        spread = fmean(sample.spread for sample in samples)
        effects = sorted(s.mean_log - spread * _mean_score(wanted, s.launched) for s in samples)
        most = 1.0 if batching.race is Race.NONE else self.most.responses
        choices = [Factors(*pair) for pair in product(_steps(self.most.prompts), _steps(most))]
        return min(choices, key=lambda choice: self._cost(batching, choice, effects, spread))

    def _cost(self, batching: Batching, factors: Factors, effects: list[float], spread: float) -> float:
        """Tokens that a round generates in a row, as a mean over a cycle of short rounds and the long one they fill."""
        prompts, responses = batching.prompts, batching.responses
        launched = launches(prompts, factors.prompts)
        width = launches(responses, factors.responses)
        crowd = 1.0 + self.crowding * (launched * width / (prompts * responses) - 1.0)
        short = crowd * exp(_ranked(effects, prompts, launched) + spread * _scores(responses, width)[-1])
        if launched == prompts:
            return short
        shorts = prompts / (launched - prompts)
        cycle = round(prompts * (shorts + 1))
        long = exp(_ranked(effects, cycle, cycle) + spread * _scores(responses, responses)[-1])
        return (shorts * short + long) / (shorts + 1)


def _check_factors(checks: Checks, path: str, factors: Factors | FixedEta) -> None:
    for name in ("prompts", "responses"):
        remedy = "1 launches no more than is wanted"
        checks.number(f"{path}{name}", getattr(factors, name), 1.0, MAX_FACTOR, remedy)


def _steps(most: float) -> list[float]:
    return [1.0 + AdaptiveEta.STEP * step for step in range(int((most - 1.0) / AdaptiveEta.STEP + 1e-9) + 1)]


def _sample(prompt: TrainedPrompt) -> _Sample:
    """The spread is the slope of the ordered log lengths over the values that a normal sample would have there."""
    logs = sorted([log(max(response.tokens, 1)) for response in prompt.responses])
    spread = sum(map(mul, _weights(len(logs), prompt.launched), logs))
    return _Sample(sum(logs) / len(logs), spread, prompt.launched)


@cache
def _weights(smallest: int, size: int) -> tuple[float, ...]:
    """The weight of each ordered value in the slope of a line through all of them; 0 for a value alone."""
    scores = _scores(smallest, size)
    mean = fmean(scores)
    steepness = sum((score - mean) ** 2 for score in scores) or 1.0
    return tuple((score - mean) / steepness for score in scores)


@cache
def _scores(smallest: int, size: int) -> tuple[float, ...]:
    """Where the smallest of a standard normal sample of this size are expected (Blom's approximation)."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((rank - 0.375) / (size + 0.25)) for rank in range(1, smallest + 1))


@cache
def _mean_score(smallest: int, size: int) -> float:
    return fmean(_scores(smallest, size))


def _ranked(effects: list[float], rank: int, size: int) -> float:
    """The effect that is expected at this rank in a sample of this size, by the effects observed."""
    place = (rank - 0.375) / (size + 0.25) * len(effects) - 0.5
    below = min(max(int(place), 0), len(effects) - 1)
    above = min(below + 1, len(effects) - 1)
    return effects[below] + (effects[above] - effects[below]) * min(max(place - below, 0.0), 1.0)
