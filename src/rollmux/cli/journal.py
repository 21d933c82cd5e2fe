"""`rollmux journal`: plays again what a controller has written down. A file is read only while nobody writes it."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rollmux.cli import options
from rollmux.cli.options import AsJson, Folder, Token, Url, folder_of
from rollmux.cli.outputs import show
from rollmux.cli.refusals import all_refusals, nearest
from rollmux.cli.remote import remote
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
    """Play every record again, and check that each leads to the same as it did."""
    with _history(folder, url) as (machine, entries, begins):
        records = sum(1 for _ in entries)
    found = {
        "records": records,
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
    with _history(folder, url) as (machine, entries, begins):
        lines = told(entries, job)
    if not lines:
        since = f" since record {begins}, after which its history begins" if begins else ""
        known = (*machine.state.jobs, *machine.state.ended)
        raise typer.BadParameter(f"the journal knows no job {job!r}{since}{nearest(job, known)}")
    show(Text(tuple(lines)), as_json, "\n".join(lines))


@journal_app.command()
def replay(
    as_json: Annotated[bool, typer.Option("--json", help="Print one list instead of a line for each.")] = False,
    folder: Folder = None,
    url: options.JournalUrl = "",
) -> None:
    """Print every event and what it led to, as JSON lines."""
    with _history(folder, url) as (_, entries, _):
        if as_json:
            show([_line(entry) for entry in entries], as_json)
        else:
            for entry in entries:
                typer.echo(json.dumps(_line(entry)))


@journal_app.command()
def backup(as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Have a controller at work copy its journal, if in a file, and its tokens to the folder `backup` in its own."""
    done = remote(url, token, folder, timeout_s=COPY_S).post(Backup, "/v1/backup")
    says = f"{done.folder} has all up to record {done.seq}, and is a folder that `rollmux serve` starts from."
    show(asdict(done), as_json, says)


def _line(entry: Entry) -> dict[str, Any]:
    commands = [encode(Command, command) for command in entry.commands]
    return {"seq": entry.seq, "at": entry.at, "event": encode(Event, entry.event), "commands": commands}


@contextmanager
def _history(folder: Path | None, url: str) -> Iterator[tuple[ClusterMachine, Iterator[Entry], int]]:
    """A machine, the records that are played on it as they are read, and the record after which the history begins."""
    from rollmux.service.journal.place import FILE, to_read  # noqa: PLC0415  other commands start faster without
    from rollmux.service.recovery import replayed  # noqa: PLC0415

    with all_refusals(), closing(to_read(url, folder_of(folder) / FILE)) as journal:
        machine, entries = replayed(journal, lambda name: CONTENDERS[name].make(CONTENDERS[name].max_group, 0))
        yield machine, entries, journal.begins()
