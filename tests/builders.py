"""Jobs, groups and snapshots in few words, and strategies that draw them.

Durations are whole seconds: the play counts in whole milliseconds, so that nothing is lost to rounding.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, PAPER_CLUSTER, PAPER_TRAIN, Cluster, Pool
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.snapshot import Snapshot

# The hourly price of one node of each of the paper's types.
ROLLOUT_USD = 8 * 1.85
TRAIN_USD = 8 * 5.28

_ONE_POOL = Pool("gpu", PAPER_TRAIN)
SHARED_CLUSTER = Cluster(_ONE_POOL, _ONE_POOL)


def job(
    name: str = "a",
    rollout_s: float = 100.0,
    train_s: float = 100.0,
    *,
    slo: float = 1.2,
    nodes: tuple[int, int] = (1, 1),
    resident_gb: tuple[int, int] = (0, 0),
) -> JobSpec:
    """A strict job; `nodes` and `resident_gb` are those of its rollout and of its training."""
    return JobSpec(
        name,
        PhaseSpec(rollout_s, nodes=nodes[0], resident_bytes=resident_gb[0] * GB),
        PhaseSpec(train_s, nodes=nodes[1], resident_bytes=resident_gb[1] * GB),
        slo,
    )


def pinned(job: JobSpec, rollout: str, train: str) -> Member:
    """The job on these nodes, named with spaces between."""
    return Member.of(job, Placement(tuple(rollout.split()), tuple(train.split())))


def group(name: str, *members: Member, order: Order = Order.FIFO) -> Group:
    return Group(name, members, order)


def snapshot(
    *groups: Group, cluster: Cluster = PAPER_CLUSTER, idle: dict[str, tuple[str, ...]] | None = None
) -> Snapshot:
    """A cluster that holds these groups and, in its pools, these idle nodes."""
    idle = idle or {}
    rented = {pool.name: len(idle.get(pool.name, ())) for pool in cluster.pools}
    for each in groups:
        if cluster.shared:
            rented[cluster.rollout.name] += len(each.nodes)
        else:
            rented[cluster.rollout.name] += len(each.rollout_nodes)
            rented[cluster.train.name] += len(each.train_nodes)
    return Snapshot(cluster, {g.id: g for g in groups}, idle, rented, sum(rented.values()), len(groups))


SECONDS = st.builds(lambda base, scale: float(base * scale), st.integers(1, 60), st.sampled_from((1, 3, 10)))
SLOS = st.one_of(st.just(1.0), st.integers(100, 250).map(lambda percent: percent / 100))


@st.composite
def strict_jobs(draw: st.DrawFn, name: str = "a", most_nodes: tuple[int, int] = (1, 1), most_gb: int = 0) -> JobSpec:
    """A strictly on-policy job without tail or elastic rollout."""
    return job(
        name,
        draw(SECONDS),
        draw(SECONDS),
        slo=draw(SLOS),
        nodes=(_up_to(draw, 1, most_nodes[0]), _up_to(draw, 1, most_nodes[1])),
        resident_gb=(_up_to(draw, 0, most_gb), _up_to(draw, 0, most_gb)),
    )


def _up_to(draw: st.DrawFn, low: int, high: int) -> int:
    return low if low == high else draw(st.integers(low, high))


@st.composite
def any_jobs(draw: st.DrawFn, name: str = "a", most_nodes: tuple[int, int] = (1, 1), most_gb: int = 0) -> JobSpec:
    """A job of any kind: with sync and switch times, staleness, a tail, an elastic or roaming rollout, or measured."""
    drawn = draw(strict_jobs(name, most_nodes, most_gb))
    traits = draw(st.sets(st.sampled_from(_TRAITS), max_size=3))
    if "sync" in traits:
        drawn = replace(drawn, sync_s=3.0)
    if "switch" in traits:
        rollout = replace(drawn.rollout, load_s=2.0, offload_s=1.0)
        drawn = replace(drawn, rollout=rollout, train=replace(drawn.train, load_s=4.0))
    if "stale" in traits:
        drawn = replace(drawn, staleness=draw(st.integers(1, 2)))
    if "elastic" in traits:
        drawn = replace(drawn, elastic_rollout=True)
    if "tail" in traits:
        bulk_s = drawn.rollout.duration_s * draw(st.sampled_from((0.25, 0.5, 0.75)))
        drawn = replace(drawn, tail=Tail(100, draw(st.sampled_from((5, 10, 20))), bulk_s, move_s=1.0))
    if "roam" in traits and not drawn.may_shrink:
        drawn = replace(drawn, rollout_spares=draw(st.integers(1, 2)))
    if "measured" in traits:
        rollout_s, train_s = drawn.rollout.duration_s, drawn.train.duration_s
        drawn = drawn.measured(rollout_s * draw(_SPEEDS), train_s * draw(_SPEEDS))
    return drawn


_TRAITS = ("sync", "switch", "stale", "elastic", "tail", "roam", "measured")
_SPEEDS = st.sampled_from((0.5, 0.75, 1.0, 1.25))


@st.composite
def groups_of(
    draw: st.DrawFn,
    jobs: st.SearchStrategy[JobSpec],
    nodes: tuple[str, str] = ("r0 r1 r2", "t0 t1"),
    *,
    most: int = 5,
    orders: st.SearchStrategy[Order] | None = None,
) -> Group:
    """One to `most` of these jobs, each pinned to as many of the nodes as it wants or may have, wherever that is."""
    members = []
    for i in range(draw(st.integers(1, most))):
        drawn = replace(draw(jobs), id=f"j{i}")
        wanted, there = drawn.rollout.nodes, nodes[0].split()
        rollout = _some(draw, there, min(wanted + _up_to(draw, 0, drawn.rollout_spares), max(len(there), wanted)))
        members.append(Member.of(drawn, Placement(rollout, _some(draw, nodes[1].split(), drawn.train.nodes))))
    return Group("g", tuple(members), draw(orders) if orders is not None else Order.FIFO)


def _some(draw: st.DrawFn, nodes: Sequence[str], count: int) -> tuple[str, ...]:
    first = _up_to(draw, 0, len(nodes) - 1)
    return tuple([*nodes, *nodes][first : first + count])
