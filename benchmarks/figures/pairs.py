"""The paper's two pairs of jobs by our forecast: iterations for a dollar, and slowdowns."""

from dataclasses import dataclass, replace

from benchmarks.figures.goals import per_dollar
from benchmarks.figures.reported import ITERATION_S, PHASES_A_S
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.placed import Member, Placement
from rollmux.sim.baselines import SliceForecaster, on_training_nodes, training_only
from rollmux.sim.production import production_jobs

SLO = 2.0  # of both jobs of a pair; it changes no iteration time here


@dataclass(frozen=True, slots=True)
class Shared:
    """Iteration seconds of jobs on these nodes, their price, and iterations for a dollar over those alone."""

    iteration_s: tuple[float, ...]
    usd_per_hour: float
    over_solo: float


def together(jobs: tuple[JobSpec, ...], one_train_node: bool = True) -> Group:
    """The jobs on one rollout node, and on one training node or on one each."""
    return Group(
        "pair",
        tuple(
            Member.of(job, Placement(("rollout-0",), ("train-0" if one_train_node else f"train-{i}",)))
            for i, job in enumerate(jobs)
        ),
    )


def job_a(name: str, rest_s: float = 0.0) -> JobSpec:
    """A job of type A; `rest_s` is what an iteration takes beside its phases, and is no nodes' work."""
    rollout_s, train_s = PHASES_A_S
    return JobSpec(name, PhaseSpec(rollout_s, nodes=1), PhaseSpec(train_s, nodes=1), SLO, sync_s=rest_s)


def micro_benchmark(rest_s: float = 0.0) -> dict[str, Shared]:
    """Two jobs of type A alone, by turns as wholes, each on training nodes alone, and woven."""
    jobs = (job_a("a", rest_s), job_a("b", rest_s))
    pair, alone = together(jobs), together(jobs[:1])
    solo_s, solo_usd = jobs[0].solo_s, alone.usd_per_hour(PAPER_CLUSTER)
    colocated_s = on_training_nodes(jobs[0], PAPER_CLUSTER).solo_s
    colocated_usd = training_only(PAPER_CLUSTER).train.node_type.usd_per_hour
    found = {
        "solo": ((solo_s,), solo_usd),
        "gavel": (SliceForecaster().forecast(pair).iteration_s, pair.usd_per_hour(PAPER_CLUSTER)),
        "colocated": ((colocated_s,), colocated_usd),
        "paper": (Forecaster().forecast(pair).iteration_s, pair.usd_per_hour(PAPER_CLUSTER)),
    }
    base = per_dollar(1 / solo_s, solo_usd)
    return {
        name: Shared(times, usd, per_dollar(sum(1 / time_s for time_s in times), usd) / base)
        for name, (times, usd) in found.items()
    }


def unsaid_s() -> float:
    """What the paper's measured iteration alone takes beyond its two phases."""
    return ITERATION_S["solo"] - sum(PHASES_A_S)


def slowdowns(names: tuple[str, ...], switches: bool, one_train_node: bool) -> tuple[float, ...]:
    """Of these production jobs on one rollout node, with or without switches and sync."""
    jobs = tuple(job for name in names for job in production_jobs(SLO) if job.id == name)
    if not switches:
        jobs = tuple(
            replace(job, rollout=replace(job.rollout, load_s=0.0), train=replace(job.train, load_s=0.0), sync_s=0.0)
            for job in jobs
        )
    times = Forecaster().forecast(together(jobs, one_train_node)).iteration_s
    return tuple(time_s / job.solo_s for time_s, job in zip(times, jobs, strict=True))
