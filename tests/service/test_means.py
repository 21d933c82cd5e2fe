"""What the cluster file says that nodes have, real processes see, and no more."""

import os
import sys
from pathlib import Path

import pytest

from tests.service.commanded import commanded

NODE = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 10}"
CORES = sorted(os.sched_getaffinity(0))
LOOK = """
import os, resource
memory = resource.getrlimit(resource.RLIMIT_DATA)[0]
print(os.sched_getaffinity(0), os.environ.get("CUDA_VISIBLE_DEVICES", "all"), memory)
"""


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_processes_see_the_cores_the_devices_and_the_memory_of_their_nodes(tmp_path: Path) -> None:
    cluster = f"""
rollout:
  node: {NODE}
  nodes:
    - {{cores: "{CORES[0]}", devices: [0, 1], memory_gb: 1.5}}
train:
  node: {NODE}
  nodes:
    - {{cores: [{CORES[1]}], devices: [GPU-5], memory_gb: 0.5}}
"""
    with commanded(tmp_path / "controller", cluster) as there:
        (tmp_path / "look.py").write_text(LOOK)
        cores = {CORES[0], CORES[1]}
        for name, processes, each in (("a", 2, 1), ("b", 1, 1), ("c", 1, 4)):
            there.submit(name, [sys.executable, "look.py"], processes=processes, ranks_per_process=each)
            assert there.until_ended(name) == "finished"
        assert there.printed("a") == [f"[0] {cores} 0,1 1000000000", f"[1] {cores} GPU-5 1000000000"]
        assert there.printed("b") == [f"{cores} 0,1,GPU-5 2000000000"]
        assert there.printed("c") == [f"{cores} 0,1,GPU-5 500000000"]


def test_processes_see_all_of_the_machine_where_the_file_says_nothing(tmp_path: Path) -> None:
    pool = f"{{on_demand: false, max_nodes: 1, node: {NODE}}}"
    with commanded(tmp_path / "controller", f"rollout: {pool}\ntrain: {pool}\n") as there:
        (tmp_path / "look.py").write_text(LOOK)
        there.submit("a", [sys.executable, "look.py"], env={"CUDA_VISIBLE_DEVICES": "7"})
        assert there.until_ended("a") == "finished"
        assert there.printed("a") == [f"{set(CORES)} 7 -1"]


def test_each_process_of_the_example_for_gpus_sees_the_one_of_its_node(tmp_path: Path) -> None:
    cluster = (Path(__file__).parents[2] / "examples" / "spanning" / "gpus.yaml").read_text()
    with commanded(tmp_path / "controller", cluster) as there:
        (tmp_path / "look.py").write_text(LOOK)
        two = {"nodes": 2, "duration_s": 0.2}
        there.submit("a", [sys.executable, "look.py"], processes=3, rollout=two)
        assert there.until_ended("a") == "finished"
        assert there.printed("a") == [f"[{gpu}] {set(CORES)} {gpu} -1" for gpu in range(3)]
