"""`rollmux workload`: workloads made, imported and described."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from rollmux.cli import options, simulated
from rollmux.cli.inputs import load_workload
from rollmux.cli.outputs import require_writable, show
from rollmux.cli.refusals import refusals
from rollmux.sim.generate import GENERATORS, PROFILES
from rollmux.sim.importers import IMPORTERS, Selection, import_sia
from rollmux.sim.workload import HOUR_S, Workload
from rollmux.sim.workload_file import is_parquet, write_workload

NAMES = ", ".join(GENERATORS)

workload_app = typer.Typer(no_args_is_help=True, help="Make, import and describe workloads.")


@dataclass(frozen=True, slots=True)
class Description:
    """The figures of a workload if each of its jobs were alone on nodes of its own.

    Concurrency is taken from the first arrival to the last end; node hours are those in which phases work.
    """

    name: str
    jobs: int
    last_arrival_h: float
    end_h: float
    mean_duration_h: float
    longest_duration_h: float
    mean_concurrency: float
    most_at_once: int
    iterations: int
    rollout_node_hours: float
    train_node_hours: float
    rollout_share: float
    slo_quantiles: tuple[float, ...]  # least, quartiles, greatest


def describe_workload(workload: Workload) -> Description:
    """The figures of a workload with at least one job."""
    arrivals = workload.arrivals
    durations = [arrival.duration_s / HOUR_S for arrival in arrivals]
    slos = [arrival.job.slo for arrival in arrivals]
    span_s = workload.end_s - workload.first_s
    work = [(a.iterations / HOUR_S, a.job.rollout, a.job.train) for a in arrivals]
    rollout_h = sum(times * rollout.planned_s * rollout.nodes for times, rollout, _ in work)
    train_h = sum(times * train.planned_s * train.nodes for times, _, train in work)
    inner = quantiles(slos, n=4, method="inclusive") if len(slos) > 1 else slos * 3
    return Description(
        name=workload.name,
        jobs=len(arrivals),
        last_arrival_h=arrivals[-1].at_s / HOUR_S,
        end_h=workload.end_s / HOUR_S,
        mean_duration_h=mean(durations),
        longest_duration_h=max(durations),
        mean_concurrency=sum(durations) * HOUR_S / span_s,
        most_at_once=_most_at_once(workload),
        iterations=sum(arrival.iterations for arrival in arrivals),
        rollout_node_hours=rollout_h,
        train_node_hours=train_h,
        rollout_share=rollout_h / (rollout_h + train_h),
        slo_quantiles=(min(slos), *inner, max(slos)),
    )


def _most_at_once(workload: Workload) -> int:
    """The most jobs at one time; a job that ends in the moment in which another arrives is not counted with it."""
    changes = [(a.at_s, 1) for a in workload.arrivals] + [(a.at_s + a.duration_s, -1) for a in workload.arrivals]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@workload_app.command()
def make(
    name: Annotated[str, typer.Argument(help=f"One of {NAMES}.")],
    out: simulated.Out,
    jobs: Annotated[int | None, typer.Option(help="How many jobs; otherwise the workload's own number.")] = None,
    hours: simulated.Hours = None,
    seed: simulated.Seed = 0,
) -> None:
    """Draw a workload from a seed and write it to a file."""
    if name not in GENERATORS:
        raise typer.BadParameter(f"there is no workload {name!r}; choose {NAMES}")
    _require_file(out)
    with refusals():
        _write(GENERATORS[name](seed, jobs, hours), out)


@workload_app.command("import")
def import_trace(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(IMPORTERS)}.")],
    trace: Annotated[Path, typer.Argument(metavar="FILE", help="The trace's file, as published.")],
    *,
    out: simulated.Out,
    profile: Annotated[str, typer.Option(help=f"Phases of the jobs: {', '.join(PROFILES)}.")] = "mixed",
    jobs: Annotated[int | None, typer.Option(help="Take so many jobs only, the first ones.")] = None,
    evenly: Annotated[bool, typer.Option("--evenly", help="Take them from first to last instead.")] = False,
    start: Annotated[float, typer.Option(help="Skip so many hours, from the first usable job on.")] = 0.0,
    hours: Annotated[float | None, typer.Option(help="Take jobs that arrive within so many hours from there.")] = None,
    min_duration: Annotated[float, typer.Option(help="Leave out jobs that ran for fewer hours.")] = 0.0,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Give jobs the nodes that hold their GPUs; otherwise one of each pool.")
    ] = None,
    app_hours: Annotated[
        list[str] | None, typer.Option(metavar="APP=HOURS", help="Sia only: how long an application's jobs run.")
    ] = None,
    seed: simulated.Seed = 0,
) -> None:
    """Turn a public trace of a GPU cluster into a workload: its arrivals and durations, with phases drawn.

    philly takes cluster_job_log of github.com/msr-fiddle/philly-traces.

    alibaba takes pai_task_table or pai_job_table of Alibaba's cluster-trace-gpu-v2020.

    sia takes a workload CSV of Sia's or Pollux's simulator, with a column duration (seconds) or with --app-hours.
    """
    if form not in IMPORTERS:
        raise typer.BadParameter(f"there is no format {form!r}; choose {', '.join(IMPORTERS)}")
    if app_hours and form != "sia":
        raise typer.BadParameter(f"--app-hours is for sia; {form} has durations of its own")
    _require_file(out)
    wants = Selection(
        jobs=jobs,
        evenly=evenly,
        start_h=start,
        hours=hours,
        min_duration_h=min_duration,
        profile=profile,
        seed=seed,
        gpus_per_node=gpus_per_node,
    )
    with refusals():
        if form == "sia":
            _write(import_sia(trace, wants, dict(map(_app_hours, app_hours or ()))), out)
        else:
            _write(IMPORTERS[form](trace, wants), out)


def _app_hours(text: str) -> tuple[str, float]:
    application, _, hours = text.partition("=")
    try:
        return application, float(hours)
    except ValueError as error:
        raise typer.BadParameter(f"--app-hours {text}: write it like bert=2.5") from error


def _require_file(out: Path) -> None:
    """Raises BadParameter unless a workload can be written there."""
    require_writable("--out", out)
    with refusals():
        is_parquet(out)


def _write(workload: Workload, out: Path) -> None:
    write_workload(workload, out)
    last_h = workload.arrivals[-1].at_s / HOUR_S
    typer.echo(f"{out}: {len(workload.arrivals)} jobs that arrive over {last_h:.1f} h")


@workload_app.command()
def describe(
    workload: Annotated[str, typer.Argument(metavar="FILE|NAME", help=f"A file, or one of {NAMES}.")],
    seed: simulated.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Say how many jobs come, how long they run, and how much work they bring to each pool."""
    description = describe_workload(load_workload(workload, seed))
    show(description, as_json, _table(description))


def _table(d: Description) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_header=False, title=f"workload {d.name}", title_justify="left")
    rows = {
        "jobs": f"{d.jobs}",
        "last arrival": f"{d.last_arrival_h:.1f} h",
        "end of the last, alone": f"{d.end_h:.1f} h",
        "mean duration alone": f"{d.mean_duration_h:.1f} h",
        "longest duration alone": f"{d.longest_duration_h:.1f} h",
        "jobs at once, alone": f"{d.mean_concurrency:.1f} on average, {d.most_at_once} at most",
        "iterations": f"{d.iterations}",
        "rollout work": f"{d.rollout_node_hours:.1f} node hours, {d.rollout_share:.0%}",
        "training work": f"{d.train_node_hours:.1f} node hours, {1 - d.rollout_share:.0%}",
        "SLO, least to greatest by quarters": " ".join(f"{slo:.2f}" for slo in d.slo_quantiles),
    }
    for what, figure in rows.items():
        table.add_row(what, figure)
    return table
