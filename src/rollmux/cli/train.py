"""`rollmux train`: runs a training job here, alone or, as a job of a controller, woven with others."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rollmux.cli.options import Changes
from rollmux.cli.outputs import console, require_folder
from rollmux.cli.refusals import refusals, run_refusals, torch_wanted
from rollmux.client import connect
from rollmux.trainer.job_file import read_job_file, written_job
from rollmux.trainer.settings import JobFile
from rollmux.trainer.summary import in_words

if TYPE_CHECKING:
    from rollmux.trainer.job import WarmedUp
    from rollmux.trainer.metrics import Tracker

# How many lines of a warm-up are printed, beside the last, if standard error is no terminal.
LINES = 10


def train(
    job: Annotated[Path, typer.Argument(metavar="FILE", help="The training job, as in examples/train.")],
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="For metrics, checkpoints and the model; runs/NAME if not given."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, help="The updates to be made in all; 0 for as many as the file says.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds, if anything.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER", help="Tell it each step: wandb, tensorboard, mlflow, trackio, or module:function."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look through it all, and print the whole job; nothing is trained.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each step.")] = False,
) -> None:
    """Train a model by reinforcement: roll out, update, sync, step after step, with a checkpoint after each."""
    with refusals():
        settings = read_job_file(job, changes or ())
    out = out or Path("runs", settings.name)
    if not dry_run:
        require_folder("--out", out)
    settings = replace(settings, steps=steps or settings.steps)
    with torch_wanted():
        from rollmux.trainer import job as training  # noqa: PLC0415  it needs torch
        from rollmux.trainer.tracking import Tracking  # noqa: PLC0415  as above
    with run_refusals(), ExitStack() as stack:
        shown = sys.stdout
        if track:
            stack.enter_context(redirect_stdout(sys.stderr))  # programs may read stdout: trackers don't print there
        trackers = [stack.enter_context(Tracking(name, settings, out)) for name in track or ()]
        if dry_run:
            training.look_through(settings)
            whole = json.dumps(asdict(settings), indent=1) if as_json else written_job(settings)
            typer.echo(whole, shown, nl=as_json)
            return
        warmed_up = stack.enter_context(_bar(settings, shown=not as_json))
        mux = stack.enter_context(connect(url=_controller()))
        heard_by: list[Tracker] = [_tracker(settings, as_json, shown), *trackers]
        stack.enter_context(_may_be_stopped(out))
        found = training.train(settings, out, mux, resume, heard_by, warmed_up)
    if found is not None and not as_json:
        typer.echo("\n".join([*in_words(found), f"Written: {out}"]))


@contextmanager
def _may_be_stopped(out: Path) -> Iterator[None]:
    """Says at Ctrl-C how to go on from the last checkpoint: only what came after it is lost."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped. What is done is in {out}; with --resume the same command goes on from there.", err=True)
        raise


def _controller() -> str:
    """The URL of the controller whose job this is, else "": a shell may name a controller that knows nothing of it."""
    url = os.environ.get("ROLLMUX_URL", "")
    if not url or os.environ.get("ROLLMUX_JOB"):
        return url
    typer.echo(f"This trains without the controller at {url}, for ROLLMUX_JOB names no job of it.", err=True)
    return ""


def _tracker(settings: JobFile, as_json: bool, file: IO[str]) -> "Tracker":
    from rollmux.trainer.metrics import on_console  # noqa: PLC0415  it imports samples, and so torch

    if as_json:
        return lambda step, found: typer.echo(json.dumps(dict(found)), file)
    return on_console(console(file), settings.steps)


@contextmanager
def _bar(settings: JobFile, shown: bool) -> Iterator["WarmedUp"]:
    """Shows how far the warm-up is, if there is one: by a bar in a terminal, else by a line every now and then."""
    screen = Console(stderr=True)
    if shown and not screen.is_terminal:
        yield _lines(settings.warmup.steps)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=screen, transient=True, disable=not shown)
    task = bar.add_task("warm-up", total=settings.warmup.steps)

    def warmed_up(step: int, loss: float) -> None:
        bar.update(task, completed=step + 1, description=f"warm-up, loss {loss:.2f}")
        if step + 1 < settings.warmup.steps:
            bar.start()
        else:
            bar.stop()

    try:
        yield warmed_up
    finally:
        bar.stop()


def _lines(steps: int) -> "WarmedUp":
    """Prints lines of the warm-up to a file or a pipe, on standard error: programs may read the steps' lines."""
    every = -(-steps // LINES)

    def warmed_up(step: int, loss: float) -> None:
        if step % every == 0 or step + 1 == steps:
            typer.echo(f"warm-up, step {step + 1} of {steps}, loss {loss:.2f}", err=True)

    return warmed_up
