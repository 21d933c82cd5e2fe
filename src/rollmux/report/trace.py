"""A run, simulated or real, as a Chrome trace, for chrome://tracing and Perfetto.

One process per group, one thread per node, one complete event per span; counters and admissions are in a process of
their own, the cluster. Times are whole microseconds, rounded so that spans that did not overlap still do not.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from zlib import crc32

from rollmux.report.lanes import sorted_lanes
from rollmux.sim.outcome import Admission, Level, Outcome, Span

Event = dict[str, Any]

_CLUSTER = 1  # the process of counters and admissions; groups follow
# Colour names that the Chrome viewer knows; Perfetto colours by the event's name instead.
_COLOURS = (
    "thread_state_running",
    "thread_state_iowait",
    "thread_state_runnable",
    "rail_response",
    "rail_animation",
    "rail_idle",
    "rail_load",
    "cq_build_passed",
    "cq_build_attempt_failed",
    "generic_work",
    "good",
    "bad",
)


def chrome_trace(outcome: Outcome) -> str:
    """The trace-event JSON of one simulated run."""
    about = {"policy": outcome.policy}
    return trace_of(outcome.policy, outcome.spans, about, outcome.levels, outcome.admissions)


def trace_of(
    what: str,
    spans: Sequence[Span],
    about: Mapping[str, object],
    levels: Sequence[Level] = (),
    admissions: Sequence[Admission] = (),
) -> str:
    """The trace-event JSON of these spans, levels and admissions: names first, then all events in time."""
    names = [*_naming("process", _CLUSTER, 0, f"cluster ({what})", 0)]
    happenings: list[Event] = []
    for level in levels:
        happenings.extend(_counters(level))
    if admissions:
        names.extend(_naming("thread", _CLUSTER, 1, "admissions", 0))
        happenings.extend(map(_admitted, admissions))
    tracks = count(2)
    for pid, (group, nodes) in enumerate(sorted_lanes(spans).items(), _CLUSTER + 1):
        names.extend(_naming("process", pid, 0, group, pid))
        for node, lane in nodes.items():
            track = next(tracks)
            names.extend(_naming("thread", pid, track, node, track))
            happenings.extend(_complete(span, pid, track) for span in lane)
    happenings.sort(key=_in_time)
    document = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": names + happenings}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _in_time(event: Event) -> tuple[int, int, int, int]:
    return event["ts"], event["pid"], event["tid"], event.get("dur", 0)


def _naming(what: str, pid: int, tid: int, name: str, place: int) -> tuple[Event, Event]:
    """The metadata events that name a process or a thread, and give its place in the list."""
    where = {"ph": "M", "pid": pid, "tid": tid}
    return (
        {"name": f"{what}_name", **where, "args": {"name": name}},
        {"name": f"{what}_sort_index", **where, "args": {"sort_index": place}},
    )


def _complete(span: Span, pid: int, tid: int) -> Event:
    start = _us(span.start_s)
    return {
        "name": f"{span.job} {span.kind}",
        "cat": span.kind,
        "ph": "X",
        "ts": start,
        "dur": _us(span.end_s) - start,
        "pid": pid,
        "tid": tid,
        "cname": _COLOURS[crc32(span.job.encode("utf-8", "backslashreplace")) % len(_COLOURS)],
        "args": {"job": span.job, "kind": span.kind, "iteration": span.iteration},
    }


def _counters(level: Level) -> tuple[Event, ...]:
    values = {
        "nodes": {"rollout": level.rollout_nodes, "train": level.train_nodes},
        "USD per hour": {"usd": level.usd_per_hour},
        "jobs": {"running": level.running, "waiting": level.waiting},
    }
    where = {"ph": "C", "ts": _us(level.at_s), "pid": _CLUSTER, "tid": 0}
    return tuple({"name": name, **where, "args": args} for name, args in values.items())


def _admitted(admission: Admission) -> Event:
    return {
        "name": f"{admission.job} {admission.strategy}",
        "cat": "admission",
        "ph": "i",
        "s": "t",
        "ts": _us(admission.at_s),
        "pid": _CLUSTER,
        "tid": 1,
        "args": {
            "job": admission.job,
            "group": admission.group,
            "added_usd_per_hour": admission.added_usd_per_hour,
            "why": list(admission.why),
        },
    }
