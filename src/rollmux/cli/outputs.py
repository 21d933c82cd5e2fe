"""What commands write: tables on the screen, text and data in files."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

HERE = Path("-")
PIPED_WIDTH = 120


def console() -> Console:
    """Standard output; wide enough for every column where it is no terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPED_WIDTH)


def write_text(text: str, out: Path) -> None:
    """The text, which ends its last line, in a file, or on standard output where that is `-`."""
    if out == HERE:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"can't write {out}: {error.strerror}") from error


def write_json(data: Any, out: Path) -> None:
    """The data in a file, or on standard output where that is `-`."""
    write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", out)
