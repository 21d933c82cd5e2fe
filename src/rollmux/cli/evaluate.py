"""`rollmux evaluate`: what a model's answers to a job's prompts are worth."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rollmux.cli.options import Changes
from rollmux.cli.outputs import HERE, require_writable, show, write_text
from rollmux.cli.refusals import refusals, run_refusals, torch_wanted
from rollmux.trainer.job_file import read_job_file, read_trained

if TYPE_CHECKING:
    from rollmux.trainer.evaluation import Answer

# How many lines of progress are printed if standard error is no terminal.
LINES = 10


def evaluate(
    job: Annotated[
        Path, typer.Argument(metavar="FILE", help="A training job, or the folder of a run, whose model is asked then.")
    ],
    changes: Changes = None,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="The answers to each prompt.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="For the answers, a line of JSON each; - prints only them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
) -> None:
    """Ask a model each prompt of a job, and say what its answers are worth. Nothing is trained.

    Changes say which model and whose prompts: model.path=models/other task.path=others.jsonl.
    """
    with refusals():
        settings = (read_trained if job.is_dir() else read_job_file)(job, changes or ())
    require_writable("--out", out)
    with torch_wanted():
        from rollmux.trainer import evaluation  # noqa: PLC0415  it needs torch
    answers = list["Answer"]()
    try:
        with run_refusals(), _bar(shown=not as_json) as advanced:

            def heard(answer: "Answer", total: int) -> None:
                answers.append(answer)
                advanced(len(answers), total)

            found = evaluation.evaluate(settings, samples, heard)
        if out != HERE:
            asked = {"model": settings.model.path or None, "task": settings.task.path or settings.task.name}
            told = f"{asked['model'] or 'a new model'}: {evaluation.in_words(found, samples)}"
            show(asked | asdict(found), as_json, told, *_failures(answers))
    finally:
        if out is not None and answers:
            _keep(answers, out)


@contextmanager
def _bar(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of the answers there are: by a bar in a terminal, else by a line every now and then."""
    screen = Console(stderr=True)
    if shown and not screen.is_terminal:
        yield _line
        return
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not shown) as bar:
        task = bar.add_task("answers", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _line(done: int, total: int) -> None:
    if done < total and done % -(-total // LINES) == 0:
        typer.echo(f"{done} of {total} answers", err=True)


def _keep(answers: "list[Answer]", out: Path) -> None:
    """Writes the answers, also those of an evaluation that is broken off: they may have taken hours."""
    lines = [json.dumps(asdict(each)) for each in sorted(answers, key=lambda each: (each.prompt, each.sample))]
    write_text("\n".join([*lines, ""]), out)


def _failures(answers: "list[Answer]") -> list[str]:
    """The first answer that failed, as an example of all."""
    return [f"The first that failed: {each.failed}" for each in answers if each.failed][:1]
