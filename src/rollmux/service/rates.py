"""How often somebody may call: a bucket that fills as fast as calls are allowed, and holds a burst."""

import time
from collections import OrderedDict
from collections.abc import Callable

PER_S, BURST = 200.0, 400.0
# How many callers are remembered: the one who has not called for longest is forgotten, and has a full bucket again.
REMEMBERED = 20_000


class Rates:
    """One bucket for each caller."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, per_s: float = PER_S, burst: float = BURST
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, caller: str, weight: float = 1.0) -> bool:
        """Whether this caller may call now; if so, the call counts. One heavier than a full bucket takes all of it."""
        weight = min(weight, self._burst)
        now = self._clock()
        left, since = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        allowed = left >= weight
        self._left[caller] = (left - weight * allowed, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return allowed
