"""How much a policy pays over the offline optimum: for the jobs of one moment, and over a whole workload.

A moment comes about as a policy meets it: jobs arrive one after the other, none leaves, and moves that pay are made.
The optimum then groups the same jobs anew, as the paper's brute force does. All rollouts here are pinned, in the
optimum's groups and in all others.
"""

from dataclasses import dataclass, replace
from random import Random

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.order import Order
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.abilities import able
from rollmux.sim.generate import GENERATORS, draw_job
from rollmux.sim.optimal import Optimum
from rollmux.sim.optimal_run import optimal_run
from rollmux.sim.policies import CONTENDERS
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
    """What the optimum of groups that serve whoever comes first costs, and what is proven of it.

    `over` is what each policy costs over the optimum of groups that serve in its order; `proven` is the part of that
    optimum's groupings that was proven the cheapest; `slo` is what the policy keeps.
    """

    optimum_usd: float
    bound_usd: float
    over: dict[str, float]
    proven: dict[str, float]
    slo: dict[str, float]


def usd_per_hour(workload: Workload, policy: str, seed: int = 0) -> float:
    """The price of the policy's groups when all jobs are there and nothing moves any more."""
    pinned = Settings(fidelity=Fidelity.PACE, history=True, max_group=MAX_GROUP, seed=seed, spares=0)
    outcome = replay(workload, policy, pinned)
    settled_s = workload.arrivals[-1].at_s + SETTLED_H * HOUR_S
    return next(level.usd_per_hour for level in reversed(outcome.levels) if level.at_s <= settled_s)


def _order(policy: str) -> Order:
    """How the policy's groups serve those who wait: it is held against the optimum of such groups."""
    made = CONTENDERS[policy].make(MAX_GROUP, 0)
    return made.order if isinstance(made, RollmuxPolicy) else Order.FIFO


def _orders(policies: tuple[str, ...]) -> set[Order]:
    return {Order.FIFO, *map(_order, policies)}


def moment_paid(moment: Moment, policies: tuple[str, ...]) -> Paid:
    """One moment. Who keeps the SLOs over time is not seen in it."""
    workload = moment.workload()
    jobs = [able(arrival.job, spares=0) for arrival in workload.arrivals]
    best_by = {order: Optimum(PAPER_CLUSTER, MAX_GROUP, order).best(jobs) for order in _orders(policies)}
    over = {
        policy: usd_per_hour(workload, policy, moment.seed) / best_by[_order(policy)].usd_per_hour
        for policy in policies
    }
    proven = {policy: float(best_by[_order(policy)].complete) for policy in policies}
    best = best_by[Order.FIFO]
    return Paid(best.usd_per_hour, best.bound_usd_per_hour, over, proven, {})


def whole_paid(whole: Whole, policies: tuple[str, ...]) -> Paid:
    """A whole workload in lifetime accounting, where the same jobs are there at each moment whatever the policy."""
    workload = GENERATORS[whole.profile](whole.seed, whole.jobs, whole.hours)
    pausing = tuple(replace(arrival, job=able(arrival.job, spares=0)) for arrival in workload.arrivals)
    runs = {
        order: optimal_run(
            replace(workload, arrivals=pausing),
            PAPER_CLUSTER,
            Optimum(PAPER_CLUSTER, MAX_GROUP, order),
            fixed_lifetimes=True,
        )
        for order in _orders(policies)
    }
    against = {policy: runs[_order(policy)] for policy in policies}
    settings = Settings(
        accounting=Accounting.LIFETIME, fidelity=Fidelity.PACE, max_group=MAX_GROUP, seed=whole.seed, spares=0
    )
    outcomes = {policy: replay(workload, policy, settings) for policy in policies}
    first = runs[Order.FIFO]
    return Paid(
        first.outcome.usd_total,
        first.bound_usd,
        {policy: outcome.usd_total / against[policy].outcome.usd_total for policy, outcome in outcomes.items()},
        {policy: run.proven / run.regroups for policy, run in against.items()},
        {policy: outcome.slo_attainment for policy, outcome in outcomes.items()},
    )
