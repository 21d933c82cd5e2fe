"""`rollmux demo`: the paper's production jobs placed and woven by the real machine, in virtual time."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rollmux.cli.nodes import few_words
from rollmux.cli.outputs import fitted
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.explain import explain
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.invariants import check_all
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.abilities import able
from rollmux.sim.cast import Cast, Delays
from rollmux.sim.production import production_jobs

POLICIES: dict[str, Callable[[], Policy]] = {"rollmux": RollmuxPolicy, "paper": PaperPolicy}


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job: where it ran, and its iteration time alone, as forecast, and as measured if there were enough."""

    job: str
    group: str
    rollout: tuple[str, ...]
    train: tuple[str, ...]
    alone_s: float
    forecast_s: float
    measured_s: float | None
    slo: float

    @property
    def slowdown(self) -> float | None:
        return None if self.measured_s is None else self.measured_s / self.alone_s


@dataclass(frozen=True, slots=True)
class DemoResult:
    policy: str
    hours: float
    events: int
    dedicated_usd_per_hour: float
    woven_usd_per_hour: float
    dedicated_usd_of_work: float
    jobs: tuple[JobResult, ...]
    explanations: dict[str, str]

    @property
    def usd_of_work_ratio(self) -> float:
        """What the iterations would have cost on dedicated pools, divided by what they cost woven."""
        return self.dedicated_usd_of_work / (self.woven_usd_per_hour * self.hours)


def play_demo(policy: str, hours: float, slo: float) -> DemoResult:
    """All jobs arrive at once and run for so many virtual hours; every invariant is checked at the end."""
    jobs = [able(job) for job in production_jobs(slo)]
    machine = ClusterMachine(PAPER_CLUSTER, POLICIES[policy]())
    cast = Cast(machine, Delays(provision_s=60.0, launch_s=30.0))
    for job in jobs:
        cast.submit(0.0, job)
    cast.run(until=hours * 3600)
    state = machine.state
    check_all(state)
    results = []
    work_usd = 0.0
    pair = PAPER_CLUSTER.rollout.node_type.usd_per_hour + PAPER_CLUSTER.train.node_type.usd_per_hour
    for group in state.groups.values():
        forecast = state.policy.forecaster.forecast(group)
        for member, forecast_s in zip(group.members, forecast.iteration_s, strict=True):
            done = cast.completed[member.job.id]
            work_usd += len(done) * member.job.solo_s / 3600 * pair
            placement = member.placement
            results.append(
                JobResult(
                    member.job.id,
                    group.id,
                    placement.rollout,
                    placement.train,
                    member.job.solo_s,
                    forecast_s,
                    _steady_mean(done),
                    slo,
                )
            )
    explanations = {job_id: explain(decision) for job_id, decision in state.decisions.items()}
    return DemoResult(
        policy, hours, state.ledger.seq, pair * len(jobs), state.usd_per_hour(), work_usd, tuple(results), explanations
    )


def _steady_mean(done: list[float]) -> float | None:
    """The mean iteration time over the second half of the run; None if that half has no whole iteration."""
    half = done[len(done) // 2 :]
    gaps = [after - before for before, after in pairwise(half)]
    return sum(gaps) / len(gaps) if gaps else None


def as_data(result: DemoResult) -> dict[str, Any]:
    """The result as plain data."""
    return asdict(result) | {"usd_of_work_ratio": result.usd_of_work_ratio}


def show(result: DemoResult, console: Console) -> None:
    """Prints the result as a table, and the sums."""
    console.print(f"{len(result.jobs)} production jobs, woven for {result.hours:g} h by policy {result.policy}")
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("job", "rollout", "training"):
        table.add_column(column, no_wrap=True)
    for column in ("alone", "forecast", "took", "slower"):
        table.add_column(column, justify="right", no_wrap=True)
    last = ""
    for job in result.jobs:
        if last not in ("", job.group):
            table.add_section()
        last = job.group
        seconds = [f"{value:.0f} s" for value in (job.alone_s, job.forecast_s)]
        took = "–" if job.measured_s is None else f"{job.measured_s:.0f} s"
        slower = "–" if job.slowdown is None else f"{job.slowdown:.2f}x"
        table.add_row(job.job, few_words(job.rollout), few_words(job.train), *seconds, took, slower)
    console.print(fitted(table, console.width, "forecast", "training", "rollout", "took", "alone"))
    slowdowns = [job.slowdown for job in result.jobs if job.slowdown is not None]
    slo = result.jobs[0].slo
    met = sum(slowdown <= slo * (1 + 1e-6) for slowdown in slowdowns)
    what = "jobs" if len(slowdowns) == len(result.jobs) else "measured jobs"
    console.print(f"{met} of {len(slowdowns)} {what} within the SLO of {slo:g}; {result.events} events.")
    console.print(
        f"${result.woven_usd_per_hour:.2f} per hour woven, ${result.dedicated_usd_per_hour:.2f} on dedicated pools."
    )
    console.print(f"The iterations done cost {result.usd_of_work_ratio:.2f} times as much on dedicated pools.")
