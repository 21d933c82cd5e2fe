"""The paper's production trace, as far as it can be made again: how much each policy pays for 200 jobs over 370.2 h."""

from collections import Counter
from dataclasses import dataclass

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome, PoolHours
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay


@dataclass(frozen=True, slots=True)
class TraceRun:
    """One policy on the trace of one seed; jobs and hours are the trace's own where they are None."""

    policy: str
    seed: int
    accounting: str = Accounting.LIFETIME.value
    jobs: int | None = None
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """Means by time until the last job has ended; admissions in percent of all jobs, by kind."""

    usd_total: float
    usd_per_hour: float
    rollout_gpus: float
    train_gpus: float
    slo_attainment: float
    admissions_pct: dict[str, float]
    moves: int


def run_trace(run: TraceRun) -> TraceFigures:
    """Replays the trace at the forecast pace."""
    workload = GENERATORS["production"](run.seed, run.jobs, run.hours)
    settings = Settings(accounting=Accounting(run.accounting), fidelity=Fidelity.PACE, seed=run.seed)
    return figures(replay(workload, run.policy, settings))


def figures(outcome: Outcome) -> TraceFigures:
    """An outcome in the terms of the paper's table."""

    def gpus(hours: PoolHours, per_node: int) -> float:
        return hours.paid * per_node / outcome.makespan_h

    admitted = Counter(job.admission for job in outcome.jobs)
    return TraceFigures(
        outcome.usd_total,
        outcome.usd_total / outcome.makespan_h,
        gpus(outcome.rollout, PAPER_CLUSTER.rollout.node_type.gpus),
        gpus(outcome.train, PAPER_CLUSTER.train.node_type.gpus),
        outcome.slo_attainment,
        {name: 100 * count / len(outcome.jobs) for name, count in admitted.items()},
        outcome.moves,
    )
