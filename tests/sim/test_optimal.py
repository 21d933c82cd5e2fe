"""The optimum is the cheapest of all ways to group and pin the jobs, its bound is never above it, and it runs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import memory_problem
from rollmux.sim import optimal
from rollmux.sim.limits import pinned_bound, workload_bound_usd
from rollmux.sim.optimal import SAME_USD, Optimum, Partition, Priced, solve_partition
from rollmux.sim.optimal_run import optimal_run
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, any_jobs, job, snapshot, strict_jobs
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

pytest.importorskip("highspy", reason="the optimum needs the extra `solver`")

PAIR_USD = ROLLOUT_USD + TRAIN_USD
FORECASTER = Forecaster()
# Two jobs of the paper's temporal micro-benchmark.
TWO_A = [job(name, 131, 102, slo=1.2) for name in "ab"]


def feasible(group: Group, cluster: Cluster) -> bool:
    fits = memory_problem(snapshot(group, cluster=cluster), group) is None
    return fits and FORECASTER.late(group) is None


@cache
def spreads(wants: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Every way to give each its number of nodes, old ones or the next new ones."""
    if not wants:
        return ((),)
    found = []
    for before in spreads(wants[:-1]):
        used = max((node for nodes in before for node in nodes), default=-1) + 1
        for chosen in product((False, True), repeat=used):
            old = tuple(node for node in range(used) if chosen[node])
            new = wants[-1] - len(old)
            if new >= 0:
                found.append((*before, old + tuple(range(used, used + new))))
    return tuple(found)


def pinnings(jobs: Sequence[JobSpec], cluster: Cluster) -> Iterator[Group]:
    """Every way to pin these jobs, up to the names of the nodes."""
    rollouts, trains = tuple(each.rollout.nodes for each in jobs), tuple(each.train.nodes for each in jobs)
    if cluster.shared:
        ways = [(nodes[: len(jobs)], nodes[len(jobs) :]) for nodes in spreads(rollouts + trains)]
    else:
        ways = list(product(spreads(rollouts), spreads(trains)))
    names = "nn" if cluster.shared else "rt"
    for ways_r, ways_t in ways:
        members = [
            Member.of(each, Placement(tuple(f"{names[0]}{n}" for n in rollout), tuple(f"{names[1]}{n}" for n in train)))
            for each, rollout, train in zip(jobs, ways_r, ways_t, strict=True)
        ]
        yield Group("g", tuple(members))


def cheapest_group(jobs: Sequence[JobSpec], cluster: Cluster) -> float:
    groups = sorted(pinnings(jobs, cluster), key=lambda group: group.usd_per_hour(cluster))
    return next(group.usd_per_hour(cluster) for group in groups if feasible(group, cluster))


def partitions(jobs: Sequence[JobSpec]) -> Iterator[list[list[JobSpec]]]:
    if not jobs:
        yield []
        return
    for others in partitions(jobs[:-1]):
        yield [*others, [jobs[-1]]]
        for i in range(len(others)):
            yield [*others[:i], [*others[i], jobs[-1]], *others[i + 1 :]]


def brute_force(jobs: Sequence[JobSpec], cluster: Cluster, max_group: int = 5) -> float:
    known: dict[tuple[str, ...], float] = {}
    least = float("inf")
    for parts in partitions(jobs):
        if max(len(part) for part in parts) > max_group:
            continue
        usd = 0.0
        for part in parts:
            key = tuple(each.id for each in part)
            if key not in known:
                known[key] = cheapest_group(part, cluster)
            usd += known[key]
        least = min(least, usd)
    return least


