"""Workloads from public traces of GPU clusters: Microsoft's Philly, Alibaba's PAI, and the workloads of Sia.

Such traces tell when jobs arrived, how long they ran and on how many GPUs, but nothing of rollout and training. So
arrival and running time come from the trace, phases and SLO are drawn by a profile as in `generate`, and each job
takes one node of each pool, unless the trace's GPUs are turned into nodes. A job that did not end within the trace,
never ran, or had no GPU is left out. An entry that can't be understood is an error.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil, isfinite
from pathlib import Path
from random import Random
from typing import Any

from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.validation import MAX_NODES, job_problems
from rollmux.sim.generate import PROFILES, draw_job
from rollmux.sim.workload import HOUR_S, MAX_HOURS, Arrival, Workload
from rollmux.sim.workload_file import hours as exact_hours

_AS_PUBLISHED = "take the file as it was published"
_MEND = "mend it or take the job out"

# Forgiven in the GPUs of a job: a hundred times 7 % of a GPU are seven, except for the last bits of the product.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs of a trace are taken, and what they become.

    A job is taken if it ran for at least `min_duration_h` and arrived within `hours` from `start_h` on, counted from
    the trace's first usable job. Of these the first `jobs` are taken, or as many `evenly` from first to last. Arrivals
    are counted from `start_h`. With `gpus_per_node` a job gets as many nodes as hold its GPUs, in each pool.
    """

    jobs: int | None = None
    evenly: bool = False
    start_h: float = 0.0
    hours: float | None = None
    min_duration_h: float = 0.0
    profile: str = "mixed"
    seed: int = 0
    gpus_per_node: int | None = None


@dataclass(frozen=True, slots=True)
class _TraceJob:
    """What a trace tells of a job; `gpus` is None if it does not tell them."""

    name: str
    at_s: float
    duration_s: float
    gpus: float | None = None


@dataclass(slots=True)
class _Trace:
    """A trace as it is read: its jobs, and its problems."""

    path: Path
    jobs: list[_TraceJob] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def report(self, path: str, value: object, limit: str, remedy: str) -> None:
        self.problems.append(Problem(path, value, limit, remedy))

    def add(self, name: str, at_s: float, duration_s: float, gpus: float | None = None) -> None:
        """Adds a job, unless it ran for no time or on no GPU."""
        if duration_s > 0 and gpus != 0:
            self.jobs.append(_TraceJob(name, at_s, duration_s, gpus))

    def number(self, row: Mapping[str, str], line: int, name: str, *, may_lack: bool = True) -> float | None:
        """A number of a row; None if its cell is empty, which is reported unless it may be."""
        text = row[name].strip()
        if text.lower() in ("", "nan", "none") and may_lack:
            return None
        try:
            number = float(text)
        except ValueError:
            number = float("inf")
        if isfinite(number):
            return number
        self.report(f"line {line}, {name}", row[name], "a number", _MEND)
        return None

    def rows(self, known_by: str, headless: Mapping[int, tuple[str, ...]]) -> Iterator[tuple[int, dict[str, str]]]:
        """The rows of a CSV file with their line numbers.

        If the first row has a cell `known_by` it names the columns; else the names of `headless` for as many columns.
        """
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            columns: tuple[str, ...] = ()
            try:
                for cells in filter(None, reader):
                    if not columns:
                        columns = tuple(cells) if known_by in cells else headless.get(len(cells), ())
                        if not columns:
                            self.report("line 1", cells, f"a header with {known_by}", _AS_PUBLISHED)
                            return
                        if known_by in cells:
                            continue
                    if len(cells) == len(columns):
                        yield reader.line_num, dict(zip(columns, cells, strict=True))
                    else:
                        self.report(f"line {reader.line_num}", cells, f"{len(columns)} cells long", _MEND)
            except (csv.Error, UnicodeDecodeError) as error:
                self.report(f"line {reader.line_num + 1}", str(error), "well-formed CSV in UTF-8", _AS_PUBLISHED)

    def require(self) -> None:
        if self.problems:
            raise InvalidSpec(f"trace {str(self.path)!r}", tuple(self.problems))

    def workload(self, wants: Selection) -> Workload:
        """The workload of the jobs read."""
        self.require()
        arrivals = list(self._arrivals(wants))
        if not arrivals:
            self.report("jobs", 0, f"at least one of the {len(self.jobs)} usable ones", "widen the window")
        names: set[str] = set()
        for arrival in arrivals:
            job = arrival.job
            self.problems += [replace(p, path=f"{job.id!r}, {p.path}") for p in job_problems(job)]
            if job.id in names:
                self.report("job", job.id, "there once", "take one of them out")
            names.add(job.id)
        self.require()
        return Workload(self.path.stem, tuple(arrivals))

    def _arrivals(self, wants: Selection) -> Iterator[Arrival]:
        rng = Random(wants.seed)
        jobs = sorted(self.jobs, key=lambda job: job.at_s)
        start_s = wants.start_h * HOUR_S + (jobs[0].at_s if jobs else 0.0)
        end_s = float("inf") if wants.hours is None else start_s + wants.hours * HOUR_S
        jobs = [j for j in jobs if start_s <= j.at_s < end_s and j.duration_s >= wants.min_duration_h * HOUR_S]
        for job in _thinned(jobs, wants):
            at_s, duration_s = (exact_hours(s) * HOUR_S for s in (job.at_s - start_s, job.duration_s))
            drawn = draw_job(rng, job.name, wants.profile)
            if wants.gpus_per_node is not None:
                nodes = self._nodes(job, wants.gpus_per_node)
                drawn = replace(
                    drawn, rollout=replace(drawn.rollout, nodes=nodes), train=replace(drawn.train, nodes=nodes)
                )
            yield Arrival(at_s, duration_s, drawn)

    def _nodes(self, job: _TraceJob, gpus_per_node: int) -> int:
        if job.gpus is None:
            self.report(f"{job.name!r}, GPUs", None, "known", "leave out gpus_per_node, or take a table with GPUs")
            return 1
        return ceil(job.gpus / gpus_per_node - _ROUNDING)


