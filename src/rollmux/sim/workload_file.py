"""Workloads in files: one row per job, as CSV or as Parquet.

Times are hours, phases seconds, memory GB per node. A workload comes back from its file exactly if its times are floats
of hours, as those of all workloads are that were read, generated or imported. Nothing is lost silently: a value for
which files have no column is refused when writing, and every problem of every row is reported at once when reading.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from math import inf, nextafter
from pathlib import Path
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.hardware import GB
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.validation import MAX_NODES, job_problems
from rollmux.sim.workload import HOUR_S, MAX_HOURS, Arrival, Workload

MAX_GB = 1_000_000.0

Cell = str | float | int


@dataclass(frozen=True, slots=True)
class Column:
    """One column. It must be there if it has no default. `path` is its name in the problems of the check of jobs."""

    name: str
    kind: type[str] | type[float] | type[int]
    default: Cell | None = None
    path: str = ""
    low: float = -inf
    high: float = inf


def _phase_columns(name: str, kind: type[float] | type[int], path: str = "", **limits: float) -> list[Column]:
    """The two columns of this name, for rollout and training; they may be left out."""
    return [
        Column(f"{role}_{name}", kind, kind(name == "nodes"), f"job.{role}.{path}" if path else "", **limits)
        for role in ("rollout", "train")
    ]


COLUMNS = {
    column.name: column
    for column in (
        Column("job", str, path="job.id"),
        Column("arrival_h", float, low=0.0, high=MAX_HOURS),
        Column("duration_h", float, low=1e-6, high=MAX_HOURS),
        Column("rollout_s", float, path="job.rollout.duration_s"),
        Column("train_s", float, path="job.train.duration_s"),
        Column("slo", float, path="job.slo"),
        *_phase_columns("nodes", int, low=1, high=MAX_NODES),
        *_phase_columns("mem_gb", float, low=0.0, high=MAX_GB),
        Column("priority", int, 0, "job.priority"),
        Column("sync_s", float, 0.0, "job.sync_s"),
        *_phase_columns("load_s", float, "load_s"),
        *_phase_columns("offload_s", float, "offload_s"),
        Column("cold_start_s", float, 0.0, "job.cold_start_s"),
        Column("staleness", int, 0, "job.staleness"),
    )
}
_BY_PATH = {column.path: column.name for column in COLUMNS.values() if column.path}

# Replaces a cell that can't be read while the rest of its row is checked.
_HARMLESS: dict[type, Cell] = {str: "", float: 1.0, int: 1}
_WANTED = {str: "a name", float: "a number", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The content of a file: names of columns, and rows of cells, each with its number."""

    subject: str
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[object]]]


def read_workload(path: str | Path) -> Workload:
    """The workload of a .csv or .parquet file, by arrival; jobs that arrive together keep the order of the file.

    Row numbers of a CSV file are line numbers, and the header is row 1; rows of a Parquet file count from 1.
    """
    path = Path(path)
    sheet = _read_parquet(path) if is_parquet(path) else _read_csv(path)
    arrivals = sorted(_arrivals(sheet), key=lambda arrival: arrival.at_s)
    return Workload(path.stem, tuple(arrivals))


def write_workload(workload: Workload, path: str | Path) -> None:
    """Writes a .csv or .parquet file. A column that may be left out is, if every job has its default."""
    path = Path(path)
    parquet = is_parquet(path)
    rows = [_row(arrival) for arrival in workload.arrivals]
    _require_kept(workload, rows)
    used = [c for c in COLUMNS.values() if c.default is None or any(row[c.name] != c.default for row in rows)]
    if parquet:
        _write_parquet(path, used, rows)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.name for column in used)
        writer.writerows([str(row[column.name]) for column in used] for row in rows)


def hours(seconds: float) -> float:
    """The hours that give exactly these seconds back, if there are any; else the nearest."""
    near = seconds / HOUR_S
    for candidate in (near, nextafter(near, inf), nextafter(near, -inf)):
        if candidate * HOUR_S == seconds:
            return candidate
    return near


# -- rows and jobs ---------------------------------------------------------------------------------------------------