def check(best: Partition, jobs: Sequence[JobSpec], cluster: Cluster, max_group: int = 5) -> None:
    """It is a partition into feasible groups on nodes of their own, at the price that it says."""
    assert sorted(m.job.id for group in best.groups for m in group.members) == sorted(each.id for each in jobs)
    assert all(len(group.members) <= max_group and feasible(group, cluster) for group in best.groups)
    for member in (m for group in best.groups for m in group.members):
        assert len(set(member.placement.rollout)) == member.job.rollout.nodes
        assert len(set(member.placement.train)) == member.job.train.nodes
    nodes = [node for group in best.groups for node in group.nodes]
    assert len(nodes) == len(set(nodes))
    assert best.usd_per_hour == pytest.approx(sum(group.usd_per_hour(cluster) for group in best.groups))
    assert pinned_bound(jobs, cluster, max_group) <= best.usd_per_hour + SAME_USD
    assert best.bound_usd_per_hour <= best.usd_per_hour


def some(jobs: st.SearchStrategy[JobSpec], most: int) -> st.SearchStrategy[list[JobSpec]]:
    drawn = st.lists(jobs, min_size=1, max_size=most)
    return drawn.map(lambda found: [replace(each, id=f"j{i}") for i, each in enumerate(found)])


@settings(max_examples=examples(40))
@given(jobs=some(strict_jobs(), 5), max_group=st.sampled_from((2, 5)))
def test_strict_jobs_of_one_node_a_phase_cost_what_brute_force_finds(jobs: list[JobSpec], max_group: int) -> None:
    best = Optimum(PAPER_CLUSTER, max_group).best(jobs)
    check(best, jobs, PAPER_CLUSTER, max_group)
    assert best.complete
    assert best.usd_per_hour == pytest.approx(brute_force(jobs, PAPER_CLUSTER, max_group))


@settings(max_examples=examples(40))
@given(jobs=some(any_jobs(most_nodes=(2, 2), most_gb=600), 3))
def test_gangs_of_any_kind_cost_what_brute_force_finds(jobs: list[JobSpec]) -> None:
    best = Optimum(PAPER_CLUSTER).best(jobs)
    check(best, jobs, PAPER_CLUSTER)
    assert best.complete
    assert best.usd_per_hour == pytest.approx(brute_force(jobs, PAPER_CLUSTER))


@settings(max_examples=examples(40))
@given(jobs=some(strict_jobs(most_gb=600), 3))
def test_one_pool_for_both_phases_costs_what_brute_force_finds(jobs: list[JobSpec]) -> None:
    best = Optimum(SHARED_CLUSTER).best(jobs)
    check(best, jobs, SHARED_CLUSTER)
    assert best.complete
    assert best.usd_per_hour == pytest.approx(brute_force(jobs, SHARED_CLUSTER))


@settings(max_examples=examples(60))
@given(jobs=some(strict_jobs(), 8), data=st.data())
def test_what_is_known_of_earlier_jobs_changes_no_price(jobs: list[JobSpec], data: st.DataObject) -> None:
    known, active = Optimum(PAPER_CLUSTER), list[JobSpec]()
    for each in jobs:
        active.append(each)
        if len(active) > 2 and data.draw(st.booleans()):
            active.pop(data.draw(st.integers(0, len(active) - 1)))
        best = known.best(active)
        check(best, active, PAPER_CLUSTER)
        assert best.usd_per_hour == pytest.approx(Optimum(PAPER_CLUSTER).best(active).usd_per_hour)


@settings(max_examples=examples(25))
@given(jobs=some(strict_jobs(), 7), sets=st.sampled_from((0, 10, 10**6)), plays=st.sampled_from((0, 7, 400)))
def test_a_budget_that_ends_leaves_a_true_bound(jobs: list[JobSpec], sets: int, plays: int) -> None:
    best = Optimum(PAPER_CLUSTER).best(jobs)
    hasty = Optimum(PAPER_CLUSTER, sets_limit=sets, plays_limit=plays)
    found = hasty.best(jobs)
    check(found, jobs, PAPER_CLUSTER)
    assert found.bound_usd_per_hour <= best.usd_per_hour + SAME_USD
    assert found.usd_per_hour >= best.usd_per_hour - SAME_USD
    assert found.plays <= plays
    if sets > 10 and plays:
        while not found.complete:
            found = hasty.best(jobs)  # takes up where the last one ended
        assert found.usd_per_hour == pytest.approx(best.usd_per_hour)


