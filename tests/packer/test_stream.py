"""Plans that free replicas: groups whole, every request moved once, nobody beyond its KV room, the same every time."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer.stream import (
    Move,
    Replica,
    RolloutSnapshot,
    Shrink,
    Stay,
    StreamPolicy,
    StreamSettings,
    Unfinished,
    Why,
)

IDS = tuple("abcdefgh")
SETTINGS = st.builds(
    StreamSettings,
    cap_tokens=st.integers(1, 120),
    share=st.floats(0.1, 0.9),
    quantile=st.floats(0.0, 1.0),
    support=st.integers(1, 5),
    room_part=st.floats(0.3, 1.0),
)


@st.composite
def rollouts(draw: st.DrawFn) -> RolloutSnapshot:
    """Replicas, some in groups; a group may bear the name of a replica outside it."""
    count = draw(st.integers(1, 8))
    replicas = tuple(
        Replica(
            id_,
            draw(st.sampled_from((1, 2, 4))),
            draw(st.integers(0, 600)),
            draw(st.sampled_from((None, "a", "x", "y"))),
        )
        for id_ in IDS[:count]
    )
    unfinished = tuple(
        Unfinished(f"r{n}", draw(st.sampled_from(IDS[:count])), draw(st.integers(0, 20)), draw(st.integers(0, 60)))
        for n in range(draw(st.integers(0, 14)))
    )
    known = tuple(draw(st.lists(st.integers(1, 100), max_size=20)))
    return RolloutSnapshot(draw(st.integers(20, 50)), 100, replicas, unfinished, known)


@given(settings=SETTINGS, rollout=rollouts())
def test_replicas_stay_or_are_freed_and_groups_are_never_split(
    settings: StreamSettings, rollout: RolloutSnapshot
) -> None:
    plan = StreamPolicy(settings).decide(rollout)
    if not isinstance(plan, Shrink):
        return
    assert plan.keep
    assert plan.free
    assert sorted(plan.keep + plan.free) == sorted(replica.id for replica in rollout.replicas)
    for group in {replica.group for replica in rollout.replicas} - {None}:
        members = {replica.id for replica in rollout.replicas if replica.group == group}
        assert members <= set(plan.free) or members.isdisjoint(plan.free)
    freed = sum(replica.gpus for replica in rollout.replicas if replica.id in plan.free)
    assert freed <= settings.share * sum(replica.gpus for replica in rollout.replicas) + 1e-6


@given(settings=SETTINGS, rollout=rollouts())
def test_each_request_of_a_freed_replica_moves_once_to_one_that_stays(
    settings: StreamSettings, rollout: RolloutSnapshot
) -> None:
    plan = StreamPolicy(settings).decide(rollout)
    if not isinstance(plan, Shrink):
        return
    leaving = {request.id: request for request in rollout.unfinished if request.replica in plan.free}
    assert Counter(move.request for move in plan.moves) == Counter(list(leaving))
    assert all(move.source == leaving[move.request].replica for move in plan.moves)
    assert {move.target for move in plan.moves} <= set(plan.keep)
    assert plan.recomputed_tokens == sum(request.prompt_tokens + request.tokens for request in leaving.values())


@given(settings=SETTINGS, rollout=rollouts())
def test_no_replica_that_stays_is_planned_beyond_its_room(settings: StreamSettings, rollout: RolloutSnapshot) -> None:
    """With every length at its projection, a token at a time."""
    plan = StreamPolicy(settings).decide(rollout)
    if not isinstance(plan, Shrink):
        return
    places = {request.id: request.replica for request in rollout.unfinished}
    places.update({move.request: move.target for move in plan.moves})
    peaks = dict(plan.peaks)
    assert tuple(peaks) == plan.keep
    for replica in rollout.replicas:
        there = [request for request in rollout.unfinished if places[request.id] == replica.id]
        if replica.id in peaks:
            assert peaks[replica.id] == grown(settings, rollout, there)
            assert peaks[replica.id] <= replica.kv_room_tokens
        else:
            assert not there


def grown(settings: StreamSettings, rollout: RolloutSnapshot, there: list[Unfinished]) -> int:
    policy = StreamPolicy(settings)
    final = policy.final_lengths(rollout)
    return max(
        sum(request.held + step for request in there if final[request.id] - request.tokens >= step)
        for step in range(121)
    )


@given(settings=SETTINGS, rollout=rollouts(), data=st.data())
def test_a_plan_does_not_depend_on_the_order_of_what_it_is_told(
    settings: StreamSettings, rollout: RolloutSnapshot, data: st.DataObject
) -> None:
    other = RolloutSnapshot(
        rollout.done,
        rollout.total,
        tuple(data.draw(st.permutations(rollout.replicas))),
        tuple(data.draw(st.permutations(rollout.unfinished))),
        tuple(data.draw(st.permutations(rollout.known_lengths))),
    )
    policy = StreamPolicy(settings)
    assert policy.decide(other) == policy.decide(rollout)


@given(
    total=st.integers(1, 2000),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=30),
    first=st.integers(1, 50),
    every=st.integers(1, 20),
)
def test_every_check_point_is_due_once_however_many_responses_end_together(
    total: int, cuts: list[float], first: int, every: int
) -> None:
    policy = StreamPolicy(StreamSettings(100, first=first / 100, last=0.5, every=every / 100))
    counts = sorted({0, *(int(cut * total) for cut in cuts), total})
    points = policy.check_points(total)
    assert all(100 * point >= first * total for point in points)
    assert all(2 * (point - 1) < total for point in points)
    assert list(points) == sorted(points)
    due = [done for before, done in pairwise(counts) if policy.due(before, done, total)]
    expected = [
        done
        for before, done in pairwise(counts)
        if {point for point in points if before < point <= done} and done <= -(-total // 2)
    ]
    assert due == expected


def test_the_published_check_points_are_seven() -> None:
    policy = StreamPolicy(StreamSettings(cap_tokens=16_384))
    assert policy.check_points(1024) == (205, 256, 308, 359, 410, 461, 512)
    assert [done for done in range(1, 1025) if policy.due(done - 1, done, 1024)] == list(policy.check_points(1024))


def node(id_: str, node_id: str, room: int = 1000) -> Replica:
    return Replica(id_, gpus=4, kv_room_tokens=room, group=node_id)


FOUR = (node("a", "n1"), node("b", "n1"), node("c", "n2"), node("d", "n2"))
POLICY = StreamPolicy(StreamSettings(cap_tokens=100, support=1))


def rollout(*unfinished: tuple[str, str, int], done: int = 40, replicas: tuple[Replica, ...] = FOUR) -> RolloutSnapshot:
    requests = tuple(Unfinished(id_, replica, 10, tokens) for id_, replica, tokens in unfinished)
    return RolloutSnapshot(done, 100, replicas, requests, (50,) * 20)


def test_the_node_with_the_least_to_recompute_is_freed_and_its_requests_are_shared_out_by_kv() -> None:
    plan = POLICY.decide(rollout(("r1", "a", 5), ("r2", "b", 9), ("r3", "c", 40), ("r4", "c", 30), ("r5", "d", 60)))
    assert plan == Shrink(
        keep=("c", "d"),
        free=("a", "b"),
        moves=(Move("r1", "a", "d"), Move("r2", "b", "c")),
        peaks=(("c", 139), ("d", 165)),
        recomputed_tokens=34,
    )


def test_equal_requests_go_by_their_names() -> None:
    one, two = ("r1", "a", 5), ("r2", "b", 5)
    there = (("r3", "c", 90), ("r4", "d", 80))
    plans = [POLICY.decide(rollout(*pair, *there)) for pair in ((one, two), (two, one))]
    assert plans[0] == plans[1]
    assert isinstance(plans[0], Shrink)
    assert plans[0].moves == (Move("r1", "a", "c"), Move("r2", "b", "d"))


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (rollout(done=19), Why.TOO_EARLY),
        (rollout(done=51), Why.TOO_LATE),
        (rollout(replicas=FOUR[:2]), Why.NOTHING_TO_FREE),
        (rollout(replicas=()), Why.NOTHING_TO_FREE),
        (rollout(("r1", "a", 5), ("r2", "b", 6), replicas=(node("a", "x", 200), node("b", "y", 120))), Why.NO_ROOM),
    ],
)
def test_a_rollout_that_keeps_its_gpus_says_why(snapshot: RolloutSnapshot, why: Why) -> None:
    assert POLICY.decide(snapshot) == Stay(why)


def test_lengths_of_too_few_are_not_believed() -> None:
    replicas = (node("a", "x", 100), node("b", "y", 100))
    snapshot = rollout(("r1", "a", 40), replicas=replicas)
    believed, doubted = (StreamPolicy(StreamSettings(cap_tokens=100, support=n)) for n in (20, 21))
    assert isinstance(believed.decide(snapshot), Shrink)
    assert doubted.decide(snapshot) == Stay(Why.NO_ROOM), "the cap and its prompt are more than the room"


def test_settings_and_snapshots_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as settings:
        StreamSettings(0, first=0.5, last=0.4, every=0.0, share=1.0, quantile=2.0, support=0, room_part=0.0)
    assert len(settings.value.problems) == 7
    with pytest.raises(InvalidSpec, match="first") as first:
        StreamSettings(1, first=-1.0)
    assert len(first.value.problems) == 1
    with pytest.raises(InvalidSpec) as snapshot:
        RolloutSnapshot(
            done=3,
            total=2,
            replicas=(Replica("a", 0, -1), Replica("a", 1, 1)),
            unfinished=(Unfinished("r", "a", -1, -1), Unfinished("r", "b", 0, 0)),
        )
    assert [problem.path for problem in snapshot.value.problems] == [
        "rollout.done",
        "rollout.replicas[1].id",
        "rollout.unfinished[1].id",
        "rollout.replicas[0].gpus",
        "rollout.replicas[0].kv_room_tokens",
        "rollout.unfinished[0].prompt_tokens",
        "rollout.unfinished[0].tokens",
        "rollout.unfinished[1].replica",
    ]
    with pytest.raises(InvalidSpec, match="total"):
        RolloutSnapshot(0, 0, (), ())
