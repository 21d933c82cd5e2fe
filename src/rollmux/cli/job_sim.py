"""`rollmux job-sim`: the steps of one job under one system or several, in virtual time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollmux.cli import options
from rollmux.cli.inputs import load_setup
from rollmux.cli.outputs import HERE, console, fitted, require_writable, write_json
from rollmux.cli.refusals import require_name
from rollmux.packer.batching import MAX_FACTOR
from rollmux.packer.commands import RoundKind
from rollmux.sim.job.played import Played, Told, play
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.summary import as_data, breakdown_s, speedup, step_s_mean, wasted_share
from rollmux.sim.job.system import SYNC, SYSTEMS, System

MAX_STEPS = 100_000

EtaOption = Annotated[
    float | None, typer.Option(metavar="X", help="Launched over wanted, in place of each over-provisioning system's.")
]


def job_sim(
    setup: Annotated[str, typer.Option(metavar="FILE|NAME", help=f"A YAML file, or {', '.join(SETUPS)}.")] = "7B/8k",
    system: Annotated[
        str, typer.Option(metavar="S,T", help=f"One or several of {', '.join(SYSTEMS)}; {SYNC.name} is always run.")
    ] = ",".join(SYSTEMS),
    eta_prompts: EtaOption = None,
    eta_responses: EtaOption = None,
    steps: Annotated[int, typer.Option(min=1, max=MAX_STEPS, help="How many steps each system runs.")] = 40,
    seed: Annotated[int, typer.Option(help="Draws the prompts, lengths and programs, for all systems alike.")] = 0,
    json_out: options.JsonOut = None,
) -> None:
    """Run the steps of one job under one system or several: how long they take, and which lengths are trained."""
    systems = _with_factors(_systems(system), eta_prompts, eta_responses)
    require_writable("--json", json_out)
    job = load_setup(setup)
    played = _play_all(job, systems, steps, seed)
    if json_out is not None:
        write_json(as_data(job, seed, played, played[SYNC.name]), json_out)
    if json_out != HERE:
        _show(job, played, console())
        if json_out is not None:
            typer.echo(f"Written: {json_out}")


def _systems(text: str) -> dict[str, System]:
    """The named systems, after `sync`, with which all are compared."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter(f"--system names nothing; choose from {', '.join(SYSTEMS)}")
    for name in names:
        require_name("system", name, tuple(SYSTEMS))
    return {name: SYSTEMS[name] for name in (SYNC.name, *names)}


def _with_factors(
    systems: Mapping[str, System], eta_prompts: float | None, eta_responses: float | None
) -> dict[str, System]:
    """The systems: those that over-provision have these factors, the others are as they were."""
    for option, factor in (("--eta-prompts", eta_prompts), ("--eta-responses", eta_responses)):
        if factor is not None and not 1.0 <= factor <= MAX_FACTOR:
            raise typer.BadParameter(f"{option} {factor:g}: give a number from 1 to {MAX_FACTOR:g}")
    racing = [name for name, system in systems.items() if _over_provisions(system)]
    if not racing and (eta_prompts or eta_responses):
        able = ", ".join(name for name, system in SYSTEMS.items() if _over_provisions(system))
        raise typer.BadParameter(f"--eta: none of {', '.join(systems)} over-provisions; add one of {able} to --system")
    changed = {name: _with_factors_of(systems[name], eta_prompts, eta_responses) for name in racing}
    return {**systems, **changed}


def _with_factors_of(system: System, eta_prompts: float | None, eta_responses: float | None) -> System:
    return replace(
        system,
        eta_prompts=eta_prompts or system.eta_prompts,
        eta_responses=eta_responses or system.eta_responses,
    )


def _over_provisions(system: System) -> bool:
    return system.eta_prompts > 1 or system.eta_responses > 1


def _play_all(setup: Setup, systems: Mapping[str, System], steps: int, seed: int) -> dict[str, Played]:
    """Plays all systems one after the other, with a bar in a terminal."""
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    played = {}
    with Progress(*columns, TimeElapsedColumn(), console=screen, disable=not screen.is_terminal) as bar:
        for name, system in systems.items():
            told = _teller(bar, bar.add_task(name, total=steps))
            played[name] = play(setup, system, steps, seed, told)
    return played


def _teller(bar: Progress, task: TaskID) -> Told:
    return lambda done: bar.update(task, completed=done)


def _show(setup: Setup, played: Mapping[str, Played], console: Console) -> None:
    """Prints a line for each system."""
    sync = played[SYNC.name]
    title = f"{setup.name}: {len(sync.steps)} steps of {setup.prompts} × {setup.responses} responses"
    table = Table(box=SIMPLE, title=title, title_justify="left")
    parts = ("rollout", "reward", "train")
    for column in ("system", "step s", "short", "long", *parts, "speed-up", "wasted", "mean length"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, each in played.items():
        means = (
            step_s_mean(each.whole),
            *(step_s_mean(each.whole, kind) for kind in (RoundKind.SHORT, RoundKind.LONG)),
        )
        breakdown = breakdown_s(each.whole)
        table.add_row(
            name,
            *("–" if mean is None else f"{mean:.1f}" for mean in means),
            *(f"{breakdown[part]:.1f}" for part in parts),
            f"{speedup(each, sync):.2f}×",
            f"{wasted_share(each):.1%}",
            f"{each.bias.overall.mean_shift:+.1%}",
        )
    console.print(fitted(table, console.width, *reversed(parts), "mean length", "wasted", "long", "short"))
    console.print("Means are of whole cycles. Wasted: of all tokens made. Mean length: trained over offered.")
    for name, each in played.items():
        if each.waiting_prompts and all(step.kind is not RoundKind.LONG for step in each.steps):
            console.print(
                f"{name}: {each.waiting_prompts} prompts still wait for the first long round, so it looks faster "
                "than it is; take more --steps."
            )
