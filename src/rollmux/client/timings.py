"""How long the job's phases really take: the latest of each kind, and the longest of the first few.

The first iteration is left out (it compiles and fills caches). The longest counts, as a forecast that is too short
would break the SLOs of others. A job that shares no nodes moves no state: its switch times are told once they are seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Profile

# The shortest phase that a job may have.
SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one phase: state moved in, work without pauses, state moved off; and the state's size.

    `state_bytes` is None for state that does not say how large it is.
    """

    load_s: float
    body_s: float
    offload_s: float
    state_bytes: int | None = None
    switched: bool = False  # state was moved both in and off


@dataclass(slots=True)
class Timings:
    """Measurements of one process. A profile takes `wanted` iterations after the first; with 0 there is none."""

    wanted: int = 3
    last: dict[PhaseKind, Timing] = field(default_factory=dict)
    _first: dict[PhaseKind, list[Timing]] = field(default_factory=lambda: {kind: [] for kind in PhaseKind})
    _switches: dict[PhaseKind, list[Timing]] = field(default_factory=lambda: {kind: [] for kind in PhaseKind})

    def add(self, kind: PhaseKind, timing: Timing) -> None:
        first, switches = self._first[kind], self._switches[kind]
        self.last[kind] = timing
        if timing.switched and len(first) and len(switches) < self.wanted:
            switches.append(timing)
        if len(first) <= self.wanted:
            first.append(timing)

    @property
    def is_measuring(self) -> bool:
        """Whether iterations that a profile needs are still to come."""
        return self.wanted > 0 and any(len(first) <= self.wanted for first in self._first.values())

    def profile(self, attempt: int, process_bytes: int | None = None) -> Profile | None:
        """What to tell the controller, once enough was measured."""
        if not self.wanted or self.is_measuring:
            return None
        rollout, train, sync = (max(each.body_s for each in first[1:]) for first in self._first.values())
        return Profile(
            attempt,
            max(rollout, SHORTEST_S),
            max(train, SHORTEST_S),
            sync,
            self._switch(PhaseKind.ROLLOUT),
            self._switch(PhaseKind.TRAIN),
            _most(each.state_bytes for each in self._first[PhaseKind.ROLLOUT]),
            _most(each.state_bytes for each in self._first[PhaseKind.TRAIN]),
            process_bytes,
        )

    def _switch(self, kind: PhaseKind) -> tuple[float, float] | None:
        seen = self._switches[kind]
        if len(seen) < self.wanted:
            return None
        return max(each.load_s for each in seen), max(each.offload_s for each in seen)


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)
