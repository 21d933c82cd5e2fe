"""Spans of a live history: nothing that a node did is lost or told twice, and nothing lies outside of its use."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollmux.protocol.history import HistoryView, SpanView, UseView
from rollmux.report.live import spans_of

NOW = 100.0


def lease(began: float = 10.0, ended: float | None = 40.0, **more: Any) -> SpanView:
    usual: dict[str, Any] = {"kind": "rollout", "started_s": 20.0, "load": True, "resumed": False, "how": "finished"}
    uses = more.pop("uses", (UseView("rollout-0", began, ended),))
    said = {**usual, "iteration": 3, "attempt": 1, "waited_s": 0.0, **more}
    return SpanView(1, "a", "group-0", uses=uses, began_s=began, ended_s=ended, **said)


def told(*spans: SpanView, since_s: float = 0.0) -> list[tuple[str, str, float, float]]:
    history = HistoryView(NOW, 1, since_s, 0.0, spans, (), ())
    return [(span.node, span.kind, span.start_s, span.end_s) for span in spans_of(history)]


def test_state_that_is_moved_in_is_a_switch_before_the_phase() -> None:
    assert told(lease()) == [("rollout-0", "switch", 10.0, 20.0), ("rollout-0", "rollout", 20.0, 40.0)]
    assert told(lease(load=False)) == [("rollout-0", "rollout", 10.0, 40.0)]


def test_what_goes_on_ends_now_and_what_was_not_begun_was_all_switch() -> None:
    assert told(lease(ended=None)) == [("rollout-0", "switch", 10.0, 20.0), ("rollout-0", "rollout", 20.0, NOW)]
    assert told(lease(ended=None, started_s=None)) == [("rollout-0", "switch", 10.0, NOW)]


def test_nodes_that_a_tail_gave_back_early_end_early() -> None:
    uses = (UseView("rollout-0", 10.0, 25.0), UseView("rollout-1", 10.0, 40.0))
    assert [each for each in told(lease(uses=uses)) if each[1] == "rollout"] == [
        ("rollout-0", "rollout", 20.0, 25.0),
        ("rollout-1", "rollout", 20.0, 40.0),
    ]


def test_a_holder_without_a_lease_and_state_that_leaves_are_named_so() -> None:
    assert told(lease(fenced=True, load=False)) == [("rollout-0", "lost", 10.0, 40.0)]
    assert told(lease(kind="offload", load=False)) == [("rollout-0", "switch", 10.0, 40.0)]


times = st.floats(0, NOW)


@given(times, times, st.none() | times, st.booleans(), st.booleans(), times, times)
def test_the_parts_of_a_use_add_up_to_it(
    began: float, ended: float, started: float | None, load: bool, fenced: bool, late: float, since_s: float
) -> None:
    began, ended = sorted((began, ended))
    use = UseView("rollout-0", min(max(began, late), ended), ended)
    if started is not None:
        started = min(max(began, started), ended)
    found = told(lease(began, ended, started_s=started, load=load, fenced=fenced, uses=(use,)), since_s=since_s)
    first = max(use.began_s, since_s)
    assert (
        sum(end - start for _, _, start, end in found) == max(0.0, ended - first)
        or abs(sum(end - start for _, _, start, end in found) - max(0.0, ended - first)) < 1e-9
    )
    assert all(first <= start < end <= ended for _, _, start, end in found)
