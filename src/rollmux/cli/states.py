"""`rollmux states`: `docs/states.md`, made from the transition tables."""

from collections.abc import Mapping
from enum import Enum

import typer

from rollmux.mux.transitions import JOBS, PHASES, Job, JobOn, On, Phase

_HEAD = """# States

Made from the tables in `src/rollmux/mux/transitions.py` by `rollmux states`; a test keeps it true. What is not here is
illegal: it raises `IllegalEvent`, and nothing changes.
"""


def states() -> None:
    """Print the states of phases and jobs, as in docs/states.md."""
    typer.echo(_page(), nl=False)


def _page() -> str:
    gone = "From every state, `the attempt is gone` leads to `idle`; it is left out of the diagram."
    phases = {key: state for key, state in PHASES.items() if key[1] is not On.GONE}
    parts = [
        _HEAD,
        _section("A phase of a running job", phases, Phase.IDLE, gone),
        _section("A job", JOBS, Job.QUEUED, "A job is queued when it is submitted, if only for an instant."),
    ]
    return "\n".join(parts)


def _section(
    title: str, table: Mapping[tuple[Phase, On], Phase] | Mapping[tuple[Job, JobOn], Job], first: Enum, note: str
) -> str:
    rows = [(before.value, on.value, after.value) for (before, on), after in table.items()]
    lines = [f"## {title}", "", note, "", "```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, on, after in rows:
        arrows.setdefault((before, after), []).append(on)
    lines += [f"    {before} --> {after}: {' / '.join(ons)}" for (before, after), ons in arrows.items()]
    lines += ["```", "", "| state | when | next |", "|---|---|---|"]
    lines += [f"| {before} | {on} | {after} |" for before, on, after in rows]
    return "\n".join([*lines, ""])
