"""A cluster that becomes another one while its jobs go on: what may change, what follows, and what is refused."""

from dataclasses import replace
from math import isclose
from typing import Any

import pytest

from rollmux.errors import IllegalEvent
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.changes import why_not_become
from rollmux.mux.hardware import GB, Cluster, Pool
from rollmux.mux.image import from_json, image, restore, to_json
from rollmux.mux.job import PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from tests.mux.world import CHEAP, DEAR, ELASTIC, FINITE, ROLLOUT, World, job

ONE_OF_EACH = Cluster(Pool("rollout", CHEAP, max_nodes=1), Pool("train", DEAR, max_nodes=1))
ALONE = {"slo": 1.0, "iterations": 9}


def with_pool(cluster: Cluster, role: str, **changes: Any) -> Cluster:
    pool = replace(getattr(cluster, role), **changes)
    return replace(cluster, **{role: pool})


def with_node(cluster: Cluster, role: str, **changes: Any) -> Cluster:
    return with_pool(cluster, role, node_type=replace(getattr(cluster, role).node_type, **changes))


def become(world: World, cluster: Cluster, *gone: str) -> tuple[cmd.Command, ...]:
    return world.tell(ev.ClusterChanged(cluster, gone))


def refused(world: World, cluster: Cluster, *gone: str) -> str:
    """What it says of a change that can't be, which changes nothing."""
    before = image(world.machine)
    with pytest.raises(IllegalEvent) as refusal:
        become(world, cluster, *gone)
    assert image(world.machine) == before
    assert str(refusal.value) == "; ".join(why_not_become(world.machine.state, cluster, gone))
    return str(refusal.value)


def finite_world() -> World:
    world = World(FINITE)
    for node in ("rollout-0", "rollout-1", "train-0", "train-1"):
        world.tell(ev.NodeJoined(node, node.partition("-")[0]))
    return world


def test_who_waits_for_nodes_gets_those_that_may_be_rented_from_now_on() -> None:
    world = World(ONE_OF_EACH)
    world.run(job("A", **ALONE))
    world.tell(ev.JobSubmitted(job("B", **ALONE)))
    assert world.machine.state.backlog == ["B"]
    two = with_pool(with_pool(ONE_OF_EACH, "rollout", max_nodes=2), "train", max_nodes=2)
    out = become(world, two)
    assert [type(command) for command in out] == [cmd.Provision, cmd.Provision, cmd.Admit]
    assert not world.machine.state.backlog


def test_a_job_that_was_too_large_is_taken_once_the_pool_is_larger() -> None:
    world = World(ONE_OF_EACH)
    wide = job("A", rollout=PhaseSpec(50.0, 2))
    assert world.machine.why_not(wide)
    become(world, with_pool(ONE_OF_EACH, "rollout", max_nodes=2))
    assert not world.machine.why_not(wide)


def test_phases_go_on_through_a_change() -> None:
    world = World(ONE_OF_EACH)
    world.run(job("A", **ALONE))
    lease = world.begin("A", ROLLOUT)
    become(world, with_pool(ONE_OF_EACH, "rollout", max_nodes=3))
    world.tell(ev.PhaseFinished("A", lease.epoch), 1.0)
    assert world.record().progress.rolled == 1


def test_the_same_cluster_again_is_no_change() -> None:
    world = finite_world()
    same = from_json(to_json(image(world.machine))).cluster
    assert same is not None
    assert same is not world.machine.state.cluster
    before = image(world.machine)
    assert become(world, same, "rollout-9") == ()
    assert image(world.machine) == before


def test_nodes_are_taken_out_once_nobody_shares_them() -> None:
    world = finite_world()
    world.run(job("A", **ALONE))
    (held,) = world.record().placement.rollout  # type: ignore[union-attr]
    assert refused(world, FINITE, held) == (
        f"node {held}, which it is to be without, is shared by A: drain it, until they have ended"
    )
    (free,) = {"rollout-0", "rollout-1"} - {held}
    world.tell(ev.NodeCordoned(free))
    become(world, FINITE, free)
    assert free not in world.machine.state.book.nodes
    assert not world.machine.state.book.shunned
    world.tell(ev.NodeJoined(free, "rollout"))  # another machine by that name later: it is not taken for drained
    assert world.machine.state.book.idle["rollout"] == (free,)


def test_fewer_may_be_rented_only_once_fewer_are() -> None:
    two = with_pool(ONE_OF_EACH, "train", max_nodes=2)
    world = World(two)
    world.run(job("A", train=PhaseSpec(50.0, 2), **ALONE))
    told = refused(world, ONE_OF_EACH)
    assert "pool train has 2 nodes and may have 1: wait until jobs have ended" in told
    assert "job A: " in told  # it could not be started again
    world.tell(ev.JobCancelled("A"))
    world.tell(ev.JobStopped("A", 1))
    become(world, ONE_OF_EACH)


