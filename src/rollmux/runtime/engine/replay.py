"""The `replay` engine: responses of given lengths at the pace of a given machine, in real time and without a model.

For tests and demonstrations of all that stands above an engine. It needs no torch, and shares everything except the
computing with the engine that computes a model. Invariant: a response's length and tokens depend on its request alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from time import monotonic, sleep
from typing import Any

from rollmux.checks import MAX_COUNT, Checks
from rollmux.packer import DecodeRates
from rollmux.runtime.engine.desk import Live, Work
from rollmux.runtime.engine.draw import uniform
from rollmux.runtime.engine.local import Drawn, Limits, LocalEngine
from rollmux.runtime.engine.requests import GenerationRequest

LENGTH = 2**63  # the place at which a length is drawn: no token stands there

Lengths = Callable[[GenerationRequest], int]


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths that are lognormal: half are above the median, and `sigma` says how long the tail is."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        checks = Checks("lognormal")
        checks.number("median", self.median, 1, MAX_COUNT, "give tokens, at least one")
        checks.number("sigma", self.sigma, 0, 10, "give the spread of the lengths' logarithms; 1 is much")
        checks.require()

    def __call__(self, request: GenerationRequest) -> int:
        place = NormalDist(0.0, self.sigma).inv_cdf(uniform(request.seed, LENGTH)) if self.sigma else 0.0
        return max(1, round(exp(log(self.median) + place)))


@dataclass(frozen=True, slots=True)
class Clock:
    """How time passes: the machine's own, or a test's."""

    now: Callable[[], float] = monotonic
    sleep: Callable[[float], None] = sleep


@dataclass(frozen=True, slots=True)
class Played:
    """What is played: a response of its length ends by `end_token`; the other tokens are any but that one."""

    lengths: Lengths
    rates: DecodeRates
    end_token: int = 0
    vocabulary: int = 32_000

    def __post_init__(self) -> None:
        checks = Checks("played")
        checks.whole("vocabulary", self.vocabulary, 2, MAX_COUNT, "give the number of tokens there are")
        checks.whole("end_token", self.end_token, 0, max(self.vocabulary - 1, 0), "give a token of the vocabulary")
        checks.require()


def replay(played: Played, limits: Limits, version: int = 0, clock: Clock | None = None) -> LocalEngine:
    """An engine that ends each request after its played length, if the request's own limit does not come first.

    A request must name `end_token` among its stop tokens, or it goes on to its own limit, as with a model.
    """
    return LocalEngine(_Replay(played, limits, clock or Clock()), limits, version)


class _Replay:
    """See `rollmux.runtime.engine.local.Compute`."""

    nbytes = 0

    def __init__(self, played: Played, limits: Limits, clock: Clock) -> None:
        self._played, self._clock = played, clock
        self.max_length, self.vocabulary = limits.max_length, played.vocabulary
        self._done_at = clock.now()

    def run(self, work: Sequence[Work], used_pages: int) -> list[Drawn | None]:
        self._wait(self._takes_s(work))
        return [self._drawn(live) if live.owed == count else None for live, count in work]

    def _takes_s(self, work: Sequence[Work]) -> float:
        rates = self._played.rates
        decoding = [live for live, count in work if count == 1]
        prefill_s = sum(count for _, count in work if count > 1) / rates.prefill_tokens_per_s
        return prefill_s + rates.decode_s(1, len(decoding), sum(live.cached for live in decoding))

    def _wait(self, seconds: float) -> None:
        """Waits. A step that begins late by less than it takes catches up, so that late wakes of sleep don't add up."""
        now = self._clock.now()
        begun = self._done_at if now - self._done_at < seconds else now
        self._done_at = begun + seconds
        self._clock.sleep(self._done_at - now)

    def _drawn(self, live: Live) -> Drawn:
        """A token depends on seed and place alone, greedy or not; the last one is the played end."""
        played, request, place = self._played, live.request, len(live.tokens)
        chance = -log(played.vocabulary - 1)
        if place + 1 >= played.lengths(request):
            return played.end_token, chance
        token = int(uniform(request.seed, place) * (played.vocabulary - 1))
        return token + (token >= played.end_token), chance

    def move(self, sources: list[int], targets: list[int]) -> None: ...

    def copy(self, sources: list[int], targets: list[int], tokens: int) -> None: ...

    def wipe(self, pages: list[int]) -> None: ...

    def check(self, weights: Mapping[str, Any]) -> None: ...

    def load(self, weights: Mapping[str, Any] | None) -> None: ...

    def release(self) -> None: ...

    def restore(self) -> None: ...
