"""Published and simple ways to share a cluster, to compare with. Each is a policy like any other.

- `solo`: every job has nodes of its own, in both pools;
- `colocated`: every job has nodes of its own in the training pool only, where it also rolls out, as fast as memory
  bandwidth allows;
- `gavel`: jobs share nodes by fractions of time, without weaving their phases (Gavel+ in the RollMux paper);
- `random`: any of the places that work without new nodes, drawn by lot;
- `most-idle`: of these places the one that leaves the most free time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random

from rollmux.mux.forecast import TOLERANCE, Forecast, Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Decision, Plan, Trail
from rollmux.mux.policies.attempt import choices, packed, place_alone, widening, works
from rollmux.mux.snapshot import Snapshot


@dataclass(frozen=True)
class Solo:
    """A group of its own for every job."""

    forecaster: Forecaster = field(default_factory=Forecaster, compare=False)
    name: str = "solo"
    max_group: int = 1

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        trail = Trail()
        plan = place_alone(job, snapshot, Order.FIFO, self.forecaster, trail)
        return Decision.of(job, self.name, plan, trail)


@dataclass(frozen=True)
class AnyPlace:
    """Packs a job without new nodes if it can: takes the first place that works, in the order of `in_order`."""

    name: str
    in_order: Callable[[list[Plan], JobSpec], list[Plan]]
    max_group: int = 5
    forecaster: Forecaster = field(default_factory=Forecaster, compare=False)

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        trail = Trail()
        candidates = self.in_order(list(self._candidates(job, snapshot)), job)
        plan = next((each for each in candidates if works(each, snapshot, self.forecaster, trail)), None)
        if plan is None:
            plan = place_alone(job, snapshot, Order.FIFO, self.forecaster, trail)
        return Decision.of(job, self.name, plan, trail)

    def _candidates(self, job: JobSpec, snapshot: Snapshot) -> Iterator[Plan]:
        added = widening(snapshot, 0, 0)
        assert added is not None
        for group in snapshot.groups.values():
            if len(group.members) >= self.max_group or group.id in snapshot.frozen:
                continue
            if len(group.rollout_nodes) < job.rollout.nodes or len(group.train_nodes) < job.train.nodes:
                continue
            for train in choices(group.train_nodes, group.uses, job.train.nodes):
                for rollout in choices(group.rollout_nodes, group.uses, job.rollout.nodes):
                    yield packed(group, Member.of(job, Placement(rollout, train)), added)


def random_place(seed: int = 0, max_group: int = 5) -> AnyPlace:
    """Draws places by lot. The same job in the same cluster always draws the same place."""
    return AnyPlace("random", partial(_by_lot, seed), max_group)


def _by_lot(seed: int, plans: list[Plan], job: JobSpec) -> list[Plan]:
    Random(f"{seed}/{job.id}").shuffle(plans)
    return plans


def most_idle(max_group: int = 5) -> AnyPlace:
    """Takes the emptiest group first."""
    return AnyPlace("most-idle", _emptiest_first, max_group)


def _emptiest_first(plans: list[Plan], job: JobSpec) -> list[Plan]:
    return sorted(plans, key=lambda plan: -sum(plan.group.free_shares))


class SliceForecaster(Forecaster):
    """Jobs that take turns as wholes: while one has the nodes, in rollout or training, the others wait.

    Each gets the share that its SLO asks for, and what is left over is shared in proportion. In its turn it is as fast
    as alone on these nodes: where both of its phases are on one node, no rollout runs ahead beside its training.
    """

    def forecast(self, group: Group) -> Forecast:
        asked = sum(1 / member.job.slo for member in group.members)
        return Forecast(tuple(self._alone_s(group, m) * m.job.slo * asked for m in group.members), exact=True)

    def _alone_s(self, group: Group, member: Member) -> float:
        return max(member.job.solo_s, *super().forecast(Group(group.id, (member,), group.order)).iteration_s)

    def late(self, group: Group) -> tuple[Member, float] | None:
        times = self.forecast(group).iteration_s
        worst = max(zip(group.members, times, strict=True), key=lambda pair: pair[1] / pair[0].limit_s)
        return worst if worst[1] > worst[0].limit_s * (1 + TOLERANCE) else None


def gavel(max_group: int = 5) -> AnyPlace:
    """Whole jobs share nodes by fractions of time: takes the fullest group that has the job's fraction left."""
    return AnyPlace("gavel", _fullest_first, max_group, SliceForecaster())


def _fullest_first(plans: list[Plan], job: JobSpec) -> list[Plan]:
    return sorted(plans, key=lambda plan: -sum(1 / member.job.slo for member in plan.group.members))


def on_training_nodes(job: JobSpec, cluster: Cluster) -> JobSpec:
    """The job with its rollouts on training nodes: as much slower or faster as their memory bandwidth is, if known.

    Its phases take turns there, so nothing overlaps, and moving their state is a part of them. No other job is there,
    so the host never keeps the state of both phases: while one is on the GPUs, only the other's is on the host.
    """
    rollout, train = cluster.rollout.node_type, cluster.train.node_type
    is_known = rollout.hbm_bytes_per_s and train.hbm_bytes_per_s
    ratio = rollout.hbm_bytes_per_s / train.hbm_bytes_per_s if is_known else 1.0
    job = job.resolve(cluster)
    ratio *= job.rollout.nodes * rollout.gpus / (job.train.nodes * train.gpus)
    tail = job.tail and replace(job.tail, bulk_s=job.tail.bulk_s * ratio)
    kept_bytes = max(phase.resident_bytes + phase.transient_bytes for phase in (job.rollout, job.train))
    there = replace(_with_switches(job.rollout, ratio), nodes=job.train.nodes, resident_bytes=0, transient_bytes=0)
    train_there = replace(_with_switches(job.train), resident_bytes=kept_bytes, transient_bytes=0)
    return replace(job, rollout=there, train=train_there, tail=tail, staleness=0, rollout_spares=0)


def _with_switches(phase: PhaseSpec, ratio: float = 1.0) -> PhaseSpec:
    """The phase, slower by `ratio`, with its switches: on nodes that the job's other phase shares it always has it."""
    measured_s = None if phase.measured_s is None else phase.measured_s * ratio + phase.switch_s
    duration_s = phase.duration_s * ratio + phase.switch_s
    return replace(phase, duration_s=duration_s, measured_s=measured_s, load_s=0.0, offload_s=0.0)


def training_only(cluster: Cluster) -> Cluster:
    """The cluster that co-located jobs see: one pool for both phases."""
    return Cluster(cluster.train, cluster.train)
