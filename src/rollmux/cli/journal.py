"""`rollmux journal`: what a controller that does not run has written down, played again."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rollmux.cli.outputs import show
from rollmux.cli.remote import AsJson, Folder, folder_of
from rollmux.errors import RollmuxError
from rollmux.mux.cluster_machine import ClusterMachine, Entry
from rollmux.mux.codec import encode
from rollmux.mux.commands import Command
from rollmux.mux.events import Event
from rollmux.mux.story import story as told
from rollmux.protocol.views import Text
from rollmux.sim.policies import CONTENDERS

journal_app = typer.Typer(no_args_is_help=True, help="Read the journal of a controller that does not run.")


@journal_app.command()
def verify(as_json: AsJson = False, folder: Folder = None) -> None:
    """Play every record again and say whether each leads to what it led to."""
    machine = _played(folder)
    found = {
        "records": machine.state.ledger.seq,
        "jobs_live": len(machine.state.jobs),
        "jobs_ended": len(machine.state.ended),
    }
    says = "{records} records, all as they were; {jobs_live} jobs live, {jobs_ended} have ended."
    show(found, as_json, says.format(**found))


@journal_app.command()
def story(job: Annotated[str, typer.Argument(metavar="JOB")], as_json: AsJson = False, folder: Folder = None) -> None:
    """Tell what happened to a job and why, from its submission on."""
    lines = told(_played(folder).log, job)
    if not lines:
        raise typer.BadParameter(f"the journal knows no job {job!r}")
    show(Text(tuple(lines)), as_json, "\n".join(lines))


@journal_app.command()
def replay(
    as_json: Annotated[bool, typer.Option("--json", help="Print one list instead of a line for each.")] = False,
    folder: Folder = None,
) -> None:
    """Print every event and what it led to, as JSON lines."""
    lines = [_line(entry) for entry in _played(folder).log]
    if as_json:
        show(lines, as_json)
        return
    for line in lines:
        typer.echo(json.dumps(line))


def _line(entry: Entry) -> dict[str, Any]:
    commands = [encode(Command, command) for command in entry.commands]
    return {"seq": entry.seq, "at": entry.at, "event": encode(Event, entry.event), "commands": commands}


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