def _row(arrival: Arrival) -> dict[str, Cell]:
    """The cells of all columns for this job."""
    job = arrival.job
    row: dict[str, Cell] = {
        "job": job.id,
        "arrival_h": hours(arrival.at_s),
        "duration_h": hours(arrival.duration_s),
        "slo": job.slo,
        "priority": job.priority,
        "sync_s": job.sync_s,
        "cold_start_s": job.cold_start_s,
        "staleness": job.staleness,
    }
    for role, phase in (("rollout", job.rollout), ("train", job.train)):
        row[f"{role}_s"] = phase.duration_s
        row[f"{role}_nodes"] = phase.nodes
        row[f"{role}_mem_gb"] = phase.resident_bytes / GB
        row[f"{role}_load_s"] = phase.load_s
        row[f"{role}_offload_s"] = phase.offload_s
    return row


def _arrival(row: dict[str, Any]) -> Arrival:
    """The job that a row describes; its cells have been checked."""
    job = JobSpec(
        id=row["job"],
        rollout=_phase(row, "rollout"),
        train=_phase(row, "train"),
        slo=row["slo"],
        sync_s=row["sync_s"],
        priority=row["priority"],
        staleness=row["staleness"],
        cold_start_s=row["cold_start_s"],
    )
    return Arrival(row["arrival_h"] * HOUR_S, row["duration_h"] * HOUR_S, job)


def _phase(row: dict[str, Any], role: str) -> PhaseSpec:
    return PhaseSpec(
        row[f"{role}_s"],
        nodes=row[f"{role}_nodes"],
        resident_bytes=round(row[f"{role}_mem_gb"] * GB),
        load_s=row[f"{role}_load_s"],
        offload_s=row[f"{role}_offload_s"],
    )


def _require_kept(workload: Workload, rows: list[dict[str, Cell]]) -> None:
    """Refuses a workload with values that its rows would lose."""
    cells = [(number, [row[name] for name in COLUMNS]) for number, row in enumerate(rows, 1)]
    sheet = _Sheet(f"workload {workload.name!r}", list(COLUMNS), cells)
    lost = [
        problem
        for arrival, back in zip(workload.arrivals, _arrivals(sheet), strict=True)
        for problem in _lost(arrival.job, back.job, f"job {arrival.job.id!r}, ")
    ]
    if lost:
        raise InvalidSpec(sheet.subject, tuple(lost))


def _lost(before: Any, after: Any, path: str) -> Iterator[Problem]:
    """The fields of a value that its row loses."""
    for field in fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if is_dataclass(old) and is_dataclass(new):
            yield from _lost(old, new, f"{path}{field.name}.")
        else:
            limit = f"{new!r} in a workload file, which has no column for it"
            yield Problem(f"{path}{field.name}", old, limit, "set it after reading the file")


# -- checking --------------------------------------------------------------------------------------------------------


def _arrivals(sheet: _Sheet) -> list[Arrival]:
    """The jobs of a sheet in its order, or InvalidSpec with all that is wrong."""
    problems = list(_header_problems(sheet.header))
    present = [name if name in COLUMNS else "" for name in sheet.header]
    if not sheet.rows:
        problems.append(Problem("rows", 0, "at least one job", "add a row for each job"))
    arrivals: list[Arrival] = []
    first: dict[str, int] = {}
    for number, cells in sheet.rows:
        if len(cells) != len(present):
            limit = f"the {len(present)} cells of the header"
            problems.append(Problem(f"row {number}, cells", len(cells), limit, "quote names that hold a comma"))
            continue
        arrival, found = _checked(number, dict(zip(present, cells, strict=True)))
        problems += found
        arrivals.append(arrival)
        name = arrival.job.id
        if name and first.setdefault(name, number) != number:
            remedy = f"row {first[name]} has it too, rename one of them"
            problems.append(Problem(f"row {number}, job", name, "a name of its own", remedy))
    if problems:
        raise InvalidSpec(sheet.subject, tuple(problems))
    return arrivals


def _header_problems(header: Sequence[str]) -> Iterator[Problem]:
    for place, name in enumerate(header, 1):
        if name not in COLUMNS:
            yield Problem(f"column {place}", name, *one_of(COLUMNS, name))
        elif name in header[: place - 1]:
            yield Problem(f"column {place}", name, "there once", "leave one of them out")
    for column in COLUMNS.values():
        if column.default is None and column.name not in header:
            yield Problem("header", list(header), f"with a column {column.name}", f"add {column.name} for each job")


