"""What the work of jobs is worth, and what a placement costs beside its price: whom it slows stays longer.

Filling a node costs nothing at once, but a job that is slowed pays for its nodes the longer. So places are compared by
what they add to the hourly price, less what the work that is gained is worth (or more, where work is lost).
"""

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.plan import Plan
from rollmux.mux.snapshot import Snapshot

# What work costs, over the price of the nodes' time that it really uses: as much as on well filled nodes.
WORTH = 1.2


def work_usd_per_hour(job: JobSpec, cluster: Cluster) -> float:
    """The price of the nodes' time that a job uses in an hour at its own speed, were there no idle time."""
    rollout, train = cluster.rollout.node_type.usd_per_hour, cluster.train.node_type.usd_per_hour
    used = job.rollout.planned_s * job.rollout.nodes * rollout + job.train.planned_s * job.train.nodes * train
    return used / job.solo_s


def worth_usd_per_hour(group: Group, cluster: Cluster, forecaster: Forecaster) -> float:
    """What the group's work of an hour is worth at the pace that it goes."""
    known: float | None = group.__dict__.get("_worth")
    if known is None:
        paces = forecaster.trial(group).iteration_s if group.members else ()
        known = group.__dict__["_worth"] = WORTH * sum(
            [
                work_usd_per_hour(m.job, cluster) * min(1.0, m.job.solo_s / pace)
                for m, pace in zip(group.members, paces, strict=True)
            ]
        )
    return known


def burden_usd_per_hour(plan: Plan, snapshot: Snapshot, forecaster: Forecaster) -> float:
    """What the plan adds to the hourly price, less what it adds to the worth of the work."""
    after = worth_usd_per_hour(plan.group, snapshot.cluster, forecaster)
    home = snapshot.groups.get(plan.group.id)
    before = worth_usd_per_hour(home, snapshot.cluster, forecaster) if home is not None else 0.0
    return plan.added_usd_per_hour - after + before
