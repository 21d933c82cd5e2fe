"""A snapshot answers what-ifs: what pools can still give, and what the cluster is once a plan is applied."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool, finite
from rollmux.mux.snapshot import Snapshot
from tests.builders import SHARED_CLUSTER, group, job, pinned, snapshot

FINITE = finite(PAPER_ROLLOUT, PAPER_TRAIN)
NAMES = st.lists(st.sampled_from(["m0", "m1", "m2", "m3"]), unique=True).map(tuple)
POOLS = st.builds(Pool, st.just("p"), st.just(PAPER_ROLLOUT), st.booleans(), st.none() | st.integers(1, 6))


@given(pool=POOLS, idle=NAMES, more=st.integers(0, 4), count=st.integers(0, 6), skip=st.integers(0, 6))
def test_an_offer_is_as_many_distinct_nodes_as_asked_for_or_none_where_the_room_ends(
    pool: Pool, idle: tuple[str, ...], more: int, count: int, skip: int
) -> None:
    cluster = Cluster(pool, Pool("other", PAPER_TRAIN))
    state = Snapshot(cluster, {}, {"p": idle}, {"p": len(idle) + more}, next_node=50)
    room = state.room(pool)
    both = state.offer(pool, skip + count)
    offered = state.offer(pool, count, skip)
    too_many = room is not None and skip + count > room
    assert (offered is None) == (too_many and count > 0)
    assert (both is None) == (too_many and skip + count > 0)
    if both is not None:
        assert offered == both[skip:]
        assert len(set(both)) == skip + count
        assert both[: len(idle)] == idle[: skip + count]


def test_machines_that_are_there_are_offered_before_new_ones_are_rented() -> None:
    state = Snapshot(PAPER_CLUSTER, {}, {"rollout": ("m7",)}, {"rollout": 1}, next_node=3)
    assert state.offer(PAPER_CLUSTER.rollout, 3) == ("m7", "rollout-3", "rollout-4")
    assert state.offer(PAPER_CLUSTER.train, 1) == ("train-3",)


def test_the_room_of_a_pool_is_what_a_plan_may_still_add() -> None:
    limited = replace(PAPER_CLUSTER.rollout, max_nodes=5)
    state = Snapshot(Cluster(limited, FINITE.train), {}, {"rollout": ("m0",)}, {"rollout": 3})
    assert state.room(limited) == 3  # one idle, two to rent
    assert state.room(replace(limited, max_nodes=None)) is None
    assert state.room(FINITE.train) == 0


def test_a_group_that_takes_idle_machines_leaves_fewer_idle() -> None:
    before = snapshot(cluster=FINITE, idle={"rollout": ("m0", "m1"), "train": ("m2",)})
    after = before.with_group(group("group-0", pinned(job(), "m1", "m2")), (("rollout", "m1"), ("train", "m2")))
    assert after.idle == {"rollout": ("m0",), "train": ()}
    assert after.rented == before.rented
    assert after.groups["group-0"].nodes == ("m1", "m2")
    assert after.next_group == before.next_group + 1


def test_a_group_that_rents_machines_counts_them() -> None:
    before = snapshot()
    after = before.with_group(
        group("group-0", pinned(job(), "rollout-0", "train-0")), (("rollout", "rollout-0"), ("train", "train-0"))
    )
    assert after.rented == {"rollout": 1, "train": 1}
    assert after.offer(PAPER_CLUSTER.rollout, 1) == ("rollout-2",)


def test_widening_a_group_does_not_use_up_a_group_s_name() -> None:
    before = snapshot(group("group-0", pinned(job(), "r0", "t0")))
    wider = before.groups["group-0"].joined_by(pinned(job("b"), "rollout-2", "t0"))
    assert before.with_group(wider, (("rollout", "rollout-2"),)).next_group == before.next_group


def test_a_job_that_leaves_an_elastic_cluster_gives_its_own_nodes_back() -> None:
    before = snapshot(group("group-0", pinned(job("a"), "r0", "t0"), pinned(job("b"), "r1", "t0")))
    after = before.without_job("group-0", "b")
    assert after.rented == {"rollout": 1, "train": 1}
    assert after.groups["group-0"].nodes == ("r0", "t0")
    assert after.without_job("group-0", "a").groups == {}
    assert after.without_job("group-0", "a").rented == {"rollout": 0, "train": 0}


def test_a_job_that_leaves_a_finite_cluster_leaves_its_own_nodes_idle() -> None:
    before = snapshot(group("group-0", pinned(job("a"), "r0", "t0"), pinned(job("b"), "r1", "t0")), cluster=FINITE)
    after = before.without_job("group-0", "b")
    assert after.idle == {"rollout": ("r1",), "train": ()}
    assert after.rented == before.rented


def test_a_shared_pool_gets_each_node_back_once() -> None:
    before = snapshot(
        group("group-0", pinned(job("a"), "n0", "n0"), pinned(job("b"), "n1", "n0")), cluster=SHARED_CLUSTER
    )
    assert before.rented == {"gpu": 2}
    after = before.without_job("group-0", "b")
    assert after.rented == {"gpu": 1}
    assert after.without_job("group-0", "a").rented == {"gpu": 0}


@pytest.mark.parametrize("cluster", [PAPER_CLUSTER, FINITE, SHARED_CLUSTER], ids=["elastic", "finite", "shared"])
def test_an_emptied_cluster_is_one_that_all_jobs_have_left(cluster: Cluster) -> None:
    groups = (
        group("group-0", pinned(job("a"), "n0", "m0"), pinned(job("b"), "n1", "m0")),
        group("group-1", pinned(job("c"), "n2", "m1")),
    )
    left = before = replace(snapshot(*groups, cluster=cluster), shunned=frozenset({"n1"}))
    for group_id, job_id in (("group-0", "a"), ("group-0", "b"), ("group-1", "c")):
        left = left.without_job(group_id, job_id)
    emptied = before.emptied()
    assert (emptied.groups, emptied.rented) == ({}, left.rented)
    assert {pool: sorted(nodes) for pool, nodes in emptied.idle.items()} == {
        pool: sorted(nodes) for pool, nodes in left.idle.items()
    }


def test_a_what_if_leaves_the_snapshot_itself_as_it_was() -> None:
    before = snapshot(group("group-0", pinned(job("a"), "r0", "t0")), cluster=FINITE, idle={"rollout": ("m0",)})
    image = repr(before)
    before.with_group(group("group-1", pinned(job("b"), "m0", "t0")), (("rollout", "m0"),))
    before.without_job("group-0", "a")
    assert repr(before) == image
