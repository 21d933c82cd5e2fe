"""Options that several commands which simulate have, and what they say of what they show: each once."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from rollmux.mux.validation import MAX_SPARES
from rollmux.sim.policies import COLOCATED, OPTIMAL, played_paced
from rollmux.sim.realised import BOUND, DISTRIBUTIONS
from rollmux.sim.replay import Accounting

EndedBy = Annotated[Accounting, typer.Option(help="What ends a job: its work, or its time alone.")]
Hours = Annotated[float | None, typer.Option(help="Over how many hours they arrive.")]
MaxGroup = Annotated[int, typer.Option(min=0, max=16, help="The most jobs in a group; 0 for each policy's own.")]
MoveS = Annotated[float, typer.Option(min=0.0, help="Work that a move loses.")]
PauseS = Annotated[
    float, typer.Option(help="What a pause costs phases whose workload doesn't say, in seconds; below 0 none pauses.")
]
Spares = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_SPARES, help="Spare nodes of rollouts whose workload names none: they run on whichever is free."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write it: a .csv or .parquet file.")]
Realised = Annotated[str, typer.Option(metavar="D", help=f"How long phases really take: {', '.join(DISTRIBUTIONS)}.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed draws the same workload.")]

# What the names of two columns do not tell.
OVER_FLUID = "× fluid: cost over that of the work alone, if no node were ever idle."
OVER_WHOLE_NODE = "× whole-node: cost over that of the work alone, in whole nodes at each moment."


def notes_on(policies: Sequence[str], realised: str, *, struck: bool = False) -> Iterator[str]:
    """What figures of these policies don't tell by themselves. `struck`: faults were asked for."""
    if COLOCATED in policies:
        yield (
            f"{COLOCATED}: SLOs are of each job's own time on training nodes alone, "
            "which may be more than its time on nodes of both kinds."
        )
    if struck and OPTIMAL in policies:
        yield f"{OPTIMAL} meets no faults: neither nodes nor jobs fail there."
    paced = ", ".join(name for name in policies if played_paced(name))
    if paced and realised != BOUND:
        yield (
            f"--realised {realised} does not apply to {paced}, which plays no single phase; "
            "there every phase takes its bound, so costs are not to be compared."
        )


def note_paced(policies: Sequence[str], realised: str) -> None:
    """Says, on standard error and ahead, for which of these policies real durations are asked for in vain."""
    for note in notes_on([name for name in policies if played_paced(name)], realised):
        typer.echo(f"Note: {note}", err=True)
