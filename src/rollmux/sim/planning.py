"""The plan of a set of jobs on a cluster: which jobs share which nodes, how fast they are, and what an hour costs.

Jobs are placed one after the other, in the given order, by the same policy and with the same checks as in life. No time
passes: no job leaves, and a job without a place is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollmux.errors import InvalidSpec, Problem
from rollmux.mux.explain import explain, why_queued
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import check_plan
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.validation import job_problems
from rollmux.sim.baselines import Solo


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job: the nodes that it is pinned to, and its iteration time alone, in its group, and the longest allowed."""

    job: str
    placement: Placement
    solo_s: float
    iteration_s: float
    limit_s: float
    slo: float

    @property
    def slowdown(self) -> float:
        return self.iteration_s / self.solo_s

    @property
    def headroom(self) -> float:
        """The part of the longest iteration that its SLO allows that is still free; 0 is at the limit."""
        return 1 - self.iteration_s / self.limit_s


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Jobs that share nodes, and the price of these nodes."""

    id: str
    jobs: tuple[PlannedJob, ...]
    rollout_nodes: tuple[str, ...]
    train_nodes: tuple[str, ...]
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A job that there is no place for, and why."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """The whole plan. `dedicated_usd_per_hour` is the price of nodes of their own for the jobs that are placed.

    `explanations` say for every job, in the order of placing, which places were tried.
    """

    policy: str
    groups: tuple[PlannedGroup, ...]
    unplaced: tuple[Unplaced, ...]
    usd_per_hour: float
    dedicated_usd_per_hour: float
    explanations: dict[str, str]

    @property
    def saved(self) -> float:
        """The part of the dedicated price that sharing saves."""
        return 1 - self.usd_per_hour / self.dedicated_usd_per_hour if self.dedicated_usd_per_hour else 0.0


def plan_jobs(jobs: Sequence[JobSpec], policy: Policy, cluster: Cluster) -> PlannedCluster:
    """Places these jobs on the empty cluster; InvalidSpec if one of them could not run there even alone."""
    snapshot = empty_snapshot(cluster)
    unplaced, explanations = [], {}
    asked = {job.id: job for job in _required(jobs, cluster)}  # the jobs as given: a policy may keep changed ones
    for job in asked.values():
        decision = policy.place(job, snapshot)
        explanations[job.id] = explain(decision)
        plan = decision.plan
        if plan is None:
            unplaced.append(Unplaced(job.id, why_queued(decision)))
            continue
        check_plan(plan, snapshot, policy.forecaster)
        snapshot = snapshot.with_group(plan.group, plan.new_nodes)
    groups = tuple(_planned(group, policy, cluster, asked) for group in snapshot.groups.values())
    placed = [asked[member.job.id] for group in snapshot.groups.values() for member in group.members]
    return PlannedCluster(
        policy.name,
        groups,
        tuple(unplaced),
        sum(group.usd_per_hour for group in groups),
        sum(dedicated_usd_per_hour(job, cluster) for job in placed),
        explanations,
    )


def empty_snapshot(cluster: Cluster) -> Snapshot:
    """The cluster without any job. The machines of fixed pools are all there and idle."""
    idle = {pool.name: pool.fixed_nodes for pool in cluster.pools if not pool.on_demand}
    return Snapshot(cluster, idle=idle, rented={pool.name: len(pool.fixed_nodes) for pool in cluster.pools})


def dedicated_usd_per_hour(job: JobSpec, cluster: Cluster) -> float:
    """The price of nodes of its own for the job, if pools had any number of nodes."""
    pools = [_unlimited(pool) for pool in (cluster.rollout, cluster.train)]
    plan = Solo().place(job, Snapshot(Cluster(*pools))).plan
    assert plan is not None  # on nodes of its own it keeps its SLO, and these pools have enough
    return plan.added_usd_per_hour


def _unlimited(pool: Pool) -> Pool:
    return replace(pool, on_demand=True, max_nodes=None)


def _required(jobs: Sequence[JobSpec], cluster: Cluster) -> list[JobSpec]:
    """The jobs with their needs in whole nodes, or InvalidSpec with every problem of every job."""
    problems: list[Problem] = []
    names: set[str] = set()
    for number, job in enumerate(jobs, 1):
        problems += [replace(p, path=f"job {number}, {p.path}") for p in job_problems(job, cluster)]
        if job.id in names:
            problems.append(Problem(f"job {number}, job.id", job.id, "a name of its own", "rename one of them"))
        names.add(job.id)
    if problems:
        raise InvalidSpec("jobs to plan", tuple(problems))
    return [job.resolve(cluster) for job in jobs]


def _planned(group: Group, policy: Policy, cluster: Cluster, asked: Mapping[str, JobSpec]) -> PlannedGroup:
    times = policy.forecaster.forecast(group).iteration_s
    jobs = tuple(_planned_job(asked[m.job.id], m, s) for m, s in zip(group.members, times, strict=True))
    return PlannedGroup(group.id, jobs, group.rollout_nodes, group.train_nodes, group.usd_per_hour(cluster))


def _planned_job(job: JobSpec, member: Member, iteration_s: float) -> PlannedJob:
    return PlannedJob(job.id, member.placement, job.solo_s, iteration_s, member.limit_s, job.slo)
