"""Jobs, tails, machines and clusters: what their numbers mean."""

from dataclasses import FrozenInstanceError, replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.hardware import GB, PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool, elastic, finite
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from tests.builders import SHARED_CLUSTER, any_jobs, job, strict_jobs

TAILS = st.builds(
    Tail,
    st.integers(1, 5000),
    st.integers(1, 600),
    st.floats(0, 1000),
    trigger=st.floats(0.01, 1.0),
)


@given(job=any_jobs())
def test_a_strict_iteration_takes_all_its_phases_and_a_stale_one_the_longer_of_two_stages(job: JobSpec) -> None:
    rollout_s, train_s = job.rollout.planned_s, job.train.planned_s
    if job.staleness == 0:
        assert job.solo_s == pytest.approx(rollout_s + train_s + job.sync_s)
    else:
        assert job.solo_s == pytest.approx(max(rollout_s, train_s + job.sync_s))
    assert job.limit_s == pytest.approx(job.slo * job.solo_s)


@given(job=any_jobs())
def test_switching_costs_nothing_in_an_iteration_alone(job: JobSpec) -> None:
    slower = replace(job, rollout=replace(job.rollout, load_s=50, offload_s=50))
    assert slower.solo_s == job.solo_s
    assert slower.rollout.switch_s == 100


@given(job=strict_jobs(), rollout_s=st.floats(1, 500), train_s=st.floats(1, 500), sync_s=st.floats(0, 50))
def test_what_was_measured_counts_in_place_of_the_worst_case_which_is_kept(
    job: JobSpec, rollout_s: float, train_s: float, sync_s: float
) -> None:
    measured = job.measured(rollout_s, train_s, sync_s)
    assert (measured.rollout.planned_s, measured.train.planned_s) == (rollout_s, train_s)
    assert measured.solo_s == pytest.approx(rollout_s + train_s + sync_s)
    assert measured.rollout.duration_s == job.rollout.duration_s
    assert measured.train.duration_s == job.train.duration_s


def test_a_sync_that_was_not_measured_stays_as_it_was_given() -> None:
    assert replace(job(), sync_s=4.0).measured(50, 30).sync_s == 4.0


def test_a_switch_that_was_measured_counts_from_then_on_and_another_stays_as_it_was_given() -> None:
    given = job()
    measured = given.measured(50, 30, None, (4.0, 2.0))
    assert (measured.rollout.load_s, measured.rollout.offload_s) == (4.0, 2.0)
    assert measured.train.switch_s == given.train.switch_s
    assert measured.measured(50, 30).rollout.switch_s == 6.0


def test_measuring_again_replaces_the_first_measurement() -> None:
    assert job().measured(50, 30).measured(60, 40) == job().measured(60, 40)