def _thinned(jobs: list[_TraceJob], wants: Selection) -> list[_TraceJob]:
    """As many of the jobs as the selection wants."""
    if wants.jobs is None or wants.jobs >= len(jobs):
        return jobs
    step = len(jobs) / wants.jobs if wants.evenly else 1
    return [jobs[int(number * step)] for number in range(wants.jobs)]


def _require_selection(wants: Selection) -> None:
    problems = []
    if wants.jobs is not None and wants.jobs < 1:
        problems.append(Problem("jobs", wants.jobs, "at least 1", "leave it out to take every job"))
    if wants.evenly and wants.jobs is None:
        problems.append(
            Problem("evenly", True, "left out without jobs, all of which are taken", "say how many to take")
        )
    if wants.hours is not None and not 0 < wants.hours <= MAX_HOURS:
        problems.append(Problem("hours", wants.hours, f"above 0, at most {MAX_HOURS:g}", "leave it out for all"))
    for name in ("start_h", "min_duration_h"):
        if not 0 <= getattr(wants, name) <= MAX_HOURS:
            problems.append(Problem(name, getattr(wants, name), f"from 0 to {MAX_HOURS:g}", "give hours"))
    if wants.gpus_per_node is not None and not 1 <= wants.gpus_per_node <= MAX_NODES:
        problems.append(Problem("gpus_per_node", wants.gpus_per_node, f"from 1 to {MAX_NODES}", "8 is usual"))
    if wants.profile not in PROFILES:
        problems.append(Problem("profile", wants.profile, f"one of {', '.join(PROFILES)}", "choose one of these"))
    if problems:
        raise InvalidSpec("selection", tuple(problems))


# -- Philly ----------------------------------------------------------------------------------------------------------

_TIME = "%Y-%m-%d %H:%M:%S"


