"""`rollmux demo`: two real jobs on this machine, alone and woven; or the paper's production jobs in virtual time."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from rollmux.cli.outputs import console
from rollmux.cli.refusals import refusals, require_name
from rollmux.cli.remote import Remote
from rollmux.cli.top_screen import screen
from rollmux.cli.virtual_demo import POLICIES, as_data, play_demo
from rollmux.cli.virtual_demo import show as show_virtual
from rollmux.cli.woven.figures import Figures, Measured, figures
from rollmux.cli.woven.jobs import SLO_ALONE, SLO_WOVEN, DemoJob, Engine, Phases, jobs
from rollmux.cli.woven.report import outcomes
from rollmux.cli.woven.runs import Look, run
from rollmux.cli.woven.show import show
from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView
from rollmux.protocol.views import ClusterView
from rollmux.report.page import html_report
from rollmux.report.trace import chrome_trace

# A controller's answer holds 4,000 phases of the past, and a step of two jobs that share nodes is up to ten.
STEPS, MOST_STEPS = 30, 400
VIRTUAL: dict[str, Any] = {"rich_help_panel": "With --virtual"}
SHOWN_S = 10  # of the past, on a terminal
REPORT, TRACE = "report.html", "trace.json"


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
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of tables.")] = False,
) -> None:
    """Train two models, each alone on nodes of its own, then both on the nodes of one, and show what it gains."""
    if virtual:
        _refuse("without", {"--steps": steps, "--engine": engine, "--out": out})
        _virtual(policy or "rollmux", hours or 24.0, slo or 1.5, explain, as_json)
        return
    _refuse("with", {"--policy": policy, "--hours": hours, "--slo": slo, "--explain": explain})
    pair = jobs(_engine(engine), steps or STEPS)
    with refusals():
        folder = _folder(out)
    found = _real(folder, pair, as_json)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"gain": found.gain, "folder": str(folder)}, indent=1))
    else:
        show(found, console())
        typer.echo(f"Written: {folder / REPORT} for a browser, {folder / TRACE} for ui.perfetto.dev.")


def _refuse(when: str, options: dict[str, object]) -> None:
    """None of these means anything here."""
    for name, value in options.items():
        if value:
            raise typer.BadParameter(f"{name} goes {when} --virtual")


def _engine(name: str) -> Engine:
    """The one that was asked for; else `slots`, or what there is without torch."""
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
    """A new one: no run is written over another."""
    if out is not None:
        if out.is_dir() and any(out.iterdir()):
            raise typer.BadParameter(f"--out {out}: it holds something; name a new folder")
        out.mkdir(parents=True, exist_ok=True)
        return out
    for number in count(1):
        folder = Path("runs", f"demo-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("there is always a next number")


def _real(folder: Path, pair: tuple[DemoJob, ...], as_json: bool) -> Figures:
    """Each job alone, for as long as it takes to know it; then all of them."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    try:
        alone = []
        for job in pair:
            with _watched(f"{job.name}, alone", as_json) as look:
                alone.append(run(folder.resolve() / f"alone-{job.name}", [job], Phases(), SLO_ALONE, look))
        with _watched("both, woven", as_json) as look:
            woven = run(folder.resolve() / "woven", pair, _phases(alone), SLO_WOVEN, look)
    except RollmuxError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    found = figures(alone, woven, SLO_WOVEN)
    both = outcomes(alone, woven, found)
    (folder / REPORT).write_text(html_report("RollMux: two jobs, alone and woven", both), encoding="utf-8")
    (folder / TRACE).write_text(chrome_trace(both[1]) + "\n", encoding="utf-8")
    return found


def _leave(number: int, frame: object) -> None:
    """As an interrupt does: on the way out all that was started is ended."""
    sys.exit(128 + number)


def _phases(alone: Sequence[Measured]) -> Phases:
    """What the owner says of either job, knowing how they went alone: they are of one kind."""
    seen = [(run, job) for run in alone for job in run.rewards]
    return Phases(*(fmean(s for run, job in seen for s in run.phase_s(job, kind)) for kind in ("rollout", "train")))


@contextmanager
def _watched(what: str, as_json: bool) -> Iterator[Look]:
    """A line for each run; on a terminal the cluster as `rollmux top` shows it."""
    shown = Console(stderr=True) if as_json else console()
    shown.print(what, highlight=False)
    if not shown.is_terminal:
        yield lambda there, cluster: None
        return
    with Live(console=shown, auto_refresh=False, transient=True) as live:

        def look(there: Remote, cluster: ClusterView) -> None:
            history = there.get(HistoryView, "/v1/history", since_s=SHOWN_S)
            live.update(screen(there.url, cluster, history, "", shown.width), refresh=True)

        yield look


def _virtual(policy: str, hours: float, slo: float, explain: str, as_json: bool) -> None:
    require_name("policy", policy, tuple(POLICIES))
    result = play_demo(policy, hours, slo)
    if explain and explain not in result.explanations:
        raise typer.BadParameter(f"there is no job {explain!r}; choose one of {', '.join(result.explanations)}")
    if as_json:
        typer.echo(json.dumps(as_data(result), indent=1))
    elif explain:
        typer.echo(result.explanations[explain])
    else:
        show_virtual(result, Console())
