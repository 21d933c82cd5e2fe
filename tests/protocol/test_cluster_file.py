"""Clusters in files: what they mean, and that everything wrong with them is said at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.mux.hardware import GB, PAPER_CLUSTER
from rollmux.protocol.cluster_file import CLUSTER_KEYS, NODE_KEYS, POOL_KEYS, read_cluster, read_cluster_file

EXAMPLES = Path(__file__).parents[2] / "examples"

NODE = {"name": "n", "gpus": 8, "usd_per_gpu_hour": 2.0, "hbm_gb": 80, "host_memory_gb": 1000}
POOL: dict[str, Any] = {"node": NODE}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(tmp_path: Path, content: Any) -> dict[str, str]:
    """What is wrong with this content, by path. JSON is YAML too; a text is taken as it is."""
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(InvalidSpec) as refused:
        read_cluster(written(tmp_path, text))
    return {problem.path: str(problem) for problem in refused.value.problems}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("cluster*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    cluster = read_cluster(path)
    assert all(pool.on_demand or pool.max_nodes for pool in cluster.pools)


def test_there_are_examples_of_rented_and_of_owned_machines() -> None:
    assert read_cluster(EXAMPLES / "cluster.yaml") == PAPER_CLUSTER
    fixed = read_cluster(EXAMPLES / "cluster-fixed.yaml")
    assert [(pool.on_demand, pool.max_nodes) for pool in fixed.pools] == [(False, 16), (False, 12)]


def test_a_shared_pool_serves_both_kinds_of_phase(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, json.dumps({"shared": {**POOL, "max_nodes": 4}})))
    assert cluster.shared
    assert cluster.rollout == cluster.train
    assert (cluster.rollout.on_demand, cluster.rollout.max_nodes) == (True, 4)
    assert "shared.node.gpus" in problems(tmp_path, {"shared": {"node": {**NODE, "gpus": 0}}})


def test_measures_are_turned_into_bytes(tmp_path: Path) -> None:
    measures = {"host_reserve_gb": 0.5, "hbm_tb_per_s": 3.35}
    node = read_cluster(written(tmp_path, json.dumps({"shared": {"node": {**NODE, **measures}}}))).rollout.node_type
    assert (node.hbm_bytes_per_gpu, node.host_memory_bytes, node.host_reserve_bytes) == (80 * GB, 1000 * GB, GB // 2)
    assert node.hbm_bytes_per_s == 3.35e12


def test_what_files_of_before_say_that_nothing_uses_is_read_over_and_named(tmp_path: Path) -> None:
    unused = {"host_link_gb_per_s": 64, "network_gbps": "twenty"}
    content = {"rollout": {"node": {**NODE, **unused}}, "train": POOL}
    found = read_cluster_file(written(tmp_path, json.dumps(content)))
    assert found.unused == ("rollout.node.host_link_gb_per_s", "rollout.node.network_gbps")
    assert found.cluster == read_cluster(written(tmp_path, json.dumps({"rollout": POOL, "train": POOL})))
    assert "network_gbps" not in problems(tmp_path, {"shared": {"node": {**NODE, "hbm": 1}}})["shared.node.hbm"]


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    found = problems(tmp_path, {"rolout": POOL, "train": {"node": {**NODE, "gpu": 1}, "max_node": 3}})
    assert "the nearest is rollout" in found["rolout"]
    assert "the nearest is gpus" in found["train.node.gpu"]
    assert "the nearest is max_nodes" in found["train.max_node"]
    assert "add rollout" in found["the file"]
    assert "train" not in found["the file"].partition("add")[2]


def test_every_problem_is_reported_at_once_in_the_words_of_the_file(tmp_path: Path) -> None:
    bad = {
        "name": " x",
        "gpus": 0,
        "usd_per_gpu_hour": "2",
        "hbm_gb": "80",
        "host_memory_gb": 10,
        "host_reserve_gb": 20,
    }
    content = {"rollout": {"node": {**bad, "hbm_tb_per_s": True}, "on_demand": False}, "train": {"on_demand": "yes"}}
    found = problems(tmp_path, content)
    names = [*bad, "hbm_tb_per_s"]
    names.remove("host_memory_gb")
    assert set(found) == {f"rollout.node.{name}" for name in names} | {"rollout.max_nodes", "train", "train.on_demand"}
    assert "below host_memory_gb = 10" in found["rollout.node.host_reserve_gb"]
    assert "add node" in found["train"]
    assert not any("bytes" in text for text in found.values())


def test_machines_that_are_there_are_counted(tmp_path: Path) -> None:
    found = problems(tmp_path, {"rollout": {**POOL, "on_demand": False}, "train": {**POOL, "max_nodes": 0}})
    assert "say how many machines" in found["rollout.max_nodes"]
    assert "from 1" in found["train.max_nodes"]


def test_a_node_says_what_it_must(tmp_path: Path) -> None:
    found = problems(tmp_path, {"shared": {"node": {"name": "n", "gpus": 8}}})
    assert list(found) == ["shared.node"]
    assert all(name in found["shared.node"] for name in ("usd_per_gpu_hour", "hbm_gb", "host_memory_gb"))


def test_one_pool_for_both_goes_without_the_other_two(tmp_path: Path) -> None:
    assert set(problems(tmp_path, {"shared": POOL, "train": POOL})) == {"train"}
    assert "add rollout (" in problems(tmp_path, "{}")["the file"]


@pytest.mark.parametrize("value", [".nan", ".inf", "-1", "1e400", "10000000", "'20'", "[1]", "null", "{a: 1}"])
def test_a_measure_is_a_number_of_sensible_size(tmp_path: Path, value: str) -> None:
    text = json.dumps({"shared": {"node": {**NODE, "hbm_gb": "VALUE"}}}).replace('"VALUE"', value)
    assert list(problems(tmp_path, text)) == ["shared.node.hbm_gb"]


@pytest.mark.parametrize("text", ["a: [", "rollout: 1\nrollout: 2", "x: 2019-99-99", "[" * 3000, "!!python/name:os.x"])
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    assert set(problems(tmp_path, text)) == {"content"}


def test_where_a_file_is_no_yaml_is_told_whole(tmp_path: Path) -> None:
    told = problems(tmp_path, "shared:\n  node: [a\n")["content"]
    assert "line 3, column 1: expected ',' or ']', but got '<stream end>'" in told.replace("\\", "")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSpec, match="UTF-8"):
        read_cluster(path)


@pytest.mark.parametrize("text", ["", "3", "- a", "text"])
def test_a_file_is_made_of_keys_and_values(tmp_path: Path, text: str) -> None:
    assert "keys and values" in problems(tmp_path, text)["the file"]


def test_a_file_that_holds_itself_is_refused(tmp_path: Path) -> None:
    assert "shared.node.shared" in problems(tmp_path, "&a {shared: {node: *a}}")


def test_every_key_says_what_it_is_for() -> None:
    assert all(meaning for known in (CLUSTER_KEYS, POOL_KEYS) for meaning in known.values())
    assert all(key.meaning for key in NODE_KEYS.values())