def test_two_equal_jobs_share_one_pair() -> None:
    best = Optimum(PAPER_CLUSTER).best(TWO_A)
    assert [[m.job.id for m in group.members] for group in best.groups] == [["a", "b"]]
    assert best.usd_per_hour == best.bound_usd_per_hour == pytest.approx(PAIR_USD)


def test_equal_jobs_that_tolerate_nothing_share_the_node_of_their_shorter_phase() -> None:
    best = Optimum(PAPER_CLUSTER).best([replace(each, slo=1.0) for each in TWO_A])
    assert best.usd_per_hour == pytest.approx(2 * ROLLOUT_USD + TRAIN_USD)


def test_a_chain_of_jobs_that_share_one_node_each_is_one_group() -> None:
    jobs = [job(name, rollout_s, train_s, slo=1.0) for name, rollout_s, train_s in (("a", 1, 32), ("b", 1, 10))]
    jobs += [job("c", 120, 1, slo=1.0)]
    for order in (jobs, [jobs[1], jobs[0], jobs[2]], [jobs[2], jobs[1], jobs[0]]):
        best = Optimum(PAPER_CLUSTER).best(order)
        assert best.usd_per_hour == pytest.approx(brute_force(order, PAPER_CLUSTER)) == pytest.approx(2 * PAIR_USD)


def test_a_job_that_changed_is_looked_at_anew() -> None:
    optimum = Optimum(PAPER_CLUSTER)
    optimum.best(TWO_A)
    assert optimum.best(TWO_A).plays == 0
    stricter = [TWO_A[0], replace(TWO_A[1], slo=1.0)]
    assert optimum.best(stricter).usd_per_hour == Optimum(PAPER_CLUSTER).best(stricter).usd_per_hour > PAIR_USD


def test_a_departure_costs_no_play() -> None:
    optimum = Optimum(PAPER_CLUSTER)
    jobs = [job(f"j{i}", 40 + 9 * i, 60 + 5 * i, slo=1.5) for i in range(7)]
    optimum.best(jobs)
    left = optimum.best(jobs[:3] + jobs[4:])
    assert left.plays == 0
    assert left.usd_per_hour == pytest.approx(Optimum(PAPER_CLUSTER).best(jobs[:3] + jobs[4:]).usd_per_hour)


def test_no_jobs_cost_nothing() -> None:
    assert Optimum(PAPER_CLUSTER).best([]) == Partition((), 0.0, 0.0, 0, 0, 0)


@settings(max_examples=examples(60))
@given(
    st.integers(2, 9).flatmap(
        lambda jobs: st.tuples(
            st.lists(st.integers(1, 40), min_size=jobs, max_size=jobs),
            st.lists(st.tuples(st.sets(st.integers(0, jobs - 1), min_size=2, max_size=5), st.integers(1, 120))),
        )
    )
)
def test_the_table_and_the_solver_choose_as_cheaply(told: tuple[list[int], list[tuple[set[int], int]]]) -> None:
    alone, together = told
    columns: list[Priced] = [((3 * place,), float(usd)) for place, usd in enumerate(alone)]  # places may have gaps
    columns += [(tuple(3 * place for place in sorted(places)), float(usd)) for places, usd in together]
    chosen, usd = solve_partition(columns, 10_000)
    assert sorted(place for number in chosen for place in columns[number][0]) == [3 * n for n in range(len(alone))]
    assert sum(columns[number][1] for number in chosen) == pytest.approx(usd)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(optimal, "TABLE_JOBS", 0)
        solved, bound = solve_partition(columns, 10_000)
        assert sum(columns[number][1] for number in solved) == pytest.approx(usd)
        assert bound == pytest.approx(usd)
        assert solve_partition(columns, None)[1] <= usd