@given(gpus=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_wanted_gpus_become_the_fewest_whole_nodes_that_have_them(gpus: tuple[int, int]) -> None:
    by_gpus = replace(job(), rollout=PhaseSpec(100, gpus=gpus[0]), train=PhaseSpec(100, gpus=gpus[1]))
    resolved = by_gpus.resolve(PAPER_CLUSTER)
    for wanted, phase in zip(gpus, (resolved.rollout, resolved.train), strict=True):
        assert (phase.nodes - 1) * 8 < wanted <= phase.nodes * 8
        assert phase.gpus == 0
    assert resolved.resolve(PAPER_CLUSTER) == resolved


def test_each_phase_is_counted_in_nodes_of_its_own_pool() -> None:
    cluster = elastic(replace(PAPER_ROLLOUT, gpus=4), replace(PAPER_TRAIN, gpus=16))
    by_gpus = replace(job(), rollout=PhaseSpec(100, gpus=16), train=PhaseSpec(100, gpus=16)).resolve(cluster)
    assert (by_gpus.rollout.nodes, by_gpus.train.nodes) == (4, 1)


def test_a_job_that_names_its_nodes_is_left_as_it_is() -> None:
    assert job(nodes=(3, 2)).resolve(PAPER_CLUSTER) == job(nodes=(3, 2))


def test_rollouts_and_the_rest_are_looked_up_by_kind() -> None:
    found = job(rollout_s=1, train_s=2)
    assert found.phase(PhaseKind.ROLLOUT) is found.rollout
    assert found.phase(PhaseKind.TRAIN) is found.train


def test_under_another_slo_a_job_keeps_back_one_of_the_iterations_left_and_all_else_stays() -> None:
    given = replace(job(slo=1.2), iterations=100)
    assert (given.limit_s, given.opening_limit_s) == (240.0, 238.0)  # asked for before: it must not stay as it was
    shown = given.under(1.5, 10)
    assert (shown.limit_s, shown.opening_limit_s) == (300.0, 280.0)
    assert shown == replace(given, slo=1.5)
    assert given.under(1.05, 10).opening_limit_s == 200.0  # as fast as alone at most
    assert given.under(1.5, None).opening_limit_s == 300.0
    assert given.opening_limit_s == 238.0


def test_a_job_is_a_value_that_nobody_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        job().slo = 2.0  # type: ignore[misc]
    assert job() == job()
    assert len({job(), job()}) == 1


@given(tail=TAILS, remaining=st.integers(0, 5000))
def test_a_tail_keeps_the_fewest_nodes_whose_kv_room_holds_what_remains(tail: Tail, remaining: int) -> None:
    kept = tail.keep_nodes(remaining)
    assert kept >= 1
    assert kept * tail.requests_per_node >= remaining
    assert kept == 1 or (kept - 1) * tail.requests_per_node < remaining


@given(tail=TAILS)
def test_a_tail_needs_the_most_nodes_when_it_begins(tail: Tail) -> None:
    """It begins with the first response at which `done >= trigger * requests`."""
    begins = next(done for done in range(tail.requests + 1) if done >= tail.trigger * tail.requests)
    assert begins == ceil(tail.trigger * tail.requests)
    assert tail.worst_keep_nodes == tail.keep_nodes(tail.requests - begins)
    assert all(tail.keep_nodes(left) <= tail.worst_keep_nodes for left in range(tail.requests - begins + 1))


def test_the_paper_s_nodes_cost_what_its_prices_say() -> None:
    assert PAPER_ROLLOUT.usd_per_hour == pytest.approx(8 * 1.85) == pytest.approx(14.80)
    assert PAPER_TRAIN.usd_per_hour == pytest.approx(8 * 5.28) == pytest.approx(42.24)
    assert PAPER_CLUSTER.rollout.node_type is PAPER_ROLLOUT
    assert PAPER_CLUSTER.train.node_type is PAPER_TRAIN


def test_resident_state_may_fill_host_memory_but_for_the_reserve() -> None:
    kind = replace(PAPER_ROLLOUT, host_memory_bytes=1000 * GB, host_reserve_bytes=50 * GB)
    assert kind.room_bytes == 950 * GB
    assert PAPER_ROLLOUT.room_bytes == 1000 * GB


def test_an_elastic_cluster_rents_without_limit_and_a_finite_one_waits_for_machines() -> None:
    rents, waits = elastic(PAPER_ROLLOUT, PAPER_TRAIN), finite(PAPER_ROLLOUT, PAPER_TRAIN)
    assert [(pool.on_demand, pool.max_nodes) for pool in rents.pools] == [(True, None), (True, None)]
    assert [pool.on_demand for pool in waits.pools] == [False, False]
    assert [pool.name for pool in waits.pools] == ["rollout", "train"]
    assert not rents.shared
    assert not waits.shared


def test_a_cluster_is_shared_where_both_roles_have_one_pool() -> None:
    assert SHARED_CLUSTER.shared
    assert SHARED_CLUSTER.pools == (SHARED_CLUSTER.rollout,)
    two = Cluster(Pool("left", PAPER_TRAIN), Pool("right", PAPER_TRAIN))
    assert not two.shared
    assert two.pools == (two.rollout, two.train)
