"""The offline optimum over a workload: at each arrival and departure all jobs are regrouped, at no cost.

No scheduler can do that: the optimum moves every job at any time and for nothing. In between, jobs go at the pace of
the forecast. At every moment its groups are the cheapest for the jobs that are there. In the end they need not be: jobs
that they slow stay longer.
"""

from dataclasses import dataclass, field
from math import inf

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.placed import ROLLOUT, TRAIN
from rollmux.sim.limits import fluid_usd, whole_node_usd
from rollmux.sim.optimal import MAX_GROUP, SAME_USD, Optimum, Partition
from rollmux.sim.outcome import JobOutcome, Level, Outcome, PoolHours
from rollmux.sim.policies import OPTIMAL
from rollmux.sim.replay import Accounting, Settings
from rollmux.sim.workload import HOUR_S, Arrival, Workload

# Seconds: jobs that end this close together end at once.
SAME_S = 1e-6


@dataclass(frozen=True, slots=True)
class OptimalRun:
    """The run, and how far it is proven that no cheaper groups existed for the jobs of each moment."""

    outcome: Outcome
    bound_usd: float
    mean_gap: float  # the mean part of the price above the bound, by time, while jobs were there
    regroups: int
    proven: int  # how many of the regroups are proven the cheapest


def optimal_run(
    workload: Workload, cluster: Cluster, optimum: Optimum | None = None, *, fixed_lifetimes: bool = False
) -> OptimalRun:
    """Runs the workload. A job ends with its last iteration or, with fixed lifetimes, when it would end alone."""
    run = _Run(workload, cluster, optimum or Optimum(cluster), fixed_lifetimes)
    run.go()
    return run.result()


def optimal_replay(workload: Workload, settings: Settings) -> OptimalRun:
    """Runs the workload with the settings of a policy's replay."""
    optimum = Optimum(settings.cluster, settings.max_group or MAX_GROUP)
    fixed_lifetimes = settings.accounting is Accounting.LIFETIME
    return optimal_run(workload, settings.cluster, optimum, fixed_lifetimes=fixed_lifetimes)


def require_optimum(workload: Workload, cluster: Cluster) -> None:
    """InvalidSpec unless this cluster rents any number of nodes, and each job can run there alone."""
    optimum = Optimum(cluster)
    for arrival in workload.arrivals:
        optimum.best([arrival.job])


@dataclass(slots=True)
class _Active:
    """A job in the system: the iterations that it has done, and its pace in its present group."""

    arrival: Arrival
    done: float = 0.0
    iteration_s: float = inf
    group: str = ""
    shares: tuple[bool, bool] = (False, False)  # whether another phase is pinned to its rollout, its training nodes

    def left_s(self, now_s: float, fixed_lifetimes: bool) -> float:
        """How long the job stays at its present pace."""
        if fixed_lifetimes:
            return self.arrival.at_s + self.arrival.duration_s - now_s
        return (self.arrival.iterations - self.done) * self.iteration_s


@dataclass(slots=True)
class _Books:
    """Seconds of one pool's nodes."""

    paid: float = 0.0
    busy: float = 0.0
    switch: float = 0.0
    peak: int = 0

    def hours(self) -> PoolHours:
        busy = min(self.busy, self.paid)  # forecasts count whole milliseconds
        switch = min(self.switch, self.paid - busy)
        idle = self.paid - busy - switch
        return PoolHours(self.paid / HOUR_S, busy / HOUR_S, switch / HOUR_S, idle / HOUR_S)


