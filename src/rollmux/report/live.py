"""Turns a controller's history into spans like those of a simulated run: both are drawn in the same way."""

from collections.abc import Iterator

from rollmux.protocol.history import HistoryView, SpanView, UseView
from rollmux.sim.outcome import Span

# State that is moved off nodes, or onto them before a phase; and nodes whose holder has lost its lease.
SWITCH, LOST = "switch", "lost"


def spans_of(history: HistoryView) -> tuple[Span, ...]:
    """What each node did since the history begins; what still goes on ends at the history's `now`."""
    return tuple(
        span
        for view in history.spans
        for use in view.uses
        for span in _parts(view, use, history.since_s, history.now)
        if span.end_s > span.start_s
    )


def _parts(view: SpanView, use: UseView, since_s: float, now: float) -> Iterator[Span]:
    """The spans of one lease on one node: the state moves in, if it must; then the phase goes on."""
    ended_s = now if use.ended_s is None else use.ended_s
    started_s = (ended_s if view.load else view.began_s) if view.started_s is None else view.started_s
    kind = LOST if view.fenced else SWITCH if view.kind == "offload" else view.kind
    if view.load:
        yield _span(view, use, SWITCH, max(use.began_s, since_s), min(started_s, ended_s))
    else:
        started_s = use.began_s
    yield _span(view, use, kind, max(use.began_s, started_s, since_s), ended_s)


def _span(view: SpanView, use: UseView, kind: str, start_s: float, end_s: float) -> Span:
    return Span(use.node, view.group, view.job, kind, start_s, end_s, view.iteration)
