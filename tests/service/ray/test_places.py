"""Where nodes and ranks are on a Ray cluster."""

import json
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.placed import Placement
from rollmux.protocol.node_means import Means, RayName
from rollmux.service.launcher import LaunchFailed
from rollmux.service.ray.gateway import RayNode, Wish
from rollmux.service.ray.places import Places
from rollmux.service.ray.wire import Part, RayPlan, Word, as_env, from_env, heard, wish_of
from tests.service.ray.launching import shell

POD = RayName("resource", "rollout")


def test_nodes_are_found_by_their_names_by_addresses_and_by_ids() -> None:
    there = [
        RayNode("x", "10.0.0.1", {"CPU": 8.0, "a": 1.0, "b": 1.0}),
        RayNode("y", "10.0.0.2"),
        RayNode("z", "10.0.0.3"),
    ]
    places = Places({"c": Means(ray=RayName("ip", "10.0.0.2")), "d": Means(ray=RayName("id", "z"))})
    assert places.find("abcde", there) == {"a": "x", "b": "x", "c": "y", "d": "z"}


def test_pods_that_have_all_the_same_resource_are_a_node_each_and_stay_it() -> None:
    names = ["rollout-0", "rollout-1", "rollout-2"]
    places = Places(dict.fromkeys(names, Means(ray=POD)))
    pods = [RayNode(f"pod{i}", f"10.0.0.{i}", {"rollout": 1.0}) for i in range(4)]
    assert places.find(names, pods[1:3]) == {"rollout-0": "pod1", "rollout-1": "pod2"}
    assert places.find(names, pods) == {"rollout-0": "pod1", "rollout-1": "pod2", "rollout-2": "pod0"}
    assert places.find(names, [pods[0], pods[2], pods[3]]) == {
        "rollout-0": "pod3",
        "rollout-1": "pod2",
        "rollout-2": "pod0",
    }


@given(
    units=st.lists(st.integers(0, 3), max_size=5),
    before=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6).map(str), max_size=6),
)
def test_no_unit_of_a_resource_is_two_nodes_and_none_is_left_that_is_wanted(
    units: list[int], before: dict[str, str]
) -> None:
    there = [RayNode(str(i), "", {"rollout": float(count)}) for i, count in enumerate(units)]
    places = Places(dict.fromkeys("abcdef", Means(ray=POD)), dict(before))
    found = places.find("abcdef", there)
    assert len(found) == min(6, sum(units))
    assert all(list(found.values()).count(str(i)) <= count for i, count in enumerate(units))
    assert places.find("abcdef", there) == found


@given(processes=st.integers(1, 12), rollout=st.integers(1, 4), train=st.integers(1, 4), machines=st.integers(1, 3))
def test_ranks_are_spread_over_the_nodes_in_their_order_each_once(
    processes: int, rollout: int, train: int, machines: int
) -> None:
    place = Placement(tuple(f"r{i}" for i in range(rollout)), tuple(f"t{i}" for i in range(train)))
    at = {node: f"m{i % machines}" for i, node in enumerate(place.all_nodes)}
    parts = Places({}).parts(place, processes, at)
    homes = {rank: node for part in parts for rank, node in part.ranks.items()}
    assert sorted(homes) == list(range(processes))
    assert sum(len(part.ranks) for part in parts) == processes
    assert all(at[node] == part.ray_node for part in parts for node in part.ranks.values())
    order = [place.all_nodes.index(homes[rank]) for rank in range(processes)]
    assert order == sorted(order)
    counts = [order.count(i) for i in range(len(place.all_nodes))]
    assert max(counts) - min(counts) <= 1