def test_a_job_in_line_is_not_left_there_for_ever() -> None:
    world = World(FINITE)
    world.tell(ev.JobSubmitted(job("A", rollout=PhaseSpec(50.0, 4))))
    assert "job A: " in refused(world, with_pool(FINITE, "rollout", max_nodes=3))
    become(world, with_pool(FINITE, "rollout", max_nodes=4))


def test_a_job_in_line_is_not_left_without_any_place_that_it_could_have() -> None:
    six, seven = (Cluster(pool, pool) for pool in (Pool("gpu", DEAR, max_nodes=6), Pool("gpu", DEAR, max_nodes=7)))
    world = World(seven, policy=RollmuxPolicy(max_group=1))
    overlapping = {"rollout": PhaseSpec(50.0, 3), "train": PhaseSpec(50.0, 4), "slo": 1.2, "staleness": 1}
    world.tell(ev.JobSubmitted(job("A")))
    world.tell(ev.JobSubmitted(job("B", **overlapping)))
    assert world.machine.state.backlog == ["B"]
    (told,) = why_not_become(world.machine.state, six, ())
    assert told.startswith("job B: ")
    assert "pool gpu has 6 free nodes, 7 are needed" in told
    world.tell(ev.JobCancelled("B"))
    assert not why_not_become(world.machine.state, six, ())


def test_a_job_that_has_no_other_place_already_keeps_nothing_from_changing() -> None:
    """It may be found to take longer than it said, long after it was given the place that it has."""
    one = Pool("gpu", DEAR, max_nodes=1)
    world = World(Cluster(one, one))
    world.run(job("A", staleness=1, slo=1.8, train=PhaseSpec(30.0, 1)))
    dearer = replace(DEAR, usd_per_gpu_hour=6.0)
    world.tell(ev.JobProfiled("A", 1, 50.0, 30.0, 0.0, rollout_switch_s=(20.0, 0.0)))
    for pool in (Pool("gpu", dearer, max_nodes=1), Pool("gpu", dearer, max_nodes=2)):
        assert not why_not_become(world.machine.state, Cluster(pool, pool), ())
        become(world, Cluster(pool, pool))


def test_memory_may_be_less_as_far_as_jobs_leave_it_free() -> None:
    world = World()
    heavy = PhaseSpec(50.0, 1, resident_bytes=300 * GB)
    world.run(job("A", rollout=heavy), job("B", rollout=heavy))
    assert len(world.machine.state.groups) == 1
    told = refused(world, with_node(ELASTIC, "rollout", host_memory_bytes=500 * GB))
    node = world.record().placement.rollout[0]  # type: ignore[union-attr]
    assert told == f"jobs keep {600 * GB} bytes in the host memory of node {node}, which is to have {500 * GB}"
    become(world, with_node(ELASTIC, "rollout", host_memory_bytes=700 * GB))


def test_prices_count_from_the_change_on() -> None:
    world = World()
    world.run(job("A"))
    state = world.machine.state
    before, room = state.usd_per_hour(), state.groups.roomiest(1)
    become(world, with_node(ELASTIC, "train", usd_per_gpu_hour=10.0))
    assert isclose(state.usd_per_hour(), before + 8 * (10.0 - DEAR.usd_per_gpu_hour))
    assert state.groups.roomiest(1) == room
    (group,) = state.groups.values()
    assert group.free_usd(state.cluster) > group.free_usd(ELASTIC)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Cluster(Pool("a", CHEAP), Pool("b", DEAR)), "its pools were rollout, train and are a, b"),
        (Cluster(Pool("rollout", CHEAP), Pool("rollout", CHEAP)), "its pools were rollout, train and are rollout"),
        (with_pool(ELASTIC, "rollout", on_demand=False), "on_demand of pool rollout was true and is false"),
        (with_node(ELASTIC, "train", gpus=4), "gpus of a node of pool train were 8 and are 4"),
        (with_pool(ELASTIC, "train", max_nodes=0), "max_nodes"),
    ],
)
def test_what_jobs_were_placed_by_stays(other: Cluster, told: str) -> None:
    assert told in refused(World(), other)


def test_a_machine_from_an_image_is_in_the_cluster_of_that_time() -> None:
    world = World(ONE_OF_EACH)
    become(world, with_pool(ONE_OF_EACH, "rollout", max_nodes=3))
    saved = image(world.machine)
    assert image(restore(saved, ONE_OF_EACH, RollmuxPolicy())) == saved
    earlier = replace(saved, cluster=None)  # as it was written before clusters could change
    assert restore(earlier, ONE_OF_EACH, RollmuxPolicy()).state.cluster == ONE_OF_EACH
