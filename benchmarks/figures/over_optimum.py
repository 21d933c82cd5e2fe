"""What a policy pays over the offline optimum: for the jobs of one moment, and over a whole workload.

A moment is made as a policy meets it: jobs arrive one after the other, nobody leaves, and moves that pay are done. The
optimum then groups the same jobs anew, as the paper's brute force does.
"""

from dataclasses import dataclass
from random import Random

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.sim.generate import GENERATORS, draw_job
from rollmux.sim.optimal import Optimum
from rollmux.sim.optimal_run import optimal_run
from rollmux.sim.replay import Accounting, Fidelity, Settings, replay
from rollmux.sim.workload import HOUR_S, Arrival, Workload

MAX_GROUP = 5
# Jobs of a moment run so long that none ends before the moves after the last arrival are over.
LONG_H, SETTLED_H = 1000.0, 10.0


@dataclass(frozen=True, slots=True)
class Moment:
    """So many jobs of a profile at once, drawn with this seed."""

    profile: str
    jobs: int
    seed: int

    def workload(self) -> Workload:
        """The jobs, an hour apart."""
        rng = Random(f"{self.profile}/{self.jobs}/{self.seed}")
        drawn = [draw_job(rng, f"job-{number}", self.profile) for number in range(self.jobs)]
        return Workload(self.profile, tuple(Arrival(i * HOUR_S, LONG_H * HOUR_S, job) for i, job in enumerate(drawn)))


@dataclass(frozen=True, slots=True)
class Whole:
    """A generated workload of so many jobs over so many hours."""

    profile: str
    seed: int
    jobs: int
    hours: float


@dataclass(frozen=True, slots=True)
class Paid:
    """What the optimum costs, whether it is proven, and what each policy costs over it and keeps of the SLOs."""

    optimum_usd: float
    bound_usd: float
    proven: float  # the part of all groupings that was proven the cheapest
    over: dict[str, float]
    slo: dict[str, float]


def usd_per_hour(workload: Workload, policy: str, seed: int = 0) -> float:
    """The price of the policy's groups when all jobs are there and nothing moves any more."""
    outcome = replay(workload, policy, Settings(fidelity=Fidelity.PACE, history=True, max_group=MAX_GROUP, seed=seed))
    settled_s = workload.arrivals[-1].at_s + SETTLED_H * HOUR_S
    return next(level.usd_per_hour for level in reversed(outcome.levels) if level.at_s <= settled_s)


def moment_paid(moment: Moment, policies: tuple[str, ...]) -> Paid:
    """One moment. Who keeps the SLOs over time is not seen in it."""
    workload = moment.workload()
    best = Optimum(PAPER_CLUSTER, MAX_GROUP).best([arrival.job for arrival in workload.arrivals])
    over = {policy: usd_per_hour(workload, policy, moment.seed) / best.usd_per_hour for policy in policies}
    return Paid(best.usd_per_hour, best.bound_usd_per_hour, float(best.complete), over, {})


def whole_paid(whole: Whole, policies: tuple[str, ...]) -> Paid:
    """A whole workload in lifetime accounting, where the same jobs are there at each moment whatever the policy."""
    workload = GENERATORS[whole.profile](whole.seed, whole.jobs, whole.hours)
    run = optimal_run(workload, PAPER_CLUSTER, Optimum(PAPER_CLUSTER, MAX_GROUP), fixed_lifetimes=True)
    settings = Settings(accounting=Accounting.LIFETIME, fidelity=Fidelity.PACE, max_group=MAX_GROUP, seed=whole.seed)
    outcomes = {policy: replay(workload, policy, settings) for policy in policies}
    return Paid(
        run.outcome.usd_total,
        run.bound_usd,
        run.proven / run.regroups,
        {policy: outcome.usd_total / run.outcome.usd_total for policy, outcome in outcomes.items()},
        {policy: outcome.slo_attainment for policy, outcome in outcomes.items()},
    )
