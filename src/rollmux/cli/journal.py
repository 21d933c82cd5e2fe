"""`rollmux journal`: what a controller has written down, played again. A file is read only while nobody writes it."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rollmux.cli import options
from rollmux.cli.options import AsJson, Folder, Token, Url, folder_of
from rollmux.cli.outputs import show
from rollmux.cli.refusals import why_not
from rollmux.cli.remote import remote
from rollmux.errors import RollmuxError
from rollmux.mux.cluster_machine import ClusterMachine, Entry
from rollmux.mux.codec import encode
from rollmux.mux.commands import Command
from rollmux.mux.events import Event
from rollmux.mux.story import story as told
from rollmux.protocol.views import Backup, Text
from rollmux.sim.policies import CONTENDERS

COPY_S = 600.0

journal_app = typer.Typer(
    no_args_is_help=True, help="Read a controller's journal, a file only while it does not run; copy it."
)


@journal_app.command()
def verify(as_json: AsJson = False, folder: Folder = None, url: options.JournalUrl = "") -> None:
    """Play every record again and say whether each leads to what it led to."""
    machine, begins = _played(folder, url)
    found = {
        "records": machine.state.ledger.seq - begins,
        "begins_after": begins,
        "jobs_live": len(machine.state.jobs),
        "jobs_ended": len(machine.state.ended),
    }
    says = "{records} records, all as they were; {jobs_live} jobs live, {jobs_ended} have ended."
    if begins:
        says += "\nThe history begins after record {begins_after}, with the state as it was then."
    show(found, as_json, says.format(**found))


@journal_app.command()
def story(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    as_json: AsJson = False,
    folder: Folder = None,
    url: options.JournalUrl = "",
) -> None:
    """Tell what happened to a job and why, from its submission on, as far as the history goes back."""
    machine, begins = _played(folder, url)
    lines = told(machine.log, job)
    if not lines:
        since = f" since record {begins}, after which its history begins" if begins else ""
        raise typer.BadParameter(f"the journal knows no job {job!r}{since}")
    show(Text(tuple(lines)), as_json, "\n".join(lines))


@journal_app.command()
def replay(
    as_json: Annotated[bool, typer.Option("--json", help="Print one list instead of a line for each.")] = False,
    folder: Folder = None,
    url: options.JournalUrl = "",
) -> None:
    """Print every event and what it led to, as JSON lines."""
    lines = [_line(entry) for entry in _played(folder, url)[0].log]
    if as_json:
        show(lines, as_json)
        return
    for line in lines:
        typer.echo(json.dumps(line))


@journal_app.command()
def backup(as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Have a controller that runs copy its journal, in a file, and its tokens to the folder `backup` within its own."""
    done = remote(url, token, folder, timeout_s=COPY_S).post(Backup, "/v1/backup")
    says = f"{done.folder} has all up to record {done.seq}, and is a folder that `rollmux serve` starts from."
    show(asdict(done), as_json, says)


def _line(entry: Entry) -> dict[str, Any]:
    commands = [encode(Command, command) for command in entry.commands]
    return {"seq": entry.seq, "at": entry.at, "event": encode(Event, entry.event), "commands": commands}


def _played(folder: Path | None, url: str) -> tuple[ClusterMachine, int]:
    """The machine after all of it, and the record after which the history begins."""
    from rollmux.service.journal.place import FILE, to_read  # noqa: PLC0415  other commands start faster without
    from rollmux.service.recovery import replayed  # noqa: PLC0415

    try:
        with closing(to_read(url, folder_of(folder) / FILE)) as journal:
            played = replayed(journal, lambda name: CONTENDERS[name].make(CONTENDERS[name].max_group, 0))
            return played, journal.begins()
    except (RollmuxError, OSError) as error:
        raise typer.BadParameter(why_not(error)) from error
