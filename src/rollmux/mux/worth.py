"""What the work of jobs is worth, and what a placement costs beside its price: the jobs that it slows stay longer.

Filling a node costs nothing at once, but a job that is slowed pays for its nodes for longer. So places are compared by
what they add to the hourly price, less the worth of the work that is gained (or plus that of the work that is lost).
"""

from collections.abc import Mapping

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.placed import ROLLOUT, TRAIN
from rollmux.mux.plan import Plan
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.totals import total

# The worth of work over the price of the nodes' time that it really uses: what work costs on well filled nodes.
WORTH = 1.2


Priced = tuple[Cluster, dict[PhaseKind, float], float]
Done = list[tuple[float, tuple[str, ...]]]


def worth_by_phase(job: JobSpec, cluster: Cluster) -> dict[PhaseKind, float]:
    """What an hour of each of a job's phases is worth at its own speed, on each of the phase's nodes."""
    return _priced(job, cluster)[1]


def most_worth_usd_per_hour(job: JobSpec, cluster: Cluster) -> float:
    """What an hour of a job's work is worth at the job's own speed."""
    return _priced(job, cluster)[2]


def _priced(job: JobSpec, cluster: Cluster) -> Priced:
    priced: Priced | None = job.__dict__.get("_worths")
    if priced is None or priced[0] is not cluster:
        pools = ((ROLLOUT, cluster.rollout, job.rollout), (TRAIN, cluster.train, job.train))
        solo_s = job.solo_s
        worths = {kind: WORTH * pool.node_type.usd_per_hour * phase.planned_s / solo_s for kind, pool, phase in pools}
        most = job.rollout.nodes * worths[ROLLOUT] + job.train.nodes * worths[TRAIN]
        priced = job.__dict__["_worths"] = cluster, worths, most
    return priced


def worth_usd(group: Group, cluster: Cluster, forecaster: Forecaster) -> float:
    """What an hour of a group's work is worth at the pace at which it goes, by a first estimate."""
    known: tuple[Cluster, float] | None = group.__dict__.get("_worth")
    if known is None or known[0] is not cluster:
        worth = 0.0
        for done_usd, nodes in _done_usd(group, cluster, forecaster):
            for _ in nodes:
                worth += done_usd
        known = group.__dict__["_worth"] = cluster, worth
    return known[1]


def idle_usd(group: Group, cluster: Cluster, forecaster: Forecaster) -> Mapping[str, float]:
    """The worth of what each of a group's nodes leaves undone in an hour: what more it could do if it were never idle.

    Where rollouts roam, others may make them go elsewhere: each rollout node stands for all of them.
    """
    known: tuple[Cluster, dict[str, float]] | None = group.__dict__.get("_idle_usd")
    if known is None or known[0] is not cluster:
        idle = dict.fromkeys(group.train_nodes, WORTH * cluster.train.node_type.usd_per_hour)
        idle.update(dict.fromkeys(group.rollout_nodes, WORTH * cluster.rollout.node_type.usd_per_hour))
        for done_usd, nodes in _done_usd(group, cluster, forecaster):
            for node in nodes:
                idle[node] -= done_usd
        if group.roams:
            idle.update(dict.fromkeys(group.rollout_nodes, total([idle[node] for node in group.rollout_nodes])))
        known = group.__dict__["_idle_usd"] = cluster, idle
    return known[1]


def most_idle_usd(group: Group, cluster: Cluster, forecaster: Forecaster) -> tuple[float, float, float]:
    """The most that is left undone on a rollout node and on a training node, and on all rollout nodes together."""
    known: tuple[Cluster, tuple[float, float, float]] | None = group.__dict__.get("_most_idle")
    if known is None or known[0] is not cluster:
        of = idle_usd(group, cluster, forecaster).__getitem__
        rollout = [*map(of, group.rollout_nodes)]
        most, train = max(rollout), max(map(of, group.train_nodes))
        known = group.__dict__["_most_idle"] = cluster, (most, train, most if group.roams else total(rollout))
    return known[1]


def _done_usd(group: Group, cluster: Cluster, forecaster: Forecaster) -> Done:
    """The worth of what each phase does in an hour on each of its nodes."""
    known: tuple[Cluster, Done] | None = group.__dict__.get("_done")
    if known is not None and known[0] is cluster:
        return known[1]
    done: Done = []
    paces = forecaster.trial(group).iteration_s if group.members else ()
    for member, pace in zip(group.members, paces, strict=True):
        job, placement = member.job, member.placement
        worths, solo_s = worth_by_phase(job, cluster), job.solo_s
        speed = solo_s / pace if pace > solo_s else 1.0
        rollout = placement.rollout  # a rollout that roams uses each of these nodes equally, in the long run
        done.append((worths[ROLLOUT] * speed * job.holds(ROLLOUT, len(rollout)) / len(rollout), rollout))
        done.append((worths[TRAIN] * speed, placement.train))
    group.__dict__["_done"] = cluster, done
    return done


def steady_worth_usd(group: Group, cluster: Cluster, forecaster: Forecaster) -> float:
    """What an hour of the group's work is worth by the whole forecast: dearer to know, and true for longer."""
    priced: tuple[Cluster, float] | None = group.__dict__.get("_steady_worth")
    if priced is None or priced[0] is not cluster:
        worth = 0.0
        for member, pace in zip(group.members, forecaster.forecast(group).iteration_s, strict=True):
            worth += most_worth_usd_per_hour(member.job, cluster) * min(1.0, member.job.solo_s / pace)
        priced = group.__dict__["_steady_worth"] = cluster, worth
    return priced[1]


def burden_usd_per_hour(plan: Plan, snapshot: Snapshot, forecaster: Forecaster) -> float:
    """What the plan adds to the hourly price, less what it adds to the worth of the work."""
    after = worth_usd(plan.group, snapshot.cluster, forecaster)
    home = snapshot.groups.get(plan.group.id)
    before = worth_usd(home, snapshot.cluster, forecaster) if home is not None else 0.0
    return plan.added_usd_per_hour - after + before
