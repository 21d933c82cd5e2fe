"""The batch script for Slurm, on this machine: its commands are stood in for, Ray and the controller are real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port
from tests.service.local.launching import be_init, nothing_left
from tests.service.ray.test_serve import PAIR, works

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "slurm" / "rollmux.sbatch"
LIMIT_S = 120.0

# One name a line, as of the real one for a list without brackets.
SCONTROL = '[ "$1 $2" = "show hostnames" ] && tr , "\\n" <<< "$3"'
# Where the options end the command begins. Nodes of Ray's on one machine must not share the ports of their agents.
SRUN = """
echo "$@" >> "$FAKE/srun.log"
echo $$ >> "$FAKE/steps"
while [[ $1 == --* ]]; do shift; done
export FAKE_RAY="--node-ip-address 127.0.77.3 $SECOND_PORTS"
exec "$@"
"""
# The real one tells the shell of each step.
SCANCEL = 'kill $(cat "$FAKE/steps")'
# Workers take any port: the 10,000 that Ray keeps for them are among those that the others are given.
RAY = """
exec "$REAL_RAY" "$@" --object-store-memory 80000000 --num-cpus 1 --min-worker-port 0 --max-worker-port 0 $FAKE_RAY
"""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left() as older:
        yield
        be_init(older)


def stood_in(folder: Path) -> dict[str, str]:
    """An environment in which Slurm seems to be."""
    folder.mkdir()
    for name, content in (("scontrol", SCONTROL), ("srun", SRUN), ("scancel", SCANCEL), ("ray", RAY)):
        (folder / name).write_text(f"#!/bin/bash\n{content}\n")
        (folder / name).chmod(0o755)
    (folder / "rollmux").symlink_to(Path(sys.executable).with_name("rollmux"))
    gcs, dashboard, port, *agents = (free_port() for _ in range(11))
    names = (
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ROLLMUX_", "SLURM_"))}
    return kept | {
        "PATH": f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FAKE": str(folder),
        "REAL_RAY": str(Path(sys.executable).with_name("ray")),
        "FAKE_RAY": " ".join(f"--{name} {number}" for name, number in zip(names, agents[:4], strict=True)),
        "SECOND_PORTS": " ".join(f"--{name} {number}" for name, number in zip(names, agents[4:], strict=True)),
        "RAY_PORT": str(gcs),
        "RAY_DASHBOARD_PORT": str(dashboard),
        "RAY_USAGE_STATS_ENABLED": "0",
        "ROLLMUX_PORT": str(port),
        "ROLLMUX_HOST": "127.0.77.2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "first",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "second",
    }


def until(holds: Callable[[], Any], script: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert script.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_the_batch_script_starts_ray_and_a_controller_and_leaves_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed here: pip install 'rollmux[ray]'")
    state, log = tmp_path / "state", tmp_path / "log"
    (tmp_path / "cluster.yaml").write_text(PAIR)
    command = ["bash", str(SCRIPT), str(tmp_path / "cluster.yaml"), str(state)]
    with log.open("wb") as said:
        script = subprocess.Popen(command, env=stood_in(tmp_path / "bin"), stdout=said, stderr=said)
    try:
        until(lambda: (state / "url").exists() and (state / "url").read_text(), script, log)
        headers = {"Authorization": f"Bearer {(state / 'admin.token').read_text().strip()}"}
        with httpx.Client(base_url=(state / "url").read_text(), headers=headers, timeout=30) as client:
            until(lambda: _all_ready(client), script, log)
            phase = {"nodes": 1, "duration_s": 0.3}
            job = {"name": "a", "slo": 3.0, "rollout": phase, "train": phase, "folder": str(tmp_path), "iterations": 3}
            answer = client.post("/v1/jobs", json={**job, "command": works(tmp_path, 3)})
            assert answer.is_success, answer.text
            until(lambda: client.get("/v1/jobs/a").json()["state"] == "ended", script, log)
            assert client.get("/v1/jobs/a").json()["reason"] == "finished"
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 0, log.read_text()[-3000:]
    finally:
        script.terminate()  # a second time is of no matter
        script.wait(60)
    step = (tmp_path / "bin" / "srun.log").read_text()
    assert step.startswith("--het-group=1 --nodes=1 --ntasks=1 --nodelist=second bash -c")
    assert step.count("--het-group") == 1
    assert step.endswith('{"train-0": 1}\n')


def _all_ready(client: httpx.Client) -> bool:
    try:
        nodes = client.get("/v1/cluster").json()["nodes"]
    except httpx.HTTPError:
        return False
    return len(nodes) == 2 and all(node["state"] == "ready" for node in nodes)
