"""`rollmux simulate`: a workload under one policy or several, in virtual time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollmux.cli import options, simulated
from rollmux.cli.clusters import load_cluster
from rollmux.cli.inputs import load_workload
from rollmux.cli.job_tier import JobTier, JobTierOption, SloOfOption, StaggerOption, load_job_tier
from rollmux.cli.outputs import HERE, console, fitted, require_apart, require_writable, write_json, write_text
from rollmux.cli.refusals import refusals
from rollmux.cli.workload import describe_workload
from rollmux.mux.hardware import Cluster
from rollmux.mux.validation import MAX_DURATION_S
from rollmux.report.page import html_report
from rollmux.report.trace import chrome_trace
from rollmux.sim.abilities import PAUSE_S, SPARES
from rollmux.sim.faults import MOST_ATTEMPTS, Faults
from rollmux.sim.limits import workload_bound_usd
from rollmux.sim.optimal_run import OptimalRun, optimal_replay, require_optimum
from rollmux.sim.outcome import Outcome
from rollmux.sim.policies import CONTENDERS, OPTIMAL, played_paced
from rollmux.sim.realised import BOUND, DISTRIBUTIONS, durations
from rollmux.sim.replay import Accounting, Fidelity, Settings, Told, replay
from rollmux.sim.summary import percentile, summary
from rollmux.sim.workload import Workload

NAMES = (*CONTENDERS, OPTIMAL)


def simulate(
    workload: Annotated[str, typer.Option(help="A workload file, or a generator's name (see `workload make`).")],
    policy: Annotated[
        str, typer.Option(help=f"One or several, with commas: {', '.join(NAMES)}.")
    ] = "solo,paper,rollmux",
    cluster: options.ClusterFile = None,
    accounting: simulated.EndedBy = Accounting.WORK,
    fidelity: Annotated[
        Fidelity, typer.Option(help="Every phase through the machine, or jobs at their forecast pace (faster).")
    ] = Fidelity.PHASE,
    max_group: simulated.MaxGroup = 0,
    seed: Annotated[int, typer.Option(min=0, help="Draws the workload, real durations, lots and faults.")] = 0,
    realised: simulated.Realised = BOUND,
    job_tier: JobTierOption = None,
    slo_of: SloOfOption = None,
    stagger: StaggerOption = None,
    move_s: simulated.MoveS = 300.0,
    pause_s: simulated.PauseS = PAUSE_S,
    spares: simulated.Spares = SPARES,
    node_mtbf_h: Annotated[float | None, typer.Option(help="Mean hours between losses of one node.")] = None,
    job_mtbf_h: Annotated[float | None, typer.Option(help="Mean hours between failures of one running job.")] = None,
    json_out: options.JsonOut = None,
    report: Annotated[Path | None, typer.Option(metavar="OUT.html", help="Write a page to look at.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Write a Perfetto trace of the last policy.")
    ] = None,
    timings: Annotated[
        bool, typer.Option(help="Put decision latencies into the JSON, which then differs from run to run.")
    ] = False,
) -> None:
    """Replay a workload under one policy or several: what it costs, and whose SLO breaks."""
    names, files = _policies(policy), _Files(json_out, report, trace)
    _require_played(fidelity, realised, trace, names[-1])
    faults = _faults(node_mtbf_h, job_mtbf_h)
    _require_seconds(move_s, pause_s)
    simulated.note_paced(names, realised)
    files.require_writable()
    jobs = load_workload(workload, seed)
    tier = load_job_tier(
        job_tier, jobs, slo_of=slo_of, stagger=stagger, fidelity=fidelity, realised=realised, seed=seed
    )
    if tier is not None:
        jobs = tier.workload
    settings = Settings(
        cluster=load_cluster(cluster),
        accounting=accounting,
        fidelity=fidelity,
        max_group=max_group,
        seed=seed,
        move_s=move_s,
        pause_s=pause_s,
        spares=spares,
        takes=durations(realised, seed),
        packing=None if tier is None else tier.packing,
        faults=faults,
        history=files.draws,
    )
    if OPTIMAL in names:
        with refusals():
            require_optimum(jobs, settings.cluster)
    runs = run_all(jobs, names, settings, Console(stderr=True))
    notes = list(simulated.notes_on(names, realised, struck=faults is not None))
    files.write(
        lambda: as_data(jobs, runs, settings, realised, timings, tier), jobs.name, [run.outcome for run in runs], notes
    )
    if not files.is_one_here:
        show(jobs, runs, settings.cluster, console(), notes)
        files.tell()


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that the command is asked to write."""

    json: Path | None
    report: Path | None
    trace: Path | None

    @property
    def draws(self) -> bool:
        return bool(self.report or self.trace)

    @property
    def is_one_here(self) -> bool:
        """Whether one of them goes to standard output, on which then nothing else is printed."""
        return HERE in (self.json, self.report, self.trace)

    def require_writable(self) -> None:
        for option, out in (("--json", self.json), ("--report", self.report), ("--trace", self.trace)):
            require_writable(option, out)
        require_apart(json=self.json, report=self.report, trace=self.trace)

    def write(self, data: Callable[[], Any], name: str, outcomes: Sequence[Outcome], notes: Sequence[str]) -> None:
        """Writes the figures, the page of all runs, and the trace of the last one, as far as asked for."""
        if self.json is not None:
            write_json(data(), self.json)
        if self.report is not None:
            write_text(html_report(f"RollMux: {name}", outcomes, notes), self.report)
        if self.trace is not None:
            write_text(chrome_trace(outcomes[-1]), self.trace)

    def tell(self) -> None:
        for path in (self.json, self.report, self.trace):
            if path is not None:
                typer.echo(f"Written: {path}")


