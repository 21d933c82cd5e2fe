"""The trace holds every span, under the right names, in an order that viewers accept."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.report.lanes import natural
from rollmux.report.trace import chrome_trace
from rollmux.sim.outcome import Outcome, Span
from tests.report.runs import nothing, run


def events(outcome: Outcome, phase: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome_trace(outcome))["traceEvents"]
    return [event for event in found if event["ph"] == phase]


def names(outcome: Outcome, what: str) -> dict[tuple[int, int], str]:
    found = [event for event in events(outcome, "M") if event["name"] == what]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in found}


def test_each_span_is_one_complete_event_on_the_track_of_its_node_in_the_process_of_its_group() -> None:
    outcome = run()
    processes, threads = names(outcome, "process_name"), names(outcome, "thread_name")
    found = [
        (threads[event["pid"], event["tid"]], processes[event["pid"], 0], event["name"], event["ts"], event["dur"])
        for event in events(outcome, "X")
    ]
    wanted = [
        (s.node, s.group, f"{s.job} {s.kind}", round(s.start_s * 1e6), round((s.end_s - s.start_s) * 1e6))
        for s in outcome.spans
    ]
    assert sorted(found) == sorted(wanted)


def test_groups_and_nodes_stand_in_the_order_of_their_numbers() -> None:
    spans = tuple(Span(f"rollout-{n}", f"group-{n}", "a", "rollout", 0.0, 1.0, 0) for n in (10, 9, 2))
    outcome = replace(nothing(), spans=spans)
    assert list(names(outcome, "process_name").values()) == ["cluster (none)", "group-2", "group-9", "group-10"]
    assert list(names(outcome, "thread_name").values()) == ["rollout-2", "rollout-9", "rollout-10"]


def test_what_happens_is_sorted_in_time_after_all_names() -> None:
    found = json.loads(chrome_trace(run()))["traceEvents"]
    phases = [event["ph"] for event in found]
    assert "M" not in phases[phases.index(next(phase for phase in phases if phase != "M")) :]
    times = [event["ts"] for event in found if event["ph"] != "M"]
    assert times == sorted(times)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20))
def test_spans_that_do_not_overlap_give_events_that_do_not(steps: list[tuple[float, float]]) -> None:
    spans = []
    now = 0.0
    for gap, long in steps:
        spans.append(Span("node", "group", "job", "train", now + gap, now + gap + long, 0))
        now = now + gap + long
    found = events(replace(nothing(), spans=tuple(reversed(spans))), "X")
    assert len(found) == len(spans)
    assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(found))


def test_a_job_has_one_colour_wherever_it_runs() -> None:
    colours: dict[str, set[str]] = {}
    for event in events(run(), "X"):
        colours.setdefault(event["args"]["job"], set()).add(event["cname"])
    assert set(colours) == {"a-2", "a-10", "b-1", "b-2"}
    assert all(len(found) == 1 for found in colours.values())


def test_counters_follow_the_levels() -> None:
    outcome = run()
    found = events(outcome, "C")
    assert {event["name"] for event in found} == {"nodes", "USD per hour", "jobs"}
    nodes = [(event["ts"], event["args"]) for event in found if event["name"] == "nodes"]
    wanted = [(round(at.at_s * 1e6), {"rollout": at.rollout_nodes, "train": at.train_nodes}) for at in outcome.levels]
    assert nodes == wanted
    usd = [event["args"]["usd"] for event in found if event["name"] == "USD per hour"]
    assert usd == [level.usd_per_hour for level in outcome.levels]


def test_admissions_carry_their_reasons() -> None:
    outcome = run()
    assert [event["args"]["why"] for event in events(outcome, "i")] == [list(one.why) for one in outcome.admissions]


def test_a_run_without_history_is_still_a_trace() -> None:
    found = json.loads(chrome_trace(nothing()))["traceEvents"]
    assert [event["ph"] for event in found] == ["M", "M"]


def test_the_same_run_gives_the_same_trace_whatever_the_order_of_its_spans() -> None:
    outcome = run()
    assert chrome_trace(outcome) == chrome_trace(replace(outcome, spans=tuple(reversed(outcome.spans))))


@pytest.mark.parametrize(
    ("unsorted", "wanted"),
    [
        (["n-10", "n-9", "n"], ["n", "n-9", "n-10"]),
        (["1", "a", "01"], ["01", "1", "a"]),
        (["b2a10", "b2a9", "²"], ["b2a9", "b2a10", "²"]),
    ],
)
def test_numbers_in_names_count_as_numbers(unsorted: list[str], wanted: list[str]) -> None:
    assert sorted(unsorted, key=natural) == wanted
