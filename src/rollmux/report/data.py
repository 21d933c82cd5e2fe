"""Runs as the page's script reads them: plain columns; each time is whole milliseconds since the time before it.

A run has two documents: its `facts`, which the page reads when it opens, and its `timeline`, which may be large and
which the page reads when somebody first looks at it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

from rollmux.report.lanes import natural, sorted_lanes
from rollmux.sim.outcome import JobOutcome, Level, Outcome, PoolHours, Span

KINDS = ("rollout", "train", "tail", "switch")


def labels(outcomes: Sequence[Outcome]) -> list[str]:
    """The name of each run: its policy, numbered if several runs have the same policy."""
    taken: set[str] = set()
    names = []
    for outcome in outcomes:
        name, number = outcome.policy, 1
        while name in taken:
            number += 1
            name = f"{outcome.policy} ({number})"
        taken.add(name)
        names.append(name)
    return names


def facts(label: str, outcome: Outcome) -> dict[str, Any]:
    """All that is known of a run but its spans."""
    levels = _lasting(outcome.levels)
    admissions = sorted(outcome.admissions, key=lambda admission: admission.at_s)
    return {
        "name": label,
        "usd_total": _number(outcome.usd_total),
        "makespan_h": _number(outcome.makespan_h),
        "pools": {"rollout": _pool(outcome.rollout), "training": _pool(outcome.train)},
        "jobs": {
            **{field.name: [_plain(getattr(job, field.name)) for job in outcome.jobs] for field in fields(JobOutcome)},
            "met": [int(job.met) for job in outcome.jobs],
        },
        "levels": {
            "at_ms": deltas(level.at_s for level in levels),
            "rollout_nodes": [level.rollout_nodes for level in levels],
            "train_nodes": [level.train_nodes for level in levels],
            "usd_per_hour": [_number(level.usd_per_hour) for level in levels],
            "running": [level.running for level in levels],
            "waiting": [level.waiting for level in levels],
        },
        "admissions": {
            "at_ms": deltas(admission.at_s for admission in admissions),
            "job": [admission.job for admission in admissions],
            "group": [admission.group for admission in admissions],
            "strategy": [admission.strategy for admission in admissions],
            "added_usd_per_hour": [_number(admission.added_usd_per_hour) for admission in admissions],
            "why": [admission.why for admission in admissions],
        },
        "has_spans": bool(outcome.spans),
    }


def timeline(outcome: Outcome) -> dict[str, Any]:
    """The spans of a run: each lane has its own columns, and a name is an index into a table of all names."""
    others = {span.kind for span in outcome.spans} - set(KINDS)
    jobs = {name: place for place, name in enumerate(sorted({span.job for span in outcome.spans}, key=natural))}
    kinds = {name: place for place, name in enumerate((*KINDS, *sorted(others)))}
    groups = [
        {"name": group, "lanes": [{"node": node, **_columns(spans, jobs, kinds)} for node, spans in nodes.items()]}
        for group, nodes in sorted_lanes(outcome.spans).items()
    ]
    return {"jobs": list(jobs), "kinds": list(kinds), "groups": groups}


def script_json(document: object) -> str:
    """JSON that can stand in a script element: no character in it means anything to HTML."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def deltas(seconds: Iterable[float]) -> list[int]:
    """The milliseconds of each time since the time before it; the first is since zero."""
    last = 0
    steps = []
    for time_s in seconds:
        now = _ms(time_s)
        steps.append(now - last)
        last = now
    return steps


def _lasting(levels: Iterable[Level]) -> list[Level]:
    """The levels in time; of several in one millisecond only the last, as the others were never paid for."""
    return list({_ms(level.at_s): level for level in sorted(levels, key=lambda level: level.at_s)}.values())


def _columns(spans: Iterable[Span], jobs: dict[str, int], kinds: dict[str, int]) -> dict[str, list[int]]:
    """A lane's columns: the gap after the span before, the length, the job, the kind, and how much the job's iteration
    grew."""
    last = 0
    iterations: dict[str, int] = {}
    columns: dict[str, list[int]] = {"gap": [], "long": [], "job": [], "kind": [], "step": []}
    for span in spans:
        start, end = _ms(span.start_s), _ms(span.end_s)
        row = (start - last, end - start, jobs[span.job], kinds[span.kind])
        for column, value in zip(columns.values(), (*row, span.iteration - iterations.get(span.job, 0)), strict=True):
            column.append(value)
        last = end
        iterations[span.job] = span.iteration
    return columns


def _pool(hours: PoolHours) -> dict[str, float | None]:
    return {field.name: _number(getattr(hours, field.name)) for field in fields(PoolHours)}


def _plain(value: str | float) -> str | float | None:
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> float | None:
    """The value to six decimals; JSON has no infinity, so that becomes a missing value."""
    return round(value, 6) if isfinite(value) else None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
