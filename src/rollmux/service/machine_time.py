"""The time by which leases run out: monotonic, and going on from where the journal ends.

It stands still while nobody can be heard: before the start, and while this whole process is held up (stopped by Ctrl-Z,
frozen with its machine). Whoever held a lease then could not show life.
"""

from math import inf
from time import monotonic

# Between two looks at the time no more than this passes: the controller looks several times a second.
LONGEST_STEP_S = 0.5


class MachineTime:
    """Seconds, from this number on once it begins."""

    def __init__(self, begins_at: float) -> None:
        self._now, self._looked_at = begins_at, inf

    def begin(self) -> None:
        self._looked_at = monotonic()

    def now(self) -> float:
        passed_s = max(0.0, monotonic() - self._looked_at)
        self._looked_at += passed_s
        self._now += min(passed_s, LONGEST_STEP_S)
        return self._now
