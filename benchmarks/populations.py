"""Populations of concurrent jobs for the benchmarks, of the RollMux paper's simulated workloads."""

from dataclasses import replace
from random import Random

from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Plan
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot
from rollmux.sim.abilities import able
from rollmux.sim.generate import PROFILES, draw_job

__all__ = ["PROFILES", "Population", "draw_job"]

BATCH = 200


class Population:
    """Placed jobs without a running machine: what a policy decides upon."""

    def __init__(self, policy: Policy, profile: str, seed: int) -> None:
        self.policy, self.profile, self.rng = policy, profile, Random(seed)
        self.groups: dict[str, Group] = {}
        self.where: dict[str, str] = {}
        self.next_node = self.next_group = self.drawn = 0

    def snapshot(self) -> Snapshot:
        return Snapshot(PAPER_CLUSTER, self.groups, next_node=self.next_node, next_group=self.next_group)

    def draw(self) -> JobSpec:
        self.drawn += 1
        return able(draw_job(self.rng, f"job-{self.drawn}", self.profile))

    def apply(self, plan: Plan) -> None:
        if plan.group.id not in self.groups:
            self.next_group += 1
        self.groups[plan.group.id] = plan.group
        self.where[plan.job_id] = plan.group.id
        self.next_node += len(plan.new_nodes)

    def leave(self, job_id: str) -> None:
        group_id = self.where.pop(job_id)
        group = self.groups[group_id].left_by(job_id)
        if group.members:
            self.groups[group_id] = group
        else:
            del self.groups[group_id]

    def churn(self) -> None:
        """A job drawn at random leaves and another one comes."""
        names = list(self.where)
        self.leave(names[self.rng.randrange(len(names))])
        self.admit(self.draw())

    def admit(self, job: JobSpec) -> None:
        plan = self.policy.place(job, self.snapshot()).plan
        assert plan is not None
        self.apply(plan)

    def grow(self, jobs: int) -> None:
        """Fills up to so many jobs. Large populations are made of batches that were packed and churned apart."""
        while len(self.where) < jobs:
            batch = Population(self.policy, self.profile, self.rng.randrange(2**32))
            while len(batch.where) < min(BATCH, jobs - len(self.where)):
                batch.admit(batch.draw())
            for _ in range(len(batch.where) // 2):
                batch.churn()
            self._adopt(batch)
        for group in self.groups.values():
            group.uses  # noqa: B018  a live cluster has long computed what it derives from its groups

    def _adopt(self, batch: "Population") -> None:
        """Takes over another population's groups under names of its own."""
        prefix = f"{len(self.groups)}/"
        for group in batch.groups.values():
            members = tuple(
                Member(
                    replace(m.job, id=prefix + m.job.id),
                    Placement(
                        tuple(prefix + n for n in m.placement.rollout), tuple(prefix + n for n in m.placement.train)
                    ),
                    m.limit_s,
                )
                for m in group.members
            )
            renamed = Group(prefix + group.id, members, group.order)
            self.groups[renamed.id] = renamed
            self.where.update({m.job.id: renamed.id for m in members})