def import_philly(path: str | Path, wants: Selection | None = None) -> Workload:
    """`cluster_job_log` of github.com/msr-fiddle/philly-traces: a JSON list of jobs with their attempts.

    A job's running time is that of all its attempts, without the waits between them. A job whose last attempt has no
    end was still running, and is left out. Times have no zone, so a change to winter time in between adds an hour.
    """
    wants = wants or Selection()
    _require_selection(wants)
    trace = _Trace(Path(path))
    try:
        entries = json.loads(trace.path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        trace.report("content", str(error), "well-formed JSON", _AS_PUBLISHED)
        entries = []
    if not isinstance(entries, list):
        trace.report("content", type(entries).__name__, "a list of jobs", _AS_PUBLISHED)
        entries = []
    for number, entry in enumerate(entries, 1):
        _philly_job(trace, f"job {number}", entry)
    return trace.workload(wants)


def _philly_job(trace: _Trace, path: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("attempts"), list) or "jobid" not in entry:
        limit = "an object with jobid, submitted_time and attempts"
        trace.report(path, entry, limit, _AS_PUBLISHED)
        return
    at = _philly_time(trace, f"{path}, submitted_time", entry.get("submitted_time"))
    ran_s, gpus, running = 0.0, 0, False
    for number, attempt in enumerate(entry["attempts"], 1):
        here = f"{path}, attempt {number}"
        if not isinstance(attempt, dict):
            trace.report(here, attempt, "an object", _AS_PUBLISHED)
            continue
        start = _philly_time(trace, f"{here}, start_time", attempt.get("start_time"))
        end = _philly_time(trace, f"{here}, end_time", attempt.get("end_time"))
        running = end is None
        if start is not None and end is not None:
            ran_s += max(0.0, (end - start).total_seconds())
            gpus = max(gpus, _philly_gpus(trace, here, attempt.get("detail")))
    if at is not None and not running:
        trace.add(str(entry["jobid"]), (at - datetime.min).total_seconds(), ran_s, gpus)


def _philly_time(trace: _Trace, path: str, text: object) -> datetime | None:
    if text in (None, "None", ""):
        return None
    try:
        return datetime.strptime(str(text), _TIME)
    except ValueError:
        trace.report(path, text, "a time like 2017-10-07 01:12:09, or None", _MEND)
        return None


def _philly_gpus(trace: _Trace, path: str, detail: Any) -> int:
    try:
        return sum(len(part["gpus"]) for part in detail or ())
    except (TypeError, KeyError):
        trace.report(f"{path}, detail", detail, "a list of servers with their gpus", _MEND)
        return 0


# -- Alibaba ---------------------------------------------------------------------------------------------------------

_PAI_TABLES = {
    6: ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    10: (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
}


def import_alibaba(path: str | Path, wants: Selection | None = None) -> Workload:
    """`pai_task_table` or `pai_job_table` of Alibaba's cluster-trace-gpu-v2020, with or without a header.

    The task table has GPUs, and its times begin at the launch: a job lasts from the start of its first task to the end
    of its last, on the GPUs of all tasks. The job table has no GPUs, and its times begin at the submission, so its
    running times include the wait.
    """
    wants = wants or Selection()
    _require_selection(wants)
    trace = _Trace(Path(path))
    spans: dict[str, tuple[float, float, float | None]] = {}
    unfinished: set[str] = set()
    for line, row in trace.rows("job_name", _PAI_TABLES):
        name = row["job_name"]
        missing = {"start_time", "end_time"} - row.keys()
        if missing:
            trace.report("header", list(row), f"with {' and '.join(sorted(missing))}", "take a job or task table")
            break
        start, end = trace.number(row, line, "start_time"), trace.number(row, line, "end_time")
        if start is None or end is None:
            unfinished.add(name)
            continue
        gpus = _pai_gpus(trace, row, line)
        if name in spans:
            first, last, others = spans[name]
            start, end = min(start, first), max(end, last)
            gpus = None if gpus is None or others is None else gpus + others
        spans[name] = start, end, gpus
    for name, (start, end, gpus) in spans.items():
        if name not in unfinished:
            trace.add(name, start, end - start, gpus)
    return trace.workload(wants)


def _pai_gpus(trace: _Trace, row: Mapping[str, str], line: int) -> float | None:
    """The GPUs of a task: a percentage of one GPU for each of its instances. With an empty cell it has no GPU."""
    if "plan_gpu" not in row or "inst_num" not in row:
        return None
    percent, instances = trace.number(row, line, "plan_gpu"), trace.number(row, line, "inst_num")
    return (percent or 0.0) / 100 * (1.0 if instances is None else instances)


# -- Sia -------------------------------------------------------------------------------------------------------------


def import_sia(
    path: str | Path, wants: Selection | None = None, app_hours: Mapping[str, float] | None = None
) -> Workload:
    """A workload CSV of Sia's or Pollux's simulator: name, time (seconds), application, num_replicas (GPUs), ...

    These have no durations, as their simulators compute them from a model of each application's speed. So the file must
    have a column `duration` (seconds) in addition, or `app_hours` must say how long a job of each application runs.
    """
    wants, app_hours = wants or Selection(), app_hours or {}
    _require_selection(wants)
    trace = _Trace(Path(path))
    for application, app_h in app_hours.items():
        if not 0 < app_h <= MAX_HOURS:
            trace.report(f"app_hours, {application}", app_h, f"above 0, at most {MAX_HOURS:g}", "give hours")
    unknown: dict[str, int] = {}
    for line, row in trace.rows("application", {}):
        missing = {"name", "time"} - row.keys()
        if missing:
            trace.report("header", list(row), f"with {' and '.join(sorted(missing))}", "take a workload's CSV file")
            break
        application = row["application"]
        duration_s = trace.number(row, line, "duration") if "duration" in row else None
        if duration_s is None and application in app_hours:
            duration_s = app_hours[application] * HOUR_S
        if duration_s is None:
            unknown.setdefault(application, line)
            continue
        at_s = trace.number(row, line, "time", may_lack=False)
        if at_s is not None:
            gpus = trace.number(row, line, "num_replicas") if "num_replicas" in row else None
            trace.add(row["name"], at_s, duration_s, gpus)
    for application, line in unknown.items():
        limit = "one whose hours are given, as the file has no duration"
        trace.report(f"line {line}, application", application, limit, "give app_hours, or add a column duration")
    return trace.workload(wants)


IMPORTERS: dict[str, Callable[[str | Path, Selection | None], Workload]] = {
    "philly": import_philly,
    "alibaba": import_alibaba,
    "sia": import_sia,
}
