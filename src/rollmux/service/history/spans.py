"""Phases as they are granted, begin and end; and the node-seconds that they hold, by what is done in them."""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from rollmux.mux.commands import Lease

# How many phases are remembered: an hour of ten phases a second, some 10 MB.
MOST_SPANS = 36_000

# What is done on a node that is held.
SWITCH, BUSY, LOST = "switch", "busy", "lost"
Use = tuple[str, float, float]  # a node, from when to when


class Span(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A phase that is over. There are so many of them that the garbage collector is to leave them alone."""

    epoch: int
    job: str
    group: str
    kind: str
    iteration: int
    attempt: int
    uses: tuple[Use, ...]
    waited_s: float
    began: float
    started: float | None
    ended: float
    load: bool
    resumed: bool
    how: str
    fenced: bool


class Open(msgspec.Struct):
    """A phase under its lease."""

    epoch: int
    job: str
    group: str
    kind: str
    pool: str  # of its nodes
    iteration: int
    attempt: int
    nodes: dict[str, float]  # the nodes that it holds, and since when
    waited_s: float
    began: float
    load: bool
    resumed: bool
    does: str = SWITCH
    counted_to: float = 0.0  # its node-seconds are in the books up to here
    started: float | None = None
    given_back: list[Use] = []

    @staticmethod
    def of(lease: Lease, kind: str, group: str, pool: str, now: float, waited_s: float) -> "Open":
        nodes = dict.fromkeys(lease.nodes, now)
        return Open(
            lease.epoch,
            lease.job_id,
            group,
            kind,
            pool,
            lease.iteration,
            lease.attempt,
            nodes,
            waited_s,
            now,
            lease.load,
            lease.resumed,
            counted_to=now,
        )


Count = Callable[[str, str, str, float], None]  # job, pool, what is done, node-seconds


class Spans:
    """The phases under way, and the latest that are over."""

    def __init__(self, count: Count) -> None:
        self.open: dict[int, Open] = {}
        self.over: deque[Span] = deque(maxlen=MOST_SPANS)
        self.waits: dict[tuple[str, str], float] = {}  # since when a job's phase waits
        self._count = count

    def asked(self, job: str, kind: str, now: float) -> None:
        self.waits[job, kind] = now

    def waited(self, job: str, kind: str, now: float) -> float:
        """Ends the wait of a phase; returns how long it has waited."""
        return now - self.waits.pop((job, kind), now)

    def begin(self, span: Open) -> None:
        self.open[span.epoch] = span

    def does(self, span: Open, what: str, now: float) -> None:
        """From now on this is done on the phase's nodes."""
        self._settle(span, now)
        span.does = what

    def holds(self, span: Open, nodes: Iterable[str], now: float) -> bool:
        """From now on the phase holds these nodes; returns whether they are others than before."""
        wanted = dict.fromkeys(nodes)
        if wanted.keys() == span.nodes.keys():
            return False
        self._settle(span, now)
        span.given_back += [(node, since, now) for node, since in span.nodes.items() if node not in wanted]
        span.nodes = {node: span.nodes.get(node, now) for node in wanted}
        return True

    def end(self, epoch: int, how: str, now: float) -> Span | None:
        """Ends a phase, which holds nothing any more; None if it is not under way."""
        span = self.open.pop(epoch, None)
        if span is None:
            return None
        self._settle(span, now)
        fenced = span.does == LOST
        uses = (*span.given_back, *((node, since, now) for node, since in span.nodes.items()))
        over = Span(
            span.epoch,
            span.job,
            span.group,
            span.kind,
            span.iteration,
            span.attempt,
            uses,
            span.waited_s,
            span.began,
            span.started,
            now,
            span.load,
            span.resumed,
            "fenced" if fenced else how,
            fenced,
        )
        self.over.append(over)
        return over

    def forget_waits(self, job: str) -> None:
        for key in [key for key in self.waits if key[0] == job]:
            del self.waits[key]

    def _settle(self, span: Open, now: float) -> None:
        if span.nodes:
            self._count(span.job, span.pool, span.does, (now - span.counted_to) * len(span.nodes))
        span.counted_to = now
