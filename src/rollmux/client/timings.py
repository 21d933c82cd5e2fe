"""How long the job's phases really take: the latest of each kind, and the most of the first few.

The first iteration is left out (it compiles and fills caches), and the longest counts: a forecast that is too short
would break the SLOs of others.
"""

from dataclasses import dataclass, field

from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Profile

# The shortest phase that a job may have.
SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Timing:
    """One phase: its state moved in, its work without pauses, its state moved off."""

    load_s: float
    body_s: float
    offload_s: float


@dataclass(slots=True)
class Timings:
    """Measurements of one process; `wanted` iterations make a profile, 0 none."""

    wanted: int = 3
    last: dict[PhaseKind, Timing] = field(default_factory=dict)
    _bodies: dict[PhaseKind, list[float]] = field(default_factory=lambda: {kind: [] for kind in PhaseKind})

    def add(self, kind: PhaseKind, timing: Timing) -> None:
        self.last[kind] = timing
        if len(self._bodies[kind]) <= self.wanted:
            self._bodies[kind].append(timing.body_s)

    def profile(self, attempt: int) -> Profile | None:
        """What to tell the controller, once enough was measured."""
        if not self.wanted or any(len(bodies) <= self.wanted for bodies in self._bodies.values()):
            return None
        rollout, train, sync = (max(bodies[1:]) for bodies in self._bodies.values())
        return Profile(attempt, max(rollout, SHORTEST_S), max(train, SHORTEST_S), sync)