def _policies(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise typer.BadParameter(f"there is no policy {', '.join(unknown) or 'named'}; choose from {', '.join(NAMES)}")
    return names


def _require_seconds(move_s: float, pause_s: float) -> None:
    for option, seconds in (("--move-s", move_s), ("--pause-s", pause_s)):
        if not isfinite(seconds):
            raise typer.BadParameter(f"{option} {seconds:g}: give seconds")
    if pause_s > MAX_DURATION_S:  # every job would be refused
        raise typer.BadParameter(f"--pause-s {pause_s:g}: give at most {MAX_DURATION_S:g} s")


def _faults(node_mtbf_h: float | None, job_mtbf_h: float | None) -> Faults | None:
    for option, hours in (("--node-mtbf-h", node_mtbf_h), ("--job-mtbf-h", job_mtbf_h)):
        if hours is not None and not (hours > 0 and isfinite(hours)):
            raise typer.BadParameter(f"{option} {hours:g}: give hours above 0, or leave it out for never")
    return None if node_mtbf_h is None and job_mtbf_h is None else Faults(node_mtbf_h, job_mtbf_h)


def _require_played(fidelity: Fidelity, realised: str, trace: Path | None, last: str) -> None:
    """Raises BadParameter if an option is about single phases, and these are not played."""
    if realised not in DISTRIBUTIONS:
        raise typer.BadParameter(f"there is no distribution {realised!r}; choose {', '.join(DISTRIBUTIONS)}")
    if fidelity is Fidelity.PACE and (realised != BOUND or trace):
        raise typer.BadParameter("--fidelity pace plays no single phase: --realised and --trace need --fidelity phase")
    if trace and played_paced(last):
        raise typer.BadParameter(f"--trace is of the last policy, and {last} plays no single phase: name another last")


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's outcome; for the optimum also the proof of how good it is."""

    outcome: Outcome
    proof: OptimalRun | None = None


def run_all(workload: Workload, names: Sequence[str], settings: Settings, console: Console) -> list[Run]:
    """Runs all policies one after the other, with a bar in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} jobs"))
    runs = []
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        for name in names:
            task = bar.add_task(name, total=len(workload.arrivals))
            if name == OPTIMAL:
                proof = optimal_replay(workload, settings)
                runs.append(Run(proof.outcome, proof))
            else:
                runs.append(Run(replay(workload, name, settings, _teller(bar, task))))
            bar.update(task, completed=len(workload.arrivals))
    return runs


def _teller(bar: Progress, task: TaskID) -> Told:
    return lambda arrived, _: bar.update(task, completed=arrived)


def as_data(
    workload: Workload,
    runs: Sequence[Run],
    settings: Settings,
    realised: str,
    timings: bool,
    tier: JobTier | None = None,
) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    policies = {}
    for run in runs:
        name, proof = run.outcome.policy, run.proof
        paced = settings.fidelity is Fidelity.PACE or played_paced(name)
        played = {
            "fidelity": (Fidelity.PACE if paced else Fidelity.PHASE).value,
            "realised": BOUND if paced else realised,
        }
        figures = {**played, **summary(run.outcome, timings)}
        if proof is not None:
            figures["optimum"] = {
                "bound_usd": proof.bound_usd,
                "mean_gap": proof.mean_gap,
                "regroups": proof.regroups,
                "proven": proof.proven,
            }
        policies[name] = figures
    about = {
        **asdict(describe_workload(workload)),
        "accounting": settings.accounting.value,
        "seed": settings.seed,
        "realised": realised,
        "max_group": settings.max_group or None,
        "move_s": settings.move_s,
        "pause_s": settings.pause_s if settings.pause_s >= 0 else None,
        "spares": settings.spares,
        "job_tier": None if tier is None else tier.as_data(),
        "node_mtbf_h": None if settings.faults is None else settings.faults.node_mtbf_h,
        "job_mtbf_h": None if settings.faults is None else settings.faults.job_mtbf_h,
        "lower_bound_usd": _bound_usd(workload, settings, realised),
    }
    return {"workload": about, "policies": policies}


def _bound_usd(workload: Workload, settings: Settings, realised: str) -> float | None:
    """The lower bound of the cost; None where none holds: it is for all work, with each phase at its bound."""
    if realised != BOUND or settings.accounting is Accounting.LIFETIME:
        return None
    return workload_bound_usd(workload, settings.cluster, settings.max_group or None)


_SHOWN = 5
# What the names of some columns do not tell.
_COLUMNS = {
    "× fluid": simulated.OVER_FLUID,
    "× whole-node": simulated.OVER_WHOLE_NODE,
    "worst": "Worst: slowdown over SLO of the unluckiest job.",
    "busy": "Busy: rollout / training nodes.",
    "decision": "Decision: how long one takes, p99.",
}


def show(
    workload: Workload, runs: Sequence[Run], cluster: Cluster, console: Console, notes: Sequence[str] = ()
) -> None:
    """A line for each policy."""
    table = Table(box=SIMPLE, title=f"{workload.name}: {len(workload.arrivals)} jobs", title_justify="left")
    for column in (
        "policy",
        "cost",
        "per hour",
        "× fluid",
        "× whole-node",
        "SLO kept",
        "worst",
        "moves",
        "busy",
        "decision",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for run in runs:
        outcome = run.outcome
        worst = max((job.over_slo for job in outcome.jobs), default=0.0)
        busy = " / ".join(_per(h.busy, h.paid, "{:.0%}") for h in (outcome.rollout, outcome.train))
        p99 = percentile(outcome.decision_ms, 99)
        table.add_row(
            outcome.policy,
            f"${outcome.usd_total:,.0f}",
            _per(outcome.usd_total, outcome.billed_h, "${:,.2f}"),
            _per(outcome.usd_total, outcome.fluid_usd, "{:.3f}"),
            _per(outcome.usd_total, outcome.whole_node_usd, "{:.3f}"),
            f"{outcome.slo_attainment:.1%}",
            f"{worst:.3f}",
            str(outcome.moves),
            busy,
            "–" if p99 is None else f"{p99:.2f} ms",
        )
    table = fitted(table, console.width, "decision", "moves", "per hour", "× whole-node", "busy", "worst", "× fluid")
    console.print(table)
    shown = {column.header for column in table.columns}
    for name, said in _COLUMNS.items():
        if name in shown:
            console.print(said)
    for note in notes:
        console.print(note)
    if not any(pool.on_demand for pool in cluster.pools):
        ends = ", ".join(f"{run.outcome.makespan_h:,.1f} h ({run.outcome.policy})" for run in runs)
        console.print(
            f"All machines of this cluster are paid for until the last job ends, after {ends}. With on_demand: true in "
            "the cluster's file only those in use are."
        )
    for run in runs:
        for note in _notes(run):
            console.print(note)


def _notes(run: Run) -> Iterator[str]:
    """What the line of a policy does not tell."""
    outcome, proof = run.outcome, run.proof
    homeless = [job.job for job in outcome.jobs if not job.group]
    if homeless:
        yield f"{outcome.policy}: {len(homeless)} jobs never had a place: {_some(homeless)}."
    refused = [f"{outcome.policy} refused {job.job}: {job.refused}." for job in outcome.jobs if job.refused]
    yield from refused[:_SHOWN]
    if refused[_SHOWN:]:
        yield f"{outcome.policy} refused {len(refused) - _SHOWN} more."
    failed = [job.job for job in outcome.jobs if job.failed]
    if failed:
        how = f"failed or lost nodes {MOST_ATTEMPTS} times and were given up"
        yield f"{outcome.policy}: {len(failed)} jobs {how}: {_some(failed)}."
    if outcome.restarts:
        yield f"{outcome.policy}: {outcome.restarts} restarts after faults."
    if proof is not None:
        yield (
            f"optimal regroups freely and for nothing. {proof.proven} of {proof.regroups} groupings are "
            f"proven the cheapest; the mean gap to the bound is {proof.mean_gap:.2%}."
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


def _per(value: float, base: float, form: str) -> str:
    return form.format(value / base) if base else "–"
