"""A cluster that is given more nodes, and fewer, by its file and a new start of the controller, while jobs run."""

import subprocess
import sys
from pathlib import Path

from tests.service.commanded import ROOT, Commanded, commanded

NODE = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 10}"
HOLDS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n"


def cluster(nodes: int) -> str:
    return "".join(f"{role}: {{on_demand: false, max_nodes: {nodes}, node: {NODE}}}\n" for role in ("rollout", "train"))


def refused(there: Commanded) -> str:
    told = subprocess.run(there.command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    return " ".join(told.stderr.replace("│", " ").split())


def test_a_job_that_waits_for_nodes_runs_once_the_cluster_has_more_and_they_can_be_taken_out_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "holds.py").write_text(HOLDS)
    with commanded(tmp_path / "controller", cluster(1)) as there:
        file = there.folder / "cluster.yaml"
        for name in "ab":
            there.submit(name, [sys.executable, "holds.py"], slo=1.0)
        there.until(lambda: there.view("a")["state"] == "running" and there.view("b")["state"] == "queued")
        there.end()
        file.write_text(cluster(2))
        there.start()
        there.until(lambda: there.view("b")["state"] == "running")
        assert (there.view("a")["state"], there.view("a")["attempt"]) == ("running", 1)

        there.end()
        file.write_text(cluster(1))
        words = refused(there)
        assert "node rollout-1, which it is to be without, is shared by b: drain it" in words
        file.write_text(cluster(2))
        there.start()
        (tmp_path / "go").touch()
        for name in "ab":
            assert there.until_ended(name) == "finished"
        there.end()
        file.write_text(cluster(1))
        there.start()
        assert there.nodes() == ["rollout-0", "train-0"]


def listed(*devices: int) -> str:
    nodes = "".join(f"    - {{devices: [{each}]}}\n" for each in devices)
    return f"rollout:\n  node: {NODE}\n  nodes:\n{nodes}train:\n  node: {NODE}\n  nodes:\n    - {{devices: [9]}}\n"


def test_a_node_that_jobs_share_keeps_its_gpus_and_another_may_get_others(tmp_path: Path) -> None:
    (tmp_path / "holds.py").write_text(HOLDS)
    with commanded(tmp_path / "controller", listed(0, 1)) as there:
        file = there.folder / "cluster.yaml"
        there.submit("a", [sys.executable, "holds.py"])
        there.until(lambda: there.view("a")["state"] == "running")
        (on,) = there.view("a")["rollout_nodes"]
        assert on == "rollout-0"
        there.end()
        file.write_text(listed(1))
        assert "devices of node rollout-0, which is shared by a, were 0 and are 1: leave entries" in refused(there)
        kept = (there.folder / "nodes.json").read_text()
        (there.folder / "nodes.json").write_text(kept[:-9])
        assert "says what nodes have of their machines, is damaged: put back" in refused(there)
        (there.folder / "nodes.json").write_text(kept)
        file.write_text(listed(0, 7))
        there.start()
        assert (there.view("a")["state"], there.view("a")["attempt"]) == ("running", 1)
        (tmp_path / "go").touch()
        assert there.until_ended("a") == "finished"
        there.end()
        file.write_text(listed(1))
        there.start()
        assert there.nodes() == ["rollout-0", "train-0"]