def test_a_part_has_what_the_jobs_nodes_on_its_machine_have() -> None:
    means = {
        "r0": Means((0, 1), ("0",), 100),
        "r1": Means((2,), ("1",), 200),
        "t0": Means((3,), (), 50),
    }
    place = Placement(("r0", "r1"), ("t0",))
    places, at = Places(means), {"r0": "x", "r1": "y", "t0": "x"}
    assert places.parts(place, 2, at) == (
        Part("x", {0: "r0"}, (0, 1, 3), {0: ("0",)}, 150),
        Part("y", {1: "r1"}, (2,), {1: ("1",)}, 200),
    )
    assert places.parts(place, 4, at) == (
        Part("x", {0: "r0", 1: "r0", 3: "t0"}, (0, 1, 3), {0: ("0",), 1: ("0",), 3: ()}, 50),
        Part("y", {2: "r1"}, (2,), {2: ("1",)}, 200),
    )
    assert places.parts(place, 1, at) == (Part("x", {0: "r0"}, (0, 1, 3), {0: ("0",)}, 150),)
    assert places.parts(place, 1, at, ranks_per_process=2) == (Part("x", {0: "r0"}, (0, 1, 3), {0: ("0",)}, 75),)


def test_a_plan_goes_through_the_environment() -> None:
    parts = (Part("x", {0: "r0", 1: "t0"}, (1,), {0: ("0",), 1: ()}, 5), Part("y", {2: "t1"}))
    plan = RayPlan("id", "logs", "jöb", 2, ("sh", "x" * 300_000), "", {"A": "ü"}, 3, 9, 5.0, parts)
    assert from_env(as_env(plan)) == plan


LONGEST_ARGUMENT = 2**17  # of Linux


def carried(wish: Wish) -> int:
    """As Ray gives it to a worker: one argument with all of it."""
    return len(f"--serialized-runtime-env-context={json.dumps({'env_vars': dict(wish.env)})}")


def test_ranks_below_each_process_find_how_many_they_are(tmp_path: Path) -> None:
    attempt = shell(tmp_path, "true", processes=2, ranks_per_process=8, env=(("ROLLMUX_PROCESSES", "9"),))
    env = from_env(wish_of(attempt, "id", "logs", (), 5.0).env).env
    assert (env["ROLLMUX_PROCESSES"], env["ROLLMUX_RANKS_PER_PROCESS"]) == ("2", "8")


def test_an_attempt_on_very_many_nodes_is_not_too_long_for_ray(tmp_path: Path) -> None:
    place = Placement(tuple(f"rollout-{i}" for i in range(800)), tuple(f"train-{i}" for i in range(224)))
    nodes = place.all_nodes
    means = {node: Means(tuple(range(128)), (str(i % 8),), 2**37) for i, node in enumerate(nodes)}
    at = {node: sha256(bytes([i // 8])).hexdigest() for i, node in enumerate(nodes)}
    parts = Places(means).parts(place, len(nodes), at)
    wish = wish_of(shell(tmp_path, "true", place=place, processes=len(nodes)), "id", "logs", parts, 5.0)
    assert from_env(wish.env).parts == parts
    assert carried(wish) < LONGEST_ARGUMENT


def test_what_is_longer_than_ray_can_carry_fails_at_once(tmp_path: Path) -> None:
    def asked(length: int) -> Wish:
        packs_badly = Random(7).randbytes(length // 2).hex()
        attempt = shell(tmp_path, "true", env=(("DATA", packs_badly),))
        return wish_of(attempt, "id", "logs", (Part("x", {0: "r0"}),), 5.0)

    assert 100_000 < carried(asked(150_000)) < LONGEST_ARGUMENT
    for length in (200_000, 2_000_000):
        with pytest.raises(LaunchFailed, match="job 'a': its command and environment are too long for Ray"):
            asked(length)


def test_words_are_heard_among_whatever_is_printed() -> None:
    assert heard("") == Word()
    printed = 'Running entrypoint\nrollmux: {"starting": true}\nwarning\nrollmux: {"up": true}\n'
    assert heard(printed) == Word(starting=True, up=True)
    assert heard(printed + 'rollmux: {"ended": "why", "clean": true}\n') == Word(True, True, "why", True)
    assert heard(printed + 'rollmux: {"ended": "wh') == Word(starting=True, up=True)
    assert heard('rollmux: words\nrollmux: ["up"]\nrollmux: {"up": 1}\nrollmux: {"new": 1}') == Word()
