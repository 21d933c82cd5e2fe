"""What a cluster file says that its nodes have: what it means, and all that can be wrong with it at once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.mux.hardware import GB
from rollmux.protocol.cluster_file import read_cluster_file
from rollmux.protocol.node_means import MEANS_KEYS, Means, RayName

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = {"name": "n", "gpus": 8, "usd_per_gpu_hour": 2.0, "hbm_gb": 80, "host_memory_gb": 1000}
RAY_ID = "5b334a944ffd4938221ee9f4712250c78b3037540b4b3f8398ac94dc"


def written(folder: Path, nodes: Any, **more: Any) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(json.dumps({"shared": {"node": NODE, "nodes": nodes, **more}}))
    return path


def problems(folder: Path, nodes: Any, **more: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        read_cluster_file(written(folder, nodes, **more))
    return {problem.path: str(problem) for problem in refused.value.problems}


def test_nodes_are_named_after_their_pool_in_their_order_and_are_there(tmp_path: Path) -> None:
    nodes = [{"cores": "0-2,8", "devices": [0, "GPU-1"], "memory_gb": 1.5}, {"cores": 4, "devices": [], "memory_gb": 2}]
    found = read_cluster_file(written(tmp_path, nodes))
    assert found.means == {
        "shared-0": Means((0, 1, 2, 8), ("0", "GPU-1"), 3 * GB // 2),
        "shared-1": Means((4,), (), 2 * GB),
    }
    pool = found.cluster.rollout
    assert (pool.on_demand, pool.max_nodes) == (False, 2)


def test_a_file_that_says_nothing_of_its_nodes_bounds_nothing() -> None:
    assert read_cluster_file(EXAMPLES / "cluster.yaml").means == {}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"ray_resource": "h20-a"}, RayName("resource", "h20-a")),
        ({"ray_ip": "10.0.0.5"}, RayName("ip", "10.0.0.5")),
        ({"ray_ip": "fd00::5"}, RayName("ip", "fd00::5")),
        ({"ray_id": RAY_ID}, RayName("id", RAY_ID)),
        ({}, None),
    ],
)
def test_a_node_may_say_which_of_rays_it_is(said: dict[str, str], name: RayName | None, tmp_path: Path) -> None:
    assert read_cluster_file(written(tmp_path, [said])).means["shared-0"].ray == name


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ({"cores": "4-2"}, "cores"),
        ({"cores": "0-3,9-8"}, "cores"),
        ({"cores": "0-3,2"}, "cores"),
        ({"cores": "0-"}, "cores"),
        ({"cores": []}, "cores"),
        ({"cores": [0, True]}, "cores"),
        ({"cores": [-1]}, "cores"),
        ({"cores": "0-99999"}, "cores"),
        ({"cores": None}, "cores"),
        ({"devices": 3}, "devices"),
        ({"devices": [0, "0"]}, "devices"),
        ({"devices": ["0,1"]}, "devices"),
        ({"memory_gb": 0}, "memory_gb"),
        ({"memory_gb": "1"}, "memory_gb"),
        ({"memory_gb": float("nan")}, "memory_gb"),
        ({"ray_ip": "10.0.0"}, "ray_ip"),
        ({"ray_id": "abc"}, "ray_id"),
        ({"ray_resource": ""}, "ray_resource"),
        ({"ray_ip": "10.0.0.5", "ray_resource": "a"}, "ray_ip"),
        ({"core": 1}, "core"),
    ],
)
def test_what_a_node_cant_have_is_refused_where_it_stands(node: dict[str, Any], path: str, tmp_path: Path) -> None:
    assert list(problems(tmp_path, [node])) == [f"shared.nodes[0].{path}"]


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    nodes = [{"cores": "x", "devises": []}, {"cores": 1, "memory_gb": -1}, 5]
    found = problems(tmp_path, nodes, max_nodes=7, on_demand=True)
    assert set(found) >= {
        "shared.nodes[0].cores",
        "shared.nodes[0].devises",
        "shared.nodes[1].memory_gb",
        "shared.nodes[2]",
        "shared.max_nodes",
        "shared.on_demand",
    }
    assert "the nearest is devices" in found["shared.nodes[0].devises"]


def test_cores_devices_and_memory_are_given_for_all_nodes_or_for_none(tmp_path: Path) -> None:
    nodes = [{"cores": 0, "devices": [0], "memory_gb": 1}, {}]
    assert set(problems(tmp_path, nodes)) == {f"shared.nodes[1].{key}" for key in ("cores", "devices", "memory_gb")}


@pytest.mark.parametrize(
    ("machines", "fits"),
    [
        (({}, {}), False),
        (({"ray_ip": "10.0.0.5"}, {"ray_ip": "10.0.0.5"}), False),
        (({"ray_ip": "10.0.0.5"}, {"ray_ip": "10.0.0.6"}), True),
        (({"ray_resource": "a"}, {"ray_resource": "a"}), True),
    ],
    ids=["this machine", "one address", "two addresses", "machines that nobody knows yet"],
)
def test_two_nodes_of_one_machine_share_no_core_and_no_device(
    machines: tuple[dict[str, str], dict[str, str]], fits: bool, tmp_path: Path
) -> None:
    nodes = [{"cores": "0-3", "devices": [0], **machines[0]}, {"cores": "3-4", "devices": [0], **machines[1]}]
    if fits:
        assert len(read_cluster_file(written(tmp_path, nodes)).means) == 2
    else:
        assert set(problems(tmp_path, nodes)) == {"shared.nodes[1].cores", "shared.nodes[1].devices"}


@pytest.mark.parametrize("nodes", [[], "two", 2, None])
def test_nodes_are_a_list_of_some(nodes: Any, tmp_path: Path) -> None:
    assert "shared.nodes" in problems(tmp_path, nodes)


def test_the_cluster_files_of_the_page_on_ray_can_be_read(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "ray.md").read_text(encoding="utf-8")
    files = [block for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "workerGroup" not in block]
    assert len(files) == 2
    for text in files:
        (tmp_path / "cluster.yaml").write_text(text)
        assert not read_cluster_file(tmp_path / "cluster.yaml").cluster.rollout.on_demand


def test_every_key_is_explained() -> None:
    assert all(len(meaning) > 10 for meaning in MEANS_KEYS.values())
