"""`rollmux demo`: two real jobs on this machine, alone and woven; or the paper's production jobs in virtual time."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from rollmux.cli.outputs import console
from rollmux.cli.refusals import require_name
from rollmux.cli.top_screen import screen
from rollmux.cli.virtual_demo import POLICIES, as_data, play_demo
from rollmux.cli.virtual_demo import show as show_virtual
from rollmux.cli.woven.figures import Figures, Measured, figures
from rollmux.cli.woven.jobs import SLO_ALONE, SLO_WOVEN, DemoJob, Engine, Phases, jobs
from rollmux.cli.woven.runs import Look, run
from rollmux.cli.woven.show import show
from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView
from rollmux.protocol.views import ClusterView
from rollmux.report.trace import trace_of

LONGEST = 1.05  # what is said of a phase, over the longest that was seen


def demo(
    steps: Annotated[int, typer.Option(min=3, max=10_000, help="Steps of each job.")] = 16,
    engine: Annotated[str, typer.Option(help="slots computes a model; replay only takes time [default: slots].")] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Keep all files there.")] = None,
    virtual: Annotated[bool, typer.Option("--virtual", help="Ten production jobs in virtual time instead.")] = False,
    policy: Annotated[str, typer.Option(help=f"With --virtual: {' or '.join(POLICIES)}.")] = "rollmux",
    hours: Annotated[float, typer.Option(min=1.0, max=1000.0, help="With --virtual: time to run for.")] = 24.0,
    slo: Annotated[float, typer.Option(min=1.0, max=100.0, help="With --virtual: slowdown that is tolerated.")] = 1.5,
    explain: Annotated[str, typer.Option(metavar="JOB", help="With --virtual: what was tried for this job.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of tables.")] = False,
) -> None:
    """Train two models, each alone on nodes of its own, then both on the nodes of one, and show what it gains."""
    if virtual or explain:
        _virtual(policy, hours, slo, explain, as_json)
        return
    chosen = _engine(engine)
    with _folder(out) as folder:
        found = _real(folder, jobs(chosen, steps), as_json)
        if as_json:
            typer.echo(json.dumps(asdict(found) | {"gain": found.gain}, indent=1))
        else:
            show(found, console())
            if out is not None:
                typer.echo(f"Written: {folder}")


def _engine(name: str) -> Engine:
    """`slots`, or what there is without torch."""
    names = [each.value for each in Engine]
    require_name("engine", name or Engine.SLOTS.value, names)
    has_torch = find_spec("torch") is not None
    if not has_torch and name != Engine.REPLAY.value:
        typer.echo(
            "No torch here: the jobs only take time, and learn nothing. For real ones: pip install rollmux[torch]"
        )
        return Engine.REPLAY
    return Engine(name or Engine.SLOTS.value)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="rollmux-demo-") as name:
            yield Path(name)
        return
    if out.exists() and any(out.iterdir()):
        raise typer.BadParameter(f"--out {out}: it holds something; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    yield out.resolve()


def _real(folder: Path, pair: tuple[DemoJob, ...], as_json: bool) -> Figures:
    """Each job alone, for as long as it takes to know it; then all of them."""
    try:
        alone = [
            run(folder / f"alone-{job.name}", [job], {}, SLO_ALONE, _look(f"{job.name}, alone", as_json))
            for job in pair
        ]
        phases = {job.name: _phases(job.name, found) for job, found in zip(pair, alone, strict=True)}
        woven = run(folder / "woven", pair, phases, SLO_WOVEN, _look("both, woven", as_json))
    except RollmuxError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    (folder / "trace.json").write_text(trace_of("woven", woven.spans, {}) + "\n", encoding="utf-8")
    return figures(alone, woven, SLO_WOVEN)


def _phases(job: str, alone: Measured) -> Phases:
    """What the owner says of the job, knowing how it went alone."""
    rollout, train = (LONGEST * max(alone.phase_s(job, kind)) for kind in ("rollout", "train"))
    return Phases(rollout, train)


def _look(what: str, as_json: bool) -> Look:
    """A line for each run; on a terminal the cluster as `rollmux top` shows it."""
    shown = Console(stderr=True) if as_json else console()
    shown.print(what, highlight=False)
    live = Live(console=shown, auto_refresh=False, transient=True) if shown.is_terminal else None

    def look(url: str, cluster: ClusterView, history: HistoryView) -> None:
        if live is None:
            return
        if all(job.state == "ended" for job in cluster.jobs):
            live.stop()
            return
        live.start()
        live.update(screen(url, cluster, history, "", shown.width), refresh=True)

    return look


def _virtual(policy: str, hours: float, slo: float, explain: str, as_json: bool) -> None:
    require_name("policy", policy, list(POLICIES))
    result = play_demo(policy, hours, slo)
    if explain and explain not in result.explanations:
        raise typer.BadParameter(f"there is no job {explain!r}; choose one of {', '.join(result.explanations)}")
    if as_json:
        typer.echo(json.dumps(as_data(result), indent=1))
    elif explain:
        typer.echo(result.explanations[explain])
    else:
        show_virtual(result, Console())
