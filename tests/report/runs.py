"""Small runs for the tests of reports."""

from dataclasses import replace
from math import inf

from rollmux.sim.outcome import Admission, JobOutcome, Level, Outcome, PoolHours, Span

HOUR_S = 3600.0


def job(name: str, slowdown: float = 1.25, group: str = "group-0") -> JobOutcome:
    return JobOutcome(name, 0.0, 0.1, 9.5, 40, 200.0, 200.0 * slowdown, slowdown, 1.5, group, "direct", 0)


def spans(jobs: tuple[str, ...], group: str, first_node: int, iterations: int) -> tuple[Span, ...]:
    """The jobs take turns on one node of each pool: 2 s of switch, 90 s of rollout, 10 s of tail, 80 s of training."""
    found = []
    now = 360.0
    for iteration in range(iterations):
        for name in jobs:
            rollout, train = f"rollout-{first_node}", f"train-{first_node}"
            for node, kind, start, long in (
                (rollout, "switch", 0.0, 2.0),
                (rollout, "rollout", 2.0, 90.0),
                (rollout, "tail", 92.0, 10.0),
                (train, "train", 102.0, 80.0),
            ):
                found.append(Span(node, group, name, kind, now + start, now + start + long, iteration))
            now += 102.0
    return tuple(found)


def run(policy: str = "rollmux", usd: float = 1234.56, jobs: tuple[JobOutcome, ...] | None = None) -> Outcome:
    """Two groups of two jobs for ten hours, with all of its history."""
    jobs = jobs or (job("a-2"), job("a-10", 1.4), job("b-1", 1.45, "group-10"), job("b-2", 1.0, "group-10"))
    names = tuple(one.job for one in jobs)
    return Outcome(
        policy=policy,
        usd_total=usd,
        makespan_h=10.0,
        fluid_usd=1000.0,
        whole_node_usd=1100.0,
        rollout=PoolHours(40.0, 30.0, 1.0, 9.0),
        train=PoolHours(20.0, 11.0, 0.5, 8.5),
        peak_rollout=7,
        peak_train=3,
        moves=5,
        jobs=jobs,
        levels=(
            Level(360.0, 2, 1, 71.87, 2, 0),
            Level(360.0, 4, 2, 143.75, 4, 1),
            Level(5 * HOUR_S, 3, 2, 128.94, 3, 0),
            Level(10 * HOUR_S, 0, 0, 0.0, 0, 0),
        ),
        admissions=tuple(
            Admission(
                360.0 * place,
                name,
                "group-0",
                "direct" if place else "isolated",
                14.8 * place,
                ("tried: full", "taken"),
            )
            for place, name in enumerate(names)
        ),
        spans=spans(names[2:], "group-10", 4, 20) + spans(names[:2], "group-0", 0, 120),
    )


def bare(outcome: Outcome) -> Outcome:
    """The same run without its history."""
    return replace(outcome, levels=(), admissions=(), spans=())


def nothing() -> Outcome:
    """A run of no jobs."""
    none = PoolHours(0.0, 0.0, 0.0, 0.0)
    return Outcome("none", 0.0, 0.0, 0.0, 0.0, none, none, 0, 0, 0, ())


def unfinished() -> JobOutcome:
    """A job that never did a whole iteration."""
    return replace(job("stuck"), iterations=0, iteration_s=inf, slowdown=inf)
