"""`rollmux demo`: two real jobs on this machine, alone and woven; or the paper's production jobs in virtual time."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from rollmux.cli.options import AsJson
from rollmux.cli.outputs import console, require_folder
from rollmux.cli.refusals import refusals, require_name, run_refusals
from rollmux.cli.remote import Remote
from rollmux.cli.top_screen import screen
from rollmux.cli.virtual_demo import POLICIES, as_data, play_demo
from rollmux.cli.virtual_demo import show as show_virtual
from rollmux.cli.woven.figures import Figures, Measured, figures
from rollmux.cli.woven.fit import fit
from rollmux.cli.woven.jobs import SLO_WOVEN, DemoJob, Engine, Phases, jobs
from rollmux.cli.woven.report import outcomes
from rollmux.cli.woven.runs import Look, alone, woven
from rollmux.cli.woven.show import show
from rollmux.protocol.history import HistoryView
from rollmux.protocol.views import ClusterView
from rollmux.report.page import html_report
from rollmux.report.trace import chrome_trace

# A controller's answer holds 4,000 phases of the past, and a step of two jobs that share nodes is up to ten.
STEPS, MOST_STEPS = 30, 400
VIRTUAL: dict[str, Any] = {"rich_help_panel": "With --virtual"}
SHOWN_S = 10  # how much of the past a terminal shows
REPORT, TRACE = "report.html", "trace.json"
RUNS = Path("runs")


def demo(
    steps: Annotated[
        int | None, typer.Option(min=3, max=MOST_STEPS, help=f"Steps of each job [default: {STEPS}].")
    ] = None,
    engine: Annotated[str, typer.Option(help="slots computes a model; replay only takes time [default: slots].")] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="A new folder for report, trace and logs [default: runs/demo-N]."),
    ] = None,
    virtual: Annotated[bool, typer.Option("--virtual", help="Ten production jobs in virtual time instead.")] = False,
    policy: Annotated[str, typer.Option(help=f"{' or '.join(POLICIES)} [default: rollmux].", **VIRTUAL)] = "",
    hours: Annotated[
        float | None, typer.Option(min=1.0, max=1000.0, help="Time to run for [default: 24].", **VIRTUAL)
    ] = None,
    slo: Annotated[
        float | None, typer.Option(min=1.0, max=100.0, help="Slowdown that is tolerated [default: 1.5].", **VIRTUAL)
    ] = None,
    explain: Annotated[str, typer.Option(metavar="JOB", help="What was tried for this job.", **VIRTUAL)] = "",
    as_json: AsJson = False,
) -> None:
    """Train two models, each on nodes of its own, then both on the nodes of one, and show what it gains."""
    if virtual:
        _refuse("without", {"--steps": steps, "--engine": engine, "--out": out})
        _virtual(policy or "rollmux", hours or 24.0, slo or 1.5, explain, as_json)
        return
    _refuse("with", {"--policy": policy, "--hours": hours, "--slo": slo, "--explain": explain})
    pair = jobs(_engine(engine), steps or STEPS)
    folder = _folder(out).resolve()
    found = _real(folder, pair, as_json)
    if as_json:
        typer.echo(
            json.dumps(
                asdict(found) | {"gain": found.gain, "mean_gain": found.mean_gain, "folder": str(folder)}, indent=1
            )
        )
    else:
        show(found, console())
        here = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        typer.echo(f"Written: {here / REPORT} for a browser, {here / TRACE} for ui.perfetto.dev.")


def _refuse(when: str, options: dict[str, object]) -> None:
    """Refuses options that mean nothing here."""
    for name, value in options.items():
        if value:
            raise typer.BadParameter(f"{name} goes {when} --virtual")


def _engine(name: str) -> Engine:
    """The engine that was asked for; else `slots`, or `replay` if there is no torch."""
    if name:
        require_name("engine", name, tuple(each.value for each in Engine))
    has_torch = find_spec("torch") is not None
    if name == Engine.SLOTS.value and not has_torch:
        raise typer.BadParameter("--engine slots: there is no torch here; pip install 'rollmux[torch]'")
    if not name and not has_torch:
        typer.echo(
            "No torch here: these jobs take time and learn nothing. For real ones: pip install 'rollmux[torch]'",
            err=True,
        )
        return Engine.REPLAY
    return Engine(name or Engine.SLOTS.value)


def _folder(out: Path | None) -> Path:
    """A new folder, so that no run is written over another."""
    if out is not None:
        with refusals():
            if out.is_dir() and any(out.iterdir()):
                raise typer.BadParameter(f"--out {out}: it holds something; name a new folder")
        require_folder("--out", out)
        return out
    require_folder("--out", RUNS)
    for number in count(1):
        folder = RUNS / f"demo-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always a next number")


def _real(folder: Path, jobs: Sequence[DemoJob], as_json: bool) -> Figures:
    """Runs each job on nodes of its own; then all of them on the nodes of one."""
    _hear_signals()
    shown = Console(stderr=True) if as_json else console()
    with run_refusals():
        if jobs[0].engine is Engine.SLOTS:  # jobs without a model take the same time everywhere
            jobs = _fitted(folder / "fit", jobs, shown)
        with _watched("each alone, on nodes of its own", shown) as look:
            before = alone(folder, jobs, look)
        with _watched("both woven, on the nodes of one", shown) as look:
            after = woven(folder / "woven", jobs, _phases(before), look)
    found = figures(before, after, SLO_WOVEN)
    both = outcomes(before, after, found)
    (folder / REPORT).write_text(html_report("RollMux: two jobs, alone and woven", both), encoding="utf-8")
    (folder / TRACE).write_text(chrome_trace(both[1]) + "\n", encoding="utf-8")
    return found


def _hear_signals() -> None:
    """From here on the first of these signals ends the command, unless it is ignored, as SIGHUP is below `nohup`.

    On the way out all that was started is ended, and no further signal breaks that off.
    """
    heard = [
        each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN
    ]

    def leave(number: int, frame: object) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    for each in heard:
        signal.signal(each, leave)


def _fitted(folder: Path, jobs: Sequence[DemoJob], shown: Console) -> list[DemoJob]:
    """The jobs as they are in all runs, in a size that suits this machine."""
    shown.print("fitting the jobs to this machine", highlight=False)
    size, settings = fit(folder, [job.settings for job in jobs])
    shown.print(
        f"  {size.prompts} prompts a step, {size.running} responses at once: "
        f"about {size.rollout_s:.2f} s of rollout and {size.update_s:.2f} s of update",
        highlight=False,
    )
    return [replace(job, settings=sized) for job, sized in zip(jobs, settings, strict=True)]


def _phases(runs: Sequence[Measured]) -> Phases:
    """The phases that the owner states for every job, by how all of them went alone: the jobs are of one kind."""
    seen = [(run, job) for run in runs for job in run.rewards]
    return Phases(*(median(s for run, job in seen for s in run.phase_s(job, kind)) for kind in ("rollout", "train")))


@contextmanager
def _watched(what: str, shown: Console) -> Iterator[Look]:
    """Shows a line for each run; on a terminal also the clusters, as `rollmux top` shows them."""
    shown.print(what, highlight=False)
    if not shown.is_terminal:
        yield lambda seen: None
        return
    with Live(console=shown, auto_refresh=False, transient=True) as live:

        def look(seen: Sequence[tuple[Remote, ClusterView]]) -> None:
            screens = [
                screen(there.url, cluster, there.get(HistoryView, "/v1/history", since_s=SHOWN_S), "", shown.width)
                for there, cluster in seen
            ]
            live.update(Group(*screens), refresh=True)

        yield look


def _virtual(policy: str, hours: float, slo: float, explain: str, as_json: bool) -> None:
    require_name("policy", policy, tuple(POLICIES))
    result = play_demo(policy, hours, slo)
    if explain and explain not in result.explanations:
        raise typer.BadParameter(f"there is no job {explain!r}; choose one of {', '.join(result.explanations)}")
    if as_json:
        typer.echo(json.dumps(as_data(result), indent=1, allow_nan=False))
    elif explain:
        typer.echo(result.explanations[explain])
    else:
        show_virtual(result, console())