@dataclass(slots=True)
class _Run:
    """The run so far. In a shared pool all nodes count as training nodes."""

    workload: Workload
    cluster: Cluster
    optimum: Optimum
    fixed_lifetimes: bool
    now_s: float = 0.0
    active: dict[str, _Active] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    usd_per_hour: float = 0.0
    bound_usd_per_hour: float = 0.0
    nodes: tuple[int, int] = (0, 0)
    books: tuple[_Books, _Books] = field(default_factory=lambda: (_Books(), _Books()))
    usd: float = 0.0
    bound_usd: float = 0.0
    gap_s: float = 0.0
    busy_s: float = 0.0
    regroups: int = 0
    proven: int = 0
    ended: list[JobOutcome] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    def go(self) -> None:
        coming = list(self.workload.arrivals)[::-1]
        while coming or self.active:
            ends_s = [self.now_s + job.left_s(self.now_s, self.fixed_lifetimes) for job in self.active.values()]
            next_s = min([*ends_s, *(arrival.at_s for arrival in coming[-1:])])
            self._pass(next_s - self.now_s)
            self.now_s = next_s
            for name, job in list(self.active.items()):
                if job.left_s(self.now_s, self.fixed_lifetimes) <= SAME_S:
                    self._end(name)
            while coming and coming[-1].at_s <= self.now_s:
                arrival = coming.pop()
                self.active[arrival.job.id] = _Active(arrival)
            self._regroup()

    def _pass(self, seconds: float) -> None:
        """Time goes by in the present groups."""
        self.usd += self.usd_per_hour * seconds / HOUR_S
        self.bound_usd += self.bound_usd_per_hour * seconds / HOUR_S
        if self.active:
            self.busy_s += seconds
            self.gap_s += (1 - self.bound_usd_per_hour / self.usd_per_hour) * seconds if self.usd_per_hour else 0.0
        for books, count in zip(self.books, self.nodes, strict=True):
            books.paid += count * seconds
        for job in self.active.values():
            done = seconds / job.iteration_s
            job.done += done
            spec = job.arrival.job.resolve(self.cluster)
            for i, kind in enumerate((ROLLOUT, TRAIN)):
                phase, books = spec.phase(kind), self.books[1 if self.cluster.shared else i]
                books.busy += done * phase.planned_s * phase.nodes
                books.switch += done * phase.switch_s * phase.nodes * job.shares[i]

    def _end(self, name: str) -> None:
        job = self.active.pop(name)
        spec, life_s = job.arrival.job, self.now_s - job.arrival.at_s
        iterations = int(job.done + SAME_S / job.iteration_s + 1e-9)
        iteration_s = life_s / job.done if iterations else None
        self.ended.append(
            JobOutcome(
                job=name,
                arrival_h=job.arrival.at_s / HOUR_S,
                started_h=job.arrival.at_s / HOUR_S,
                ended_h=self.now_s / HOUR_S,
                iterations=iterations,
                solo_s=spec.solo_s,
                iteration_s=iteration_s,
                slowdown=None if iteration_s is None else iteration_s / spec.solo_s,
                slo=spec.slo,
                group=job.group,
                admission=OPTIMAL,
                moves=0,
                slowdown_at_least=life_s / ((iterations + 1) * spec.solo_s),
            )
        )

    def _regroup(self) -> None:
        """Makes the cheapest groups for the jobs that are there now; keeps the present groups if they are as cheap."""
        best = self.optimum.best([job.arrival.job for job in self.active.values()])
        self.regroups += 1
        self.proven += best.complete
        self.groups = self._kept(best) or best.groups
        self.usd_per_hour, self.bound_usd_per_hour = best.usd_per_hour, best.bound_usd_per_hour
        for group in self.groups:
            forecast = self.optimum.pinnings.forecaster.forecast(group)
            for member, iteration_s in zip(group.members, forecast.iteration_s, strict=True):
                job = self.active[member.job.id]
                job.iteration_s, job.group = iteration_s, group.id
                rollout, train = [
                    any(len(group.uses[node].tenants) > 1 for node in member.placement.nodes(kind))
                    for kind in (ROLLOUT, TRAIN)
                ]
                job.shares = rollout, train
        self._count()

    def _kept(self, best: Partition) -> tuple[Group, ...]:
        """The present groups without jobs that have left, if they hold all jobs and no cheaper are known; else none."""
        groups = []
        for group in self.groups:
            for member in group.members:
                if member.job.id not in self.active:
                    group = group.left_by(member.job.id)  # noqa: PLW2901  the same group with one fewer
            if group.members:
                groups.append(group)
        if sum(len(group.members) for group in groups) < len(self.active):
            return ()
        if sum(group.usd_per_hour(self.cluster) for group in groups) > best.usd_per_hour + SAME_USD:
            return ()
        return tuple(groups) if all(self.optimum.pinnings.forecaster.late(group) is None for group in groups) else ()

    def _count(self) -> None:
        if self.cluster.shared:
            self.nodes = 0, sum(len(group.nodes) for group in self.groups)
        else:
            self.nodes = sum(len(g.rollout_nodes) for g in self.groups), sum(len(g.train_nodes) for g in self.groups)
        for books, count in zip(self.books, self.nodes, strict=True):
            books.peak = max(books.peak, count)
        self.levels.append(Level(self.now_s, *self.nodes, self.usd_per_hour, len(self.active), 0))

    def result(self) -> OptimalRun:
        rollout, train = self.books
        done = {job.job: job.iterations for job in self.ended}
        outcome = Outcome(
            policy=OPTIMAL,
            usd_total=self.usd,
            makespan_h=self.now_s / HOUR_S,
            fluid_usd=fluid_usd(self.workload, self.cluster, done),
            whole_node_usd=whole_node_usd(self.workload, self.cluster, done),
            rollout=rollout.hours(),
            train=train.hours(),
            peak_rollout=rollout.peak,
            peak_train=train.peak,
            moves=0,
            jobs=tuple(self.ended),
            levels=tuple(self.levels),
            billed_from_h=self.workload.first_s / HOUR_S,
        )
        gap = self.gap_s / self.busy_s if self.busy_s else 0.0
        return OptimalRun(outcome, self.bound_usd, gap, self.regroups, self.proven)