def _checked(number: int, cells: dict[str, object]) -> tuple[Arrival, list[Problem]]:
    """The job of a row, with its problems; a harmless value replaces each bad cell."""
    row: dict[str, Cell] = {}
    problems: dict[str, Problem] = {}
    for name, column in COLUMNS.items():
        row[name] = _HARMLESS[column.kind] if column.default is None else column.default
        if name in cells:
            value = _value(column, cells[name])
            if isinstance(value, Problem):
                problems[name] = value
            else:
                row[name] = value
    arrival = _arrival(row)
    for problem in job_problems(arrival.job):
        problems.setdefault(_BY_PATH[problem.path], problem)
    absent = {"job"} - cells.keys()
    found = [replace(problem, path=f"row {number}, {name}") for name, problem in problems.items() if name not in absent]
    return arrival, found


def _value(column: Column, cell: object) -> Cell | Problem:
    """The value of a cell, or its problem."""
    wanted = _WANTED[column.kind]
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return Problem("", cell, wanted, "fill the cell in") if column.default is None else column.default
    value = _converted(column.kind, cell)
    if value is None:
        return Problem("", cell, wanted, "write it in digits" if column.kind is not str else "write text")
    if not isinstance(value, str) and not column.low <= value <= column.high and column.low > -inf:
        return Problem("", value, f"{wanted} from {column.low:g} to {column.high:g}", "mind the unit of the column")
    return value


def _converted(kind: type, cell: object) -> Cell | None:
    """A cell of either kind of file as this type; None if it has another. 2.0 is a whole number."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    if kind is str:
        return str(cell)
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    if kind is float:
        return number
    return int(number) if number.is_integer() else None


# -- the two kinds of file -------------------------------------------------------------------------------------------


def is_parquet(path: Path) -> bool:
    """Whether the file's name says Parquet, and not CSV; InvalidSpec if it says neither."""
    if (suffix := path.suffix.lower()) in (".csv", ".parquet"):
        return suffix == ".parquet"
    problem = Problem("suffix", path.suffix, ".csv or .parquet", "name the file by what it is")
    raise InvalidSpec(f"workload file {str(path)!r}", (problem,))


def _unreadable(path: Path, kind: str, why: Exception) -> InvalidSpec:
    problem = Problem("content", str(why), f"well-formed {kind}", "write the file anew")
    return InvalidSpec(f"workload file {str(path)!r}", (problem,))


def _read_csv(path: Path) -> _Sheet:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        try:
            lines = [(reader.line_num, cells) for cells in reader if cells]
        except (csv.Error, UnicodeDecodeError) as error:
            raise _unreadable(path, "CSV in UTF-8", error) from error
    header = lines[0][1] if lines else []
    if len(header) == 1 and {";", "\t"} & set(header[0]):
        problem = Problem("header", header[0], "names with commas between them", "export the file with commas")
        raise InvalidSpec(f"workload file {str(path)!r}", (problem,))
    return _Sheet(f"workload file {str(path)!r}", header, lines[1:])


def _pyarrow(path: Path) -> tuple[Any, Any]:
    """pyarrow and its Parquet module, which only Parquet files need."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        remedy = "pip install 'rollmux[parquet]'"
        problem = Problem("suffix", path.suffix, ".csv as long as pyarrow is not installed", remedy)
        raise InvalidSpec(f"workload file {str(path)!r}", (problem,)) from error


def _read_parquet(path: Path) -> _Sheet:
    arrow, parquet = _pyarrow(path)
    with path.open("rb") as file:
        try:
            table = parquet.ParquetFile(file).read()
        except (arrow.lib.ArrowException, OSError) as error:
            raise _unreadable(path, "Parquet", error) from error
    cells: Iterable[tuple[object, ...]] = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return _Sheet(f"workload file {str(path)!r}", table.column_names, list(enumerate(cells, 1)))


def _write_parquet(path: Path, columns: list[Column], rows: list[dict[str, Cell]]) -> None:
    arrow, parquet = _pyarrow(path)
    types = {str: arrow.string(), float: arrow.float64(), int: arrow.int64()}
    table = arrow.table({c.name: arrow.array([row[c.name] for row in rows], types[c.kind]) for c in columns})
    with path.open("wb") as file:
        parquet.write_table(table, file)
