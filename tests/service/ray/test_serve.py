"""`rollmux serve --launcher ray`: real jobs share the nodes of a real Ray cluster by the controller's word."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.service.commanded import Commanded, commanded
from tests.service.ray.real import RealRay

NODE = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 100}"
PAIR = f"""
rollout: {{on_demand: false, max_nodes: 1, node: {NODE}}}
train: {{on_demand: false, max_nodes: 1, node: {NODE}}}
"""
SPARE = f"""
rollout: {{on_demand: false, max_nodes: 2, node: {NODE}}}
train: {{on_demand: false, max_nodes: 2, node: {NODE}}}
"""
WORKS = """
import json, os, time, rollmux
with rollmux.connect() as mux:
    for step in mux.steps(STEPS):
        for kind in ("rollout", "train"):
            with mux.phase(kind):
                began = time.monotonic()
                time.sleep(0.3)
                print(json.dumps([kind, step, began, time.monotonic()]), flush=True)
"""
# The loop is in an actor, as veRL's is and SkyRL's.
IN_AN_ACTOR = f"""
import json, os, ray

@ray.remote(num_cpus=0)
class Runner:
    def run(self):
        exec({WORKS!r})

told = {{"env_vars": {{name: value for name, value in os.environ.items() if name.startswith("ROLLMUX_")}}}}
ray.init(**TELLS, log_to_driver=False)
ray.get(Runner.remote().run.remote())
"""


def works(folder: Path, steps: int) -> list[str]:
    (folder / "works.py").write_text(WORKS.replace("STEPS", str(steps)))
    return [sys.executable, "works.py"]


def phases(there: Commanded, name: str) -> list[tuple[str, int, float, float]]:
    """Without what a job says where its controller is away for long, as on a busy machine."""
    own = [line for line in there.printed(name) if not line.startswith("rollmux: ")]
    return [(kind, step, began, ended) for kind, step, began, ended in map(json.loads, own)]


@pytest.mark.slow
def test_two_jobs_weave_by_leases_while_their_controller_is_killed_and_comes_back(
    cluster: RealRay, tmp_path: Path
) -> None:
    steps = 8
    with commanded(tmp_path / "controller", PAIR, "--launcher", "ray", "--ray-address", cluster.url) as there:
        for name in "ab":
            there.submit(name, works(tmp_path, steps), iterations=steps)
        there.until(lambda: all(len(there.printed(name)) >= 2 for name in "ab"))
        there.kill()
        there.start()
        assert {there.until_ended(name) for name in "ab"} == {"finished"}
        for name in "ab":
            assert [(kind, step) for kind, step, *_ in phases(there, name)] == [
                (kind, step) for step in range(steps) for kind in ("rollout", "train")
            ]
        for kind in ("rollout", "train"):
            spans = sorted((began, ended) for name in "ab" for of, _, began, ended in phases(there, name) if of == kind)
            assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans


@pytest.mark.slow
@pytest.mark.parametrize("tells", ["{}", "{'runtime_env': told}"], ids=["tells_nothing", "tells_of_the_controller"])
def test_a_loop_in_an_actor_has_the_jobs_leases(cluster: RealRay, tmp_path: Path, tells: str) -> None:
    (tmp_path / "driver.py").write_text(IN_AN_ACTOR.replace("TELLS", tells).replace("STEPS", "2"))
    with commanded(tmp_path / "controller", PAIR, "--launcher", "ray", "--ray-address", cluster.url) as there:
        there.submit("a", [sys.executable, "driver.py"], iterations=2, max_attempts=1)
        assert there.until_ended("a") == "finished"
        assert there.view("a")["synced"] == 2


@pytest.mark.slow
def test_a_cancelled_job_is_gone_and_one_that_fails_is_tried_again(cluster: RealRay, tmp_path: Path) -> None:
    with commanded(tmp_path / "controller", PAIR, "--launcher", "ray", "--ray-address", cluster.url) as there:
        there.submit("long", ["sh", "-c", "echo $$ > pid; echo up; exec sleep 600"])
        there.until(lambda: there.printed("long") == ["up"])
        there.post("/v1/jobs/long/cancel")
        assert there.until_ended("long") == "cancelled"
        assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
        there.submit("bad", ["sh", "-c", "echo oh; exit 3"], max_attempts=2)
        why = there.until_ended("bad")
        assert why == "failed 2 times, at last: rank 0 ended with exit code 3; its last line: oh"


@pytest.mark.slow
def test_a_job_whose_ray_node_is_lost_goes_on_elsewhere(cluster: RealRay, tmp_path: Path) -> None:
    with commanded(tmp_path / "controller", SPARE, "--launcher", "ray", "--ray-address", cluster.url) as there:
        there.submit(
            "a", ["sh", "-c", "echo $ROLLMUX_NODE $ROLLMUX_ATTEMPT; while [ ! -e enough ]; do sleep 0.1; done"]
        )
        there.until(lambda: bool(there.printed("a")))
        assert there.printed("a") == ["rollout-0 1"]
        cluster.remove(cluster.nodes["rollout-0"])
        try:
            there.until(lambda: there.printed("a") == ["rollout-1 2"])
            (tmp_path / "enough").touch()
            assert there.until_ended("a") == "finished"
        finally:
            cluster.add("rollout-0")


def test_what_cant_be_is_refused_before_a_controller_starts(tmp_path: Path) -> None:
    def said(cluster: str, *options: str) -> str:
        (tmp_path / "cluster.yaml").write_text(cluster)
        where = ["--cluster", str(tmp_path / "cluster.yaml"), "--folder", str(tmp_path / "state"), "--port", "0"]
        result = CliRunner().invoke(app, ["serve", *where, *options])
        assert result.exit_code == 2
        return " ".join(result.output.replace("│", " ").split())

    assert "on_demand: true for shared" in said(f"shared: {{node: {NODE}}}", "--launcher", "ray")
    assert "write http://HOST:8265" in said(PAIR, "--launcher", "ray", "--ray-address", "10.0.0.1:6379")
    assert "process" in said(PAIR, "--launcher", "slurm")
