"""Spans sorted into lanes: by group, then by node, then by time. Numbers in names are sorted as numbers."""

import re
from collections.abc import Iterable

from rollmux.sim.outcome import Span

Lanes = dict[str, dict[str, list[Span]]]  # group, node: its spans in time


def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    """A sort key by which `node-9` stands before `node-10`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), name


def sorted_lanes(spans: Iterable[Span]) -> Lanes:
    """The lanes of every group; groups and nodes in natural order."""
    found: Lanes = {}
    for span in spans:
        found.setdefault(span.group, {}).setdefault(span.node, []).append(span)
    lanes: Lanes = {}
    for group in sorted(found, key=natural):
        nodes = found[group]
        lanes[group] = {node: sorted(nodes[node], key=_in_time) for node in sorted(nodes, key=natural)}
    return lanes


def _in_time(span: Span) -> tuple[float, float, str, str, int]:
    return span.start_s, span.end_s, span.job, span.kind, span.iteration
