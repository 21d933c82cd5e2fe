"""What commands write: tables on the screen, text and data in files."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import IO, Any

import typer
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

from rollmux.cli.refusals import refusals

HERE = Path("-")
PIPED_WIDTH = 120
_ENDLESS = Console(width=10_000, markup=False, emoji=False)  # measures, and prints nothing
LONGEST_CELL = 32  # letters: a longer text is told below a table, or elsewhere
LONGEST_WORD = 24  # letters: a longer one may be broken, so that one long name leaves room for other columns


def console(file: IO[str] | None = None) -> Console:
    """Standard output, or this file; wide enough for every column if it is no terminal. Names are shown as they are."""
    found = Console(file=file, markup=False, emoji=False)
    return found if found.is_terminal else Console(file=file, width=PIPED_WIDTH, markup=False, emoji=False)


def show(data: Any, as_json: bool, *texts: RenderableType) -> None:
    """Prints what a command has to say: as data, or as texts and tables for people."""
    if as_json:
        plain = asdict(data) if is_dataclass(data) and not isinstance(data, type) else data
        typer.echo(json.dumps(plain, indent=1))
        return
    screen = console()
    for text in texts:
        if isinstance(text, str):
            screen.print(text, highlight=False, soft_wrap=True)
        else:
            screen.print(text)


def fits_a_cell(text: str) -> bool:
    """Whether a text may stand in a row of a table: a column would break a sentence over many lines."""
    return len(text) <= LONGEST_CELL


def fitted(table: Table, width: int, *spare: str) -> Table:
    """The table in so many letters: no figure is cut, and columns that fold break between words only.

    For that it goes without those `spare` columns, from the first on, for which there is no room.
    """
    reaches = {str(column.header): _reach(column) for column in table.columns}
    for name in spare:
        if _room(reaches, table, width) >= 0:
            break
        reaches.pop(name, None)
    table, room = _only(reaches, table), _room(reaches, table, width)
    if room >= 0:
        by_need = sorted(table.columns, key=lambda column: reaches[str(column.header)].span)
        for left, column in zip(range(len(by_need), 0, -1), by_need, strict=True):
            reach = reaches[str(column.header)]
            more = min(reach.span, room // left)
            column.width = reach.minimum + more
            room -= more
    return table


def _reach(column: Column) -> Measurement:
    """The width that a column needs at least, and at most: if it folds, its longest word is enough."""
    cells = [Measurement.get(_ENDLESS, _ENDLESS.options, cell) for cell in (column.header, *column.cells)]
    least, most = (max(widths) for widths in zip(*cells, strict=True))
    least, floor = min(least, LONGEST_WORD) if column.overflow == "fold" else most, column.min_width or 0
    return Measurement(max(least, floor), max(most, floor))


def _room(reaches: Mapping[str, Measurement], table: Table, width: int) -> int:
    """How many letters are left if each of these columns has what it needs at least."""
    bare = Table(*reaches, box=table.box, pad_edge=table.pad_edge)
    frame = Measurement.get(_ENDLESS, _ENDLESS.options, bare).maximum - sum(map(cell_len, reaches))
    return width - frame - sum(reach.minimum for reach in reaches.values())


def _only(names: Collection[str], table: Table) -> Table:
    """The table with these columns alone."""
    kept = [column for column in table.columns if column.header in names]
    fewer = Table(box=table.box, title=table.title, title_justify=table.title_justify, pad_edge=table.pad_edge)
    for each in kept:
        fewer.add_column(
            each.header,
            justify=each.justify,
            overflow=each.overflow,
            no_wrap=each.no_wrap,
            min_width=each.min_width,
        )
    for row, *cells in zip(table.rows, *(column.cells for column in kept), strict=True):
        fewer.add_row(*cells, style=row.style, end_section=row.end_section)
    return fewer


def require_writable(option: str, out: Path | None) -> None:
    """Raises BadParameter unless a file can be written there. Called before the work whose result it is to hold."""
    if out is None or out == HERE:
        return
    with refusals():
        trouble = _trouble(out)
    if trouble:
        raise typer.BadParameter(f"{option} {out}: {trouble}")


def require_folder(option: str, folder: Path) -> None:
    """Makes the folder, unless it is there. Raises BadParameter unless files can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trouble = "" if os.access(folder, os.W_OK | os.X_OK) else "you may not write there"
    except FileExistsError:
        trouble = "this is no folder"
    except OSError as error:
        trouble = error.strerror or str(error)
    if trouble:
        raise typer.BadParameter(f"{option} {folder}: {trouble}; name another folder")


def require_apart(**outs: Path | None) -> None:
    """Raises BadParameter if two options name the same file: only the last result would be left."""
    seen: dict[Path, str] = {}
    for option, out in outs.items():
        if out is None:
            continue
        place = out if out == HERE else out.resolve()
        if place in seen:
            raise typer.BadParameter(f"--{option} {out}: that is --{seen[place]}'s already; name another one")
        seen[place] = option


def _trouble(out: Path) -> str:
    """Why a file can't be written there and what would help; "" if it can."""
    folder = out.parent
    if out.is_dir():
        return "must be a file, this is a folder; name a file in it"
    if out.exists():
        return "" if os.access(out, os.W_OK) else "must be a file that you may write; name another one"
    if not folder.exists():
        return f"must be in a folder that is there, {folder} is not; make it first"
    if not folder.is_dir():
        return f"must be in a folder, {folder} is a file; name a file in a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"must be in a folder that you may write to, {folder} is not; name a file in another one"
    return ""


def write_text(text: str, out: Path) -> None:
    """Writes the text, which ends with a line break, to a file, or to standard output if that is `-`.

    File names in the text that are not UTF-8 are written with escapes.
    """
    if out == HERE:
        with refusals():
            typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise typer.BadParameter(f"can't write {out}: {error.strerror}") from error


def write_json(data: Any, out: Path) -> None:
    """Writes the data to a file, or to standard output if that is `-`."""
    write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", out)
