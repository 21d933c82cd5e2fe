"""`rollmux plan`: who would share which nodes, how fast each job would be, and what an hour would cost."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rollmux.cli import options, simulated
from rollmux.cli.clusters import load_cluster
from rollmux.cli.inputs import load_workload
from rollmux.cli.nodes import few_words
from rollmux.cli.outputs import HERE, console, fitted, require_writable, write_json
from rollmux.cli.refusals import refusals, require_name
from rollmux.sim.abilities import PAUSE_S, SPARES, able
from rollmux.sim.planning import PlannedCluster, PlannedJob, plan_jobs
from rollmux.sim.policies import CONTENDERS

NAMES = tuple(name for name, contender in CONTENDERS.items() if not contender.colocated)
ALL = "all"
SHOWN_NAMES = 5
_SPARE = ("alone", "SLO", "here", "rollout", "training", "per hour", "headroom", "group")


def plan(
    jobs: Annotated[str, typer.Argument(metavar="JOBS", help="A workload file, or the name of a generator.")],
    cluster: options.ClusterFile = None,
    policy: Annotated[str, typer.Option(help=f"Where jobs go: {', '.join(NAMES)}.")] = "rollmux",
    max_group: simulated.MaxGroup = 0,
    pause_s: simulated.PauseS = PAUSE_S,
    spares: simulated.Spares = SPARES,
    first: Annotated[int | None, typer.Option(min=1, help="Plan so many jobs only, the first ones.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws a generator's jobs, and the lots of policy random.")] = 0,
    explain: Annotated[
        str, typer.Option(metavar=f"JOB|{ALL}", help="Show what was tried for this job, or for every job, and why.")
    ] = "",
    json_out: options.JsonOut = None,
) -> None:
    """Plan a set of jobs as if all of them came at once: groups, nodes, cost, iteration times, SLO headroom."""
    require_name("policy", policy, NAMES)
    require_writable("--json", json_out)
    arrivals = load_workload(jobs, seed).arrivals[:first]
    machines = load_cluster(cluster)
    contender = CONTENDERS[policy]
    with refusals():
        wanted = [able(arrival.job, pause_s, spares) for arrival in arrivals]
        planned = plan_jobs(wanted, contender.make(max_group or contender.max_group, seed), machines)
    if explain not in ("", ALL):
        require_name("job", explain, tuple(planned.explanations))
    if json_out is not None:
        write_json(as_data(planned), json_out)
    if json_out == HERE:
        return
    if explain:
        chosen = [explain] if explain in planned.explanations else list(planned.explanations)
        typer.echo("\n".join(planned.explanations[name] for name in chosen))
    else:
        show(planned, console())


def as_data(planned: PlannedCluster) -> dict[str, Any]:
    """The plan as plain data, with all figures that follow from it."""
    return {
        "policy": planned.policy,
        "jobs": sum(len(group.jobs) for group in planned.groups),
        "usd_per_hour": planned.usd_per_hour,
        "dedicated_usd_per_hour": planned.dedicated_usd_per_hour,
        "saved": planned.saved,
        "groups": [asdict(group) | {"jobs": list(map(_job_data, group.jobs))} for group in planned.groups],
        "unplaced": [asdict(job) for job in planned.unplaced],
        "explanations": planned.explanations,
    }


def _job_data(job: PlannedJob) -> dict[str, Any]:
    return {
        "job": job.job,
        "rollout_nodes": job.placement.rollout,
        "train_nodes": job.placement.train,
        "solo_s": job.solo_s,
        "iteration_s": job.iteration_s,
        "limit_s": job.limit_s,
        "slo": job.slo,
        "slowdown": job.slowdown,
        "headroom": job.headroom,
    }


def show(planned: PlannedCluster, console: Console) -> None:
    """Prints a line per job, a section per group, and what all cost."""
    placed = sum(len(group.jobs) for group in planned.groups)
    console.print(f"{placed} jobs in {len(planned.groups)} groups by policy {planned.policy}")
    if planned.groups:
        console.print(fitted(_table(planned), console.width, *_SPARE))
        console.print(
            f"${planned.usd_per_hour:,.2f} per hour shared, ${planned.dedicated_usd_per_hour:,.2f} on dedicated nodes: "
            f"{planned.saved:.1%} saved."
        )
    if planned.unplaced:
        console.print(f"{len(planned.unplaced)} of {placed + len(planned.unplaced)} jobs have no place:")
        for line in _reasons(planned):
            console.print(f"  {line}")


def _reasons(planned: PlannedCluster) -> list[str]:
    """Why jobs have no place: a line for each reason, which names the first jobs that have it."""
    by_reason: dict[str, list[str]] = {}
    for job in planned.unplaced:
        by_reason.setdefault(job.reason, []).append(job.job)
    lines = []
    for reason, jobs in by_reason.items():
        more = f" and {len(jobs) - SHOWN_NAMES} more" if len(jobs) > SHOWN_NAMES else ""
        lines.append(f"{', '.join(jobs[:SHOWN_NAMES])}{more}: {reason}.")
    return lines


def _table(planned: PlannedCluster) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("group", "job", "rollout", "training"):
        table.add_column(column, overflow="fold")
    for column in ("alone", "here", "slower", "SLO", "headroom", "per hour"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in planned.groups:
        for place, job in enumerate(group.jobs):
            table.add_row(
                group.id if place == 0 else "",
                job.job,
                few_words(job.placement.rollout),
                few_words(job.placement.train),
                f"{job.solo_s:.0f} s",
                f"{job.iteration_s:.0f} s",
                f"{job.slowdown:.2f}x",
                f"{job.slo:.2f}",
                f"{max(0.0, job.headroom):.1%}",
                f"${group.usd_per_hour:,.2f}" if place == 0 else "",
            )
        table.add_section()
    return table