def test_a_pool_with_an_end_is_refused() -> None:
    bounded = replace(PAPER_CLUSTER, train=replace(PAPER_CLUSTER.train, max_nodes=3))
    with pytest.raises(InvalidSpec, match="max_nodes = 3"):
        Optimum(bounded)


def test_a_job_that_no_node_can_hold_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="job 'a'"):
        Optimum(PAPER_CLUSTER).best([job("a", resident_gb=(2000, 0))])


def test_without_the_solver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(InvalidSpec, match=r"pip install 'rollmux\[solver\]'"):
        Optimum(PAPER_CLUSTER).best(TWO_A)


def two_a(hours: float = 10.0) -> Workload:
    return Workload("two", tuple(Arrival(i * HOUR_S, hours * HOUR_S, each) for i, each in enumerate(TWO_A)))


def test_jobs_go_at_the_pace_of_their_groups() -> None:
    run = optimal_run(two_a(), PAPER_CLUSTER)
    iterations = two_a().arrivals[0].iterations
    # The first is alone for an hour; both go at 262 s an iteration; the second ends alone.
    first, second = run.outcome.jobs
    together_h = (iterations - HOUR_S / 233) * 262 / HOUR_S
    assert first.ended_h == pytest.approx(1 + together_h)
    assert second.ended_h == pytest.approx(1 + together_h + (iterations - together_h * HOUR_S / 262) * 233 / HOUR_S)
    assert first.slowdown == pytest.approx(first.ended_h * HOUR_S / iterations / 233)
    assert run.outcome.usd_total == pytest.approx(second.ended_h * PAIR_USD)
    assert run.outcome.slo_attainment == 1
    assert run.outcome.rollout.paid == pytest.approx(second.ended_h)
    assert run.outcome.rollout.busy == pytest.approx(2 * iterations * 131 / HOUR_S)
    assert [level.running for level in run.outcome.levels] == [1, 2, 1, 0]
    assert (run.regroups, run.proven, run.mean_gap) == (4, 4, 0)
    assert run.bound_usd == pytest.approx(run.outcome.usd_total)


def test_with_fixed_lifetimes_slow_jobs_leave_on_time() -> None:
    run = optimal_run(two_a(), PAPER_CLUSTER, fixed_lifetimes=True)
    assert [each.ended_h for each in run.outcome.jobs] == pytest.approx([10.0, 11.0])
    assert run.outcome.usd_total == pytest.approx(11 * PAIR_USD)


@settings(max_examples=examples(25))
@given(jobs=some(any_jobs(most_gb=300), 6), shared=st.booleans(), data=st.data())
def test_a_run_pays_no_less_than_any_bound_and_keeps_every_slo(
    jobs: list[JobSpec], shared: bool, data: st.DataObject
) -> None:
    cluster = SHARED_CLUSTER if shared else PAPER_CLUSTER
    jobs = jobs[:4] if shared else jobs
    times = sorted(data.draw(st.integers(0, 10)) * 1800.0 for _ in jobs)
    lengths = [data.draw(st.integers(5, 40)) * each.solo_s for each in jobs]
    workload = Workload("drawn", tuple(map(Arrival, times, lengths, jobs)))
    run = optimal_run(workload, cluster, Optimum(cluster, max_group=3))
    usd = run.outcome.usd_total * (1 + 1e-9)
    assert run.bound_usd <= usd
    assert workload_bound_usd(workload, cluster, 3) <= usd
    assert run.outcome.slo_attainment == 1
    assert min(run.outcome.rollout.idle, run.outcome.train.idle) > -1e-6
    paid = run.outcome.rollout, run.outcome.train
    prices = cluster.rollout.node_type.usd_per_hour, cluster.train.node_type.usd_per_hour
    assert run.outcome.usd_total == pytest.approx(sum(p.paid * price for p, price in zip(paid, prices, strict=True)))
