"""`rollmux sweep`: policies over many seeds and parameters, on all cores, with confidence intervals."""

from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rollmux.cli import options, simulated
from rollmux.cli.outputs import HERE, console, fitted, require_apart, require_writable, write_json
from rollmux.cli.refusals import refusals, require_name
from rollmux.sim.abilities import PAUSE_S, SPARES
from rollmux.sim.generate import GENERATORS
from rollmux.sim.policies import CONTENDERS, OPTIMAL, played_paced
from rollmux.sim.realised import BOUND
from rollmux.sim.replay import Accounting, Fidelity
from rollmux.sim.sweep import FIGURES, Case, Figures, Interval, Summary, is_drawn, summaries
from rollmux.sim.sweep import sweep as run_sweep
from rollmux.system import cores

NAMES = (*CONTENDERS, OPTIMAL)
MAX_SEEDS = 100_000


def sweep(
    workload: Annotated[
        str, typer.Option(metavar="A,B", help=f"Files, or generators: {', '.join(GENERATORS)}.")
    ] = "mixed",
    policy: Annotated[
        str, typer.Option(metavar="P,Q", help=f"One or several of {', '.join(NAMES)}.")
    ] = "paper,rollmux",
    seeds: Annotated[str, typer.Option(metavar="N|A:B", help="So many seeds from 0, or those from A to B - 1.")] = "20",
    jobs: Annotated[int | None, typer.Option(help="How many jobs a generator draws; otherwise its own number.")] = None,
    hours: simulated.Hours = None,
    cluster: options.ClusterFile = None,
    accounting: simulated.EndedBy = Accounting.WORK,
    fidelity: Annotated[
        Fidelity, typer.Option(help="Jobs at their forecast pace, or every phase through the machine (slower).")
    ] = Fidelity.PACE,
    realised: simulated.Realised = BOUND,
    max_group: Annotated[
        str, typer.Option(metavar="N,M", help="The most jobs in a group; 0 for each policy's own.")
    ] = "0",
    move_s: simulated.MoveS = 300.0,
    pause_s: simulated.PauseS = PAUSE_S,
    spares: simulated.Spares = SPARES,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at once; otherwise one per core.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Results, a line each; those in it are not run again.")
    ] = Path("sweep.jsonl"),
    json_out: options.JsonOut = None,
) -> None:
    """Run every workload under every policy with every seed, and say what is sure about the difference."""
    asked = Case(
        workload="",
        policy="",
        jobs=jobs,
        hours=hours,
        accounting=accounting.value,
        fidelity=fidelity.value,
        move_s=move_s,
        pause_s=pause_s,
        spares=spares,
        realised=realised,
        cluster="" if cluster is None else str(cluster),
    )
    drawn_by = _seeds(seeds)
    kinds = product(_list("workload", workload), _sizes(max_group), _policies(policy), drawn_by)
    cases = [replace(asked, workload=w, max_group=most, policy=p, seed=seed) for w, most, p, seed in kinds]
    cases = [case for case in cases if case.seed == drawn_by[0] or is_drawn(case)]
    simulated.note_paced(_policies(policy), realised)
    require_writable("--out", out)
    require_writable("--json", json_out)
    require_apart(out=out, json=json_out)
    results = _run(cases, out, workers or cores())
    found = summaries(results)
    if json_out is not None:
        write_json(as_data(found), json_out)
    if json_out != HERE:
        show(found, console())
        typer.echo(f"{len(results)} runs; each is a line of {out}.")


def _run(cases: list[Case], out: Path, workers: int) -> dict[Case, Figures]:
    """Runs the sweep, with a bar in a terminal."""
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with refusals(), Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("runs", total=len(cases))
        try:
            return run_sweep(cases, out, workers, lambda done, total: bar.update(task, completed=done, total=total))
        except KeyboardInterrupt:
            typer.echo(f"Stopped. What is done is in {out}; the same command goes on from there.", err=True)
            raise
        except BrokenProcessPool as error:
            typer.echo(
                f"A worker was killed, perhaps for want of memory. What is done is in {out}; the same command goes on "
                "from there, with --workers it takes fewer processes.",
                err=True,
            )
            raise typer.Exit(1) from error


