"""What no schedule can undercut: two limits to measure against, and two lower bounds with proofs.

`fluid_usd` and `whole_node_usd` ask how busy nodes could be, and ignore pinning, phases and SLOs. `pinned_bound` and
`workload_bound_usd` hold for every placement of pinned jobs that meets their SLOs, whatever the order of its phases, as
long as it interrupts no phase. The proofs are in docs/design/limits.md.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, inf

from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, NodeUse, Placement, Tenant
from rollmux.sim.cast import Takes, as_planned
from rollmux.sim.outcome import SLO_ROUNDING
from rollmux.sim.workload import HOUR_S, Arrival, Workload

# Shares of a node are counted in whole parts, so a sum is the same whichever shares came and went before. Each share is
# rounded to the nearest part, so a sum of n may be n / 2 parts too high: this much is forgiven before rounding up.
PARTS = 10**12
# Sums of quotients that fill a node exactly may exceed 1 in the last bits, and `mux.placed` forgives 1e-9.
FORGIVEN = 1e-8

Work = tuple[JobSpec, PhaseKind]


# How many iterations jobs have done, by their names.
Done = Mapping[str, int]


def fluid_usd(workload: Workload, cluster: Cluster, done: Done | None = None, takes: Takes = as_planned) -> float:
    """The price of the work itself, or of the iterations `done` of it, if no node were ever idle."""
    usd = 0.0
    for arrival, iterations in _done(workload, done):
        job = arrival.job.resolve(cluster)
        for kind, pool in ((ROLLOUT, cluster.rollout), (TRAIN, cluster.train)):
            phase = job.phase(kind)
            if takes is as_planned:
                work_s = iterations * phase.planned_s
            else:
                work_s = sum(takes(job, kind, i) for i in range(iterations))
            usd += work_s * phase.nodes / HOUR_S * pool.node_type.usd_per_hour
    return usd


def _done(workload: Workload, done: Done | None) -> Iterator[tuple[Arrival, int]]:
    for arrival in workload.arrivals:
        iterations = arrival.iterations if done is None else done[arrival.job.id]
        if iterations:
            yield arrival, iterations


def whole_node_usd(workload: Workload, cluster: Cluster, done: Done | None = None) -> float:
    """The price of the work of all jobs that would be active at a moment if each were alone, rounded up to whole nodes
    of each pool at each moment."""
    steps: list[tuple[float, int, tuple[int, ...]]] = []
    for arrival, iterations in _done(workload, done):
        job = arrival.job.resolve(cluster)
        parts = tuple([sum(_parts(*work) for work in works) for works in _by_pool([job], cluster)])
        steps.append((arrival.at_s, 1, parts))
        steps.append((arrival.at_s + iterations * job.solo_s, -1, parts))
    steps.sort()
    prices = [pool.node_type.usd_per_hour for pool in cluster.pools]
    active, load, usd, before_s = 0, [0] * len(prices), 0.0, 0.0
    for at_s, change, parts in steps:
        usd_per_hour = sum(price * whole_nodes(sum_, active) for price, sum_ in zip(prices, load, strict=True))
        usd += (at_s - before_s) / HOUR_S * usd_per_hour
        before_s = at_s
        active += change
        load = [sum_ + change * part for sum_, part in zip(load, parts, strict=True)]
    return usd


def whole_nodes(parts: int, jobs: int) -> int:
    """The whole nodes that the shares of so many jobs need in sum; each job's share may be rounded up by a part."""
    return max(0, -((jobs - parts) // PARTS))


def _parts(job: JobSpec, kind: PhaseKind) -> int:
    phase = job.phase(kind)
    return round(PARTS * phase.nodes * phase.planned_s / job.solo_s)


def _by_pool(jobs: Iterable[JobSpec], cluster: Cluster) -> list[list[Work]]:
    """The phases that each pool serves."""
    jobs = list(jobs)
    by_kind: list[list[Work]] = [[(job, kind) for job in jobs] for kind in (ROLLOUT, TRAIN)]
    return [by_kind[0] + by_kind[1]] if cluster.shared else by_kind


def pinned_bound(jobs: Sequence[JobSpec], cluster: Cluster, max_group: int | None = None) -> float:
    """Dollars an hour that no placement of these jobs undercuts if it meets all SLOs.

    In each pool it takes the most nodes that one of these arguments proves: all phases need their time; some phases
    can't share a node; phases that take much of a node's time leave room for few others; host memory holds all state.
    `max_group` is the most jobs that share a node, if groups have such a limit.
    """
    resolved = [job.resolve(cluster) for job in jobs]
    return sum(
        pool.node_type.usd_per_hour * fewest_nodes(works, pool, max_group)
        for pool, works in zip(cluster.pools, _by_pool(resolved, cluster), strict=True)
    )


def fewest_nodes(works: Sequence[Work], pool: Pool, max_group: int | None = None) -> int:
    """A proven lower bound on the nodes of this pool that these phases are pinned to."""
    if not works:
        return 0
    time = sum(least_node_s(job, kind) / job.limit_s for job, kind in works)
    shares = [tenant.phase_s / tenant.limit_s for job, kind in works if (tenant := _tenant(job, kind))]
    counts = [job.phase(kind).nodes for job, kind in works]
    return max(
        ceil(time * (1 - FORGIVEN)),
        _crowded_nodes(shares, counts),
        _apart_nodes(works, pool),
        max(counts),
        _held_nodes(works, pool, max_group),
    )


def least_node_s(job: JobSpec, kind: PhaseKind) -> float:
    """Node-seconds that one iteration needs at least: a tail may keep a single node from early on."""
    phase = job.phase(kind)
    return phase.planned_s * (1 if kind is ROLLOUT and job.tail is not None else phase.nodes)


def _tenant(job: JobSpec, kind: PhaseKind) -> Tenant:
    """The phase as a tenant of a node, in the order of urgency, under which the least is certain; and with no limit on
    its losses in all (`life_s`), as a job that stays for a short while may be there at a lucky time."""
    return Member(job, Placement((), ()), job.limit_s).tenant(kind, Order.URGENCY)._replace(life_s=inf)


def _crowded_nodes(shares: Sequence[float], counts: Sequence[int]) -> int:
    """Bin packing by a dual feasible function: shares above 1 - `least` count as whole nodes, those below `least` as 0.

    A node that holds a share above 1 - `least` holds no other share of at least `least`. So on every node the counted
    shares sum to at most 1: all of them need at least their sum in nodes. `least` may be any number up to a half.
    """
    scaled = [share * (1 - FORGIVEN) for share in shares]
    most = 0.0
    for least in {share for share in scaled if share <= 0.5} | {0.5}:
        whole = sum(count for share, count in zip(scaled, counts, strict=True) if share > 1 - least)
        some = sum(share * count for share, count in zip(scaled, counts, strict=True) if least <= share <= 1 - least)
        most = max(most, whole + some)
    return ceil(most - FORGIVEN)


def _apart_nodes(works: Sequence[Work], pool: Pool) -> int:
    """Phases of which no two fit a node together need all their nodes; found greedily, the widest first."""
    order = sorted(range(len(works)), key=lambda i: -works[i][0].phase(works[i][1]).nodes)
    apart: list[set[int]] = [set() for _ in works]
    for i in range(len(works)):
        for j in range(i):
            if not fit_together([works[i], works[j]], pool):
                apart[i].add(j)
                apart[j].add(i)
    most = 0
    for first in order:
        clique, open_ = [first], set(apart[first])
        for i in order:
            if i in open_:
                clique.append(i)
                open_ &= apart[i]
        most = max(most, sum(works[i][0].phase(works[i][1]).nodes for i in clique))
    return most


def _held_nodes(works: Sequence[Work], pool: Pool, max_group: int | None) -> int:
    """Nodes that the jobs hold whether they run or wait, however few they train on (`paper` takes a group's)."""
    room = pool.node_type.room_bytes
    state = sum(job.phase(kind).resident_bytes * job.phase(kind).nodes for job, kind in works)
    widest = max((job.phase(kind).nodes if kind is ROLLOUT else 1 for job, kind in works), default=0)
    groups = -(-len({job.id for job, _ in works}) // max_group) if max_group else 0
    return max(-(-state // room), widest, groups)


def fit_together(works: Iterable[Work], pool: Pool) -> bool:
    """Whether these phases could share one node, as far as the conditions of `mux.placed` and host memory tell."""
    use: NodeUse | None = NodeUse()
    for work in works:
        use = use and joined(use, work, pool)
    return use is not None


def joined(use: NodeUse, work: Work, pool: Pool) -> NodeUse | None:
    """The node with one more phase; None if that breaks a condition, as further phases can't mend it."""
    job, kind = work
    tenant = _tenant(job, kind)
    if use.host_bytes_with(job.phase(kind)) > pool.node_type.room_bytes or use.spare_with(tenant) < 0:
        return None
    return use.joined_by(tenant, job)


@dataclass(frozen=True, slots=True)
class _Life:
    """A job's time in the system, certainly until `sure_s` and at most until `last_s`, and its work."""

    job: JobSpec
    start_s: float
    sure_s: float
    last_s: float
    iterations: int

    def most_node_s(self, kind: PhaseKind, length_s: float) -> float:
        """The most node-seconds of the job's phases of a kind in so much time. Between two phases of a job without
        staleness is at least the rest of its iteration."""
        phase = self.job.phase(kind)
        if self.job.staleness:
            return phase.nodes * length_s
        times = floor(length_s / self.job.solo_s)
        return phase.nodes * (times * phase.planned_s + min(phase.planned_s, length_s - times * self.job.solo_s))


def workload_bound_usd(workload: Workload, cluster: Cluster, max_group: int | None = None) -> float:
    """Dollars that no schedule of this work undercuts if jobs start as they arrive and keep their SLOs.

    It is the price of all work (the fluid limit) and of forced idleness: while a job is certainly in the system it
    holds its nodes, even if the work that is there could keep only some of them busy. Jobs may move at any time.
    """
    lives = []
    for arrival in workload.arrivals:
        job = arrival.job.resolve(cluster)
        sure_s = arrival.at_s + arrival.iterations * job.solo_s
        last_s = arrival.at_s + arrival.iterations * job.limit_s * SLO_ROUNDING + job.ramp_s
        lives.append(_Life(job, arrival.at_s, sure_s, last_s, arrival.iterations))
    usd = 0.0
    for pool, kinds in zip(
        cluster.pools, [(ROLLOUT, TRAIN)] if cluster.shared else [(ROLLOUT,), (TRAIN,)], strict=True
    ):
        work_s = [life.iterations * sum(least_node_s(life.job, kind) for kind in kinds) for life in lives]
        # The bound without a limit on groups holds for limited groups, too, and is at times the better one.
        idle_s = max(_forced_idle_s(_spans(lives, kinds, pool, most), work_s) for most in {None, max_group})
        usd += (sum(work_s) + idle_s) / HOUR_S * pool.node_type.usd_per_hour
    return usd


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of time: node-seconds that are certainly held, and the most that each job could fill of them."""

    held_s: float
    can_do_s: tuple[tuple[int, float], ...]


def _spans(lives: Sequence[_Life], kinds: Sequence[PhaseKind], pool: Pool, max_group: int | None) -> list[_Span]:
    """The stretches of time in which nodes are held, cut wherever a job comes, may go, or must be gone."""
    times = sorted({at for life in lives for at in (life.start_s, life.sure_s, life.last_s)})
    there: list[list[int]] = [[] for _ in times]
    sure: list[list[Work]] = [[] for _ in times]
    for i, life in enumerate(lives):
        first, certain, last = [bisect_left(times, at) for at in (life.start_s, life.sure_s, life.last_s)]
        for k in range(first, last):
            there[k].append(i)
        for k in range(first, certain):
            sure[k] += [(life.job, kind) for kind in kinds]
    spans = []
    for k, (begin_s, end_s) in enumerate(pairwise(times)):
        held_s = _held_nodes(sure[k], pool, max_group) * (end_s - begin_s)
        if held_s:
            can_do_s = tuple(
                [(i, sum(lives[i].most_node_s(kind, end_s - begin_s) for kind in kinds)) for i in there[k]]
            )
            spans.append(_Span(held_s, can_do_s))
    return spans


def _forced_idle_s(spans: Sequence[_Span], work_s: Sequence[float]) -> float:
    """Node-seconds that are held and can't be filled.

    For any set of stretches these are the held node-seconds, less the work that each job could do in these stretches,
    which is at most all its work. Stretches that could be filled the least come first, and the best number is taken.
    """
    most, idle_s, done_s = 0.0, 0.0, [0.0] * len(work_s)
    for span in sorted(spans, key=lambda span: sum(can_s for _, can_s in span.can_do_s) / span.held_s):
        idle_s += span.held_s
        for i, can_s in span.can_do_s:
            idle_s -= min(work_s[i], done_s[i] + can_s) - min(work_s[i], done_s[i])
            done_s[i] += can_s
        most = max(most, idle_s)
    return most
