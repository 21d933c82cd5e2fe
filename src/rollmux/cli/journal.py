"""`rollmux journal`: what a controller that does not run has written down, played again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rollmux.cli.remote import Folder, folder_of
from rollmux.errors import RollmuxError
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.codec import encode
from rollmux.mux.commands import Command
from rollmux.mux.events import Event
from rollmux.mux.story import story as told
from rollmux.sim.policies import CONTENDERS

journal_app = typer.Typer(no_args_is_help=True, help="Read the journal of a controller that does not run.")


@journal_app.command()
def verify(folder: Folder = None) -> None:
    """Play every record again and say whether each leads to what it led to."""
    machine = _played(folder)
    jobs, ended = len(machine.state.jobs), len(machine.state.ended)
    typer.echo(f"{machine.state.ledger.seq} records, all as they were; {jobs} jobs live, {ended} have ended.")


@journal_app.command()
def story(job: Annotated[str, typer.Argument(metavar="JOB")], folder: Folder = None) -> None:
    """Tell what happened to a job and why, from its submission on."""
    lines = told(_played(folder).log, job)
    if not lines:
        raise typer.BadParameter(f"the journal knows no job {job!r}")
    typer.echo("\n".join(lines))


@journal_app.command()
def replay(folder: Folder = None) -> None:
    """Print every event and what it led to, as JSON lines."""
    for entry in _played(folder).log:
        commands = [encode(Command, command) for command in entry.commands]
        line = {"seq": entry.seq, "at": entry.at, "event": encode(Event, entry.event), "commands": commands}
        typer.echo(json.dumps(line))


def _played(folder: Path | None) -> ClusterMachine:
    from rollmux.service.journal import SqliteJournal  # noqa: PLC0415  other commands start faster without
    from rollmux.service.recovery import replayed  # noqa: PLC0415

    path = folder_of(folder) / "journal.db"
    if not path.is_file():
        raise typer.BadParameter(f"there is no journal {path}; say --folder")
    try:
        journal = SqliteJournal(path)
        try:
            return replayed(journal, lambda name: CONTENDERS[name].make(CONTENDERS[name].max_group, 0))
        finally:
            journal.close()
    except RollmuxError as error:
        raise typer.BadParameter(str(error)) from error