def _list(what: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter(f"--{what} names nothing; write one, or several with commas between")
    return names


def _policies(text: str) -> list[str]:
    names = _list("policy", text)
    for name in names:
        require_name("policy", name, NAMES)
    return names


def _sizes(text: str) -> list[int]:
    sizes = _list("max-group", text)
    if not all(size.isdecimal() and int(size) <= 16 for size in sizes):
        raise typer.BadParameter(f"--max-group {text}: write numbers up to 16, like 5 or 5,3")
    return list(map(int, sizes))


def _seeds(text: str) -> range:
    first, colon, end = text.rpartition(":")
    if end.isdecimal() and (first.isdecimal() or not colon) and int(first or 0) < int(end):
        found = range(int(first or 0), int(end))
        if len(found) <= MAX_SEEDS:
            return found
    raise typer.BadParameter(f"--seeds {text}: write a number like 20, or a range like 0:20, of at most {MAX_SEEDS}")


def as_data(found: list[Summary]) -> list[dict[str, Any]]:
    """A row for each workload, policy and set of parameters, each as it was played."""
    rows = []
    for each in found:
        case = asdict(each.case)
        if played_paced(each.case.policy):
            case |= {"fidelity": Fidelity.PACE.value, "realised": BOUND}
        del case["seed"]
        figures = {name: asdict(each.figures[name]) if name in each.figures else None for name in FIGURES}
        rows.append({**case, "seeds": each.seeds, **figures})
    return rows


_FORMATS = {
    "cost_over_fluid": ("× fluid", "{:.3f}"),
    "cost_over_whole_node": ("× whole-node", "{:.3f}"),
    "slo_attainment": ("SLO kept", "{:.1%}"),
    "usd_total": ("cost", "${:,.0f}"),
    "moves": ("moves", "{:,.0f}"),
}


def show(found: list[Summary], console: Console) -> None:
    """Prints a line for each row, with half the width of its 95 % confidence interval."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("workload", overflow="fold", min_width=min(20, max(len(each.case.workload) for each in found)))
    table.add_column("policy", no_wrap=True)
    for column in ("group", "seeds", *(title for title, _ in _FORMATS.values())):
        table.add_column(column, justify="right", no_wrap=True)
    last: tuple[str, int] | None = None
    for each in found:
        case = each.case
        if last not in (None, (case.workload, case.max_group)):
            table.add_section()
        last = (case.workload, case.max_group)
        cells = [_cell(each.figures.get(name), form) for name, (_, form) in _FORMATS.items()]
        table.add_row(
            case.workload, case.policy, f"≤ {case.max_group}" if case.max_group else "own", str(each.seeds), *cells
        )
    table = fitted(table, console.width, "seeds", "moves", "× whole-node", "cost", "group", "× fluid")
    console.print(table)
    headers = {column.header for column in table.columns}
    for said in (simulated.OVER_FLUID, simulated.OVER_WHOLE_NODE):
        if said.partition(":")[0] in headers:
            console.print(said)
    console.print("Means over the seeds, ± half of the 95 % confidence interval.")
    if not all(is_drawn(each.case) for each in found):
        console.print(
            "What draws nothing, as jobs of a file under most policies, is the same with every seed: run once."
        )
    policies = list(dict.fromkeys(each.case.policy for each in found))
    for note in simulated.notes_on(policies, found[0].case.realised):
        console.print(note)


def _cell(figure: Interval | None, form: str) -> str:
    if figure is None:
        return "–"
    mean = form.format(figure.mean)
    return mean if figure.half_width is None else f"{mean} ± {form.format(figure.half_width)}"
