"""The limits are what they say, and no placement that meets its SLOs undercuts the bounds."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import JobSpec, PhaseKind, Tail
from rollmux.mux.placed import ROLLOUT, TRAIN
from rollmux.mux.plan import memory_problem
from rollmux.sim.limits import (
    PARTS,
    fewest_nodes,
    fluid_usd,
    pinned_bound,
    whole_node_usd,
    whole_nodes,
    workload_bound_usd,
)
from rollmux.sim.replay import Fidelity, Settings, replay
from rollmux.sim.workload import HOUR_S, Arrival, Workload
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, any_jobs, groups_of, job, snapshot, strict_jobs
from tests.sim import worlds
from tests.thorough import examples

PAIR_USD = ROLLOUT_USD + TRAIN_USD


def alike(count: int, rollout_s: float, train_s: float, hours: float = 1.0, *, slo: float = 1.2) -> Workload:
    """Jobs that all arrive at once."""
    jobs = [job(f"j{i}", rollout_s, train_s, slo=slo) for i in range(count)]
    return Workload("alike", tuple(Arrival(0.0, hours * HOUR_S, each) for each in jobs))


def test_the_fluid_limit_pays_for_work_only() -> None:
    workload = alike(1, 60, 40, hours=10)
    assert fluid_usd(workload, PAPER_CLUSTER) == pytest.approx(10 * (0.6 * ROLLOUT_USD + 0.4 * TRAIN_USD))


def test_a_gang_works_on_all_its_nodes() -> None:
    workload = Workload("gang", (Arrival(0.0, HOUR_S, job("a", 60, 40, nodes=(3, 2))),))
    assert fluid_usd(workload, PAPER_CLUSTER) == pytest.approx(1.8 * ROLLOUT_USD + 0.8 * TRAIN_USD)
    assert whole_node_usd(workload, PAPER_CLUSTER) == pytest.approx(2 * ROLLOUT_USD + TRAIN_USD)


def test_the_whole_node_limit_follows_who_is_active() -> None:
    first, second = job("a", 60, 40), job("b", 60, 40)
    workload = Workload("two", (Arrival(0.0, 2 * HOUR_S, first), Arrival(HOUR_S, 2 * HOUR_S, second)))
    # One job for two hours in all; both for one hour, which takes 1.2 rollout nodes and 0.8 training nodes.
    assert whole_node_usd(workload, PAPER_CLUSTER) == pytest.approx(2 * PAIR_USD + 2 * ROLLOUT_USD + TRAIN_USD)


def test_a_shared_pool_rounds_up_once() -> None:
    assert whole_node_usd(alike(3, 60, 40), SHARED_CLUSTER) == pytest.approx(3 * TRAIN_USD)


@pytest.mark.parametrize(("rollout_s", "train_s"), [(0.1, 0.2), (0.7, 0.3), (100 / 3, 200 / 3), (1e-3, 0.999)])
def test_shares_that_fill_nodes_exactly_are_not_rounded_to_one_more(rollout_s: float, train_s: float) -> None:
    share = rollout_s / (rollout_s + train_s)
    count = next(n for n in range(1, 1001) if abs(n * share - round(n * share)) < 1e-9)
    workload = alike(count, rollout_s, train_s)
    nodes = round(count * share) * ROLLOUT_USD + round(count * (1 - share)) * TRAIN_USD
    hours = workload.arrivals[0].iterations * (rollout_s + train_s) / HOUR_S
    assert whole_node_usd(workload, PAPER_CLUSTER) == pytest.approx(nodes * hours)


def test_a_share_above_a_whole_number_takes_one_more_node() -> None:
    assert [whole_nodes(parts, 1) for parts in (0, 2, PARTS + 1, PARTS + 2, 2 * PARTS)] == [0, 1, 1, 2, 2]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = draw(st.lists(strict_jobs(most_nodes=(2, 2)), min_size=1, max_size=6))
    arrivals = [
        Arrival(draw(st.integers(0, 20)) * 600.0, draw(st.integers(1, 30)) * 600.0, replace(each, id=f"j{i}"))
        for i, each in enumerate(jobs)
    ]
    return Workload("drawn", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


@given(workload=workloads())
def test_both_limits_are_what_adding_up_every_stretch_of_time_gives(workload: Workload) -> None:
    """In fractions: each job is there for so long as its work takes alone, and needs its share of the time of nodes."""
    for cluster in (PAPER_CLUSTER, SHARED_CLUSTER):
        lives = [(a.at_s, a.at_s + a.iterations * a.job.solo_s, a.job) for a in workload.arrivals]
        fluid = whole = Fraction(0)
        for begin, end in pairwise(sorted({at for life in lives for at in life[:2]})):
            jobs = [each for came, gone, each in lives if came <= begin < gone]
            shares = [sum(share_of(each, kind) for each in jobs) for kind in (ROLLOUT, TRAIN)]
            if cluster.shared:
                shares = [sum(shares)]
            for pool, share in zip(cluster.pools, shares, strict=True):
                usd = Fraction(pool.node_type.usd_per_hour) * Fraction(end - begin) / 3600
                fluid, whole = fluid + usd * share, whole + usd * ceil(share)
        assert fluid_usd(workload, cluster) == pytest.approx(float(fluid))
        assert whole_node_usd(workload, cluster) == pytest.approx(float(whole))


def share_of(job: JobSpec, kind: PhaseKind) -> Fraction:
    return job.phase(kind).nodes * Fraction(job.phase(kind).planned_s) / Fraction(job.solo_s)


@given(workload=workloads())
def test_the_fluid_limit_is_below_the_others_and_all_below_dedicated_nodes(workload: Workload) -> None:
    for cluster in (PAPER_CLUSTER, SHARED_CLUSTER):
        fluid = fluid_usd(workload, cluster)
        bound, grouped = (workload_bound_usd(workload, cluster, most) for most in (None, 2))
        prices = cluster.rollout.node_type.usd_per_hour, cluster.train.node_type.usd_per_hour
        dedicated = sum(
            arrival.iterations
            * arrival.job.solo_s
            / HOUR_S
            * (arrival.job.rollout.nodes * prices[0] + arrival.job.train.nodes * prices[1])
            for arrival in workload.arrivals
        )
        assert fluid <= whole_node_usd(workload, cluster) * (1 + 1e-9)
        assert fluid <= bound * (1 + 1e-9)
        assert bound <= grouped * (1 + 1e-9)
        assert grouped <= dedicated * (1 + 1e-9)


def test_a_job_without_company_pays_for_its_idle_nodes() -> None:
    workload = alike(1, 60, 40, hours=1000)
    assert workload_bound_usd(workload, PAPER_CLUSTER) == pytest.approx(1000 * PAIR_USD, rel=1e-3)


def test_groups_of_a_limited_size_hold_nodes_that_they_can_not_fill() -> None:
    workload = alike(10, 90, 10, hours=1000, slo=2.0)
    assert workload_bound_usd(workload, PAPER_CLUSTER) == pytest.approx(fluid_usd(workload, PAPER_CLUSTER), rel=1e-3)
    with_groups = workload_bound_usd(workload, PAPER_CLUSTER, 5)
    assert with_groups == pytest.approx(1000 * (9 * ROLLOUT_USD + 2 * TRAIN_USD), rel=1e-3)


@settings(max_examples=examples(60))
@given(jobs=worlds.workloads(most_nodes=(3, 4)), policy=st.sampled_from([*worlds.PHASED, "rollmux"]))
def test_no_policy_that_meets_all_slos_costs_less_than_the_bound(jobs: Workload, policy: str) -> None:
    outcome = replay(jobs, policy, Settings(fidelity=Fidelity.PACE))
    if outcome.slo_attainment == 1:
        assert workload_bound_usd(jobs, PAPER_CLUSTER) <= outcome.usd_total * (1 + 1e-9)


def test_a_job_that_is_trained_on_fewer_nodes_than_it_wants_holds_no_more() -> None:
    jobs = job("a", 200, 47, slo=1.2), job("b", 50, 10, slo=5.0, nodes=(3, 4))
    workload = Workload(
        "two", tuple(Arrival(0.0, n * each.solo_s, each) for each, n in zip(jobs, (200, 100), strict=True))
    )
    outcome = replay(workload, "paper")
    assert outcome.slo_attainment == 1
    assert workload_bound_usd(workload, PAPER_CLUSTER) <= outcome.usd_total


@given(group=groups_of(any_jobs(most_nodes=(2, 2), most_gb=400), nodes=("r0 r1 r2", "t0 t1 t2")))
def test_no_group_that_meets_its_slos_is_cheaper_than_the_pinned_bound(group: Group) -> None:
    if Forecaster().late(group) is None and memory_problem(snapshot(group), group) is None:
        jobs = [member.job for member in group.members]
        assert pinned_bound(jobs, PAPER_CLUSTER, 5) <= group.usd_per_hour(PAPER_CLUSTER) + 1e-6


@given(group=groups_of(any_jobs(most_nodes=(2, 2), most_gb=400), nodes=("n0 n1 n2", "n0 n1 n2")))
def test_no_group_in_one_pool_is_cheaper_than_the_pinned_bound(group: Group) -> None:
    shared = snapshot(group, cluster=SHARED_CLUSTER)
    if Forecaster().late(group) is None and memory_problem(shared, group) is None:
        jobs = [member.job for member in group.members]
        assert pinned_bound(jobs, SHARED_CLUSTER, 5) <= group.usd_per_hour(SHARED_CLUSTER) + 1e-6


def rollout_nodes(*jobs: JobSpec, max_group: int | None = None) -> int:
    return fewest_nodes([(each, ROLLOUT) for each in jobs], PAPER_CLUSTER.rollout, max_group)


def test_each_argument_of_the_pinned_bound_counts() -> None:
    quarter = [job(name, 30, 70, slo=1.2) for name in "abcd"]
    assert rollout_nodes(*quarter) == 1
    assert rollout_nodes(*quarter, job("e", 30, 70, slo=1.2)) == 2  # 1.25 nodes' worth of time
    assert rollout_nodes(*[job(name, 62, 38, slo=1.2) for name in "abc"]) == 3  # three of more than half a node
    patient, strict = job("a", 300, 600, slo=2.0), job("b", 50, 100, slo=1.0)
    assert rollout_nodes(patient, strict) == 2  # the strict job can't wait for the long rollout
    assert rollout_nodes(*[job(name, 10, 90, slo=2.0, resident_gb=(600, 0)) for name in "abc"]) == 3
    assert rollout_nodes(job("a", 10, 90, nodes=(4, 1))) == 4
    assert rollout_nodes(*[job(name, 1, 99, slo=2.0) for name in "abcdef"], max_group=5) == 2


def test_a_tail_may_leave_all_but_one_node() -> None:
    gang = job("a", 90, 10, slo=1.0, nodes=(2, 1), resident_gb=(1, 1))
    tail = replace(gang, tail=Tail(100, 50, 10.0))
    assert rollout_nodes(gang, replace(gang, id="b")) == 4
    assert rollout_nodes(tail, replace(tail, id="b")) == 2


def test_nothing_costs_nothing() -> None:
    empty = Workload("empty", ())
    assert fluid_usd(empty, PAPER_CLUSTER) == whole_node_usd(empty, PAPER_CLUSTER) == 0
    assert workload_bound_usd(empty, PAPER_CLUSTER) == pinned_bound([], PAPER_CLUSTER) == 0
