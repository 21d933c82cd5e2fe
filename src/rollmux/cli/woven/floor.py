"""A controller of two nodes on this machine, in a process of its own, for as long as a run lasts.

Invariant: when the block ends, controller and jobs are gone, however it ends.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rollmux.cli.remote import NoController, Remote, remote
from rollmux.errors import RollmuxError
from rollmux.mux.transitions import Job
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, Health

ROLLMUX = (sys.executable, "-c", "from rollmux.cli import app; app()")
CLUSTER = """\
# Two nodes: one for rollouts and one for training. Each is meant to be a core of this machine.
rollout:
  on_demand: false
  max_nodes: 1
  node: {name: core, gpus: 1, usd_per_gpu_hour: 1.85, hbm_gb: 1, host_memory_gb: 4}

train:
  on_demand: false
  max_nodes: 1
  node: {name: core, gpus: 1, usd_per_gpu_hour: 5.28, hbm_gb: 1, host_memory_gb: 4}
"""
START_S, AGAIN_S, END_S = 60.0, 0.1, 30.0


class NotStarted(RollmuxError):
    """The controller ended, or took too long to be ready."""


@contextmanager
def controller(folder: Path) -> Iterator[Remote]:
    """One that is ready; its files, its log and its jobs' logs are in the folder."""
    folder.mkdir(parents=True, mode=0o700)
    cluster = folder / "cluster.yaml"
    cluster.write_text(CLUSTER, encoding="utf-8")
    words = [*ROLLMUX, "serve", "--cluster", str(cluster), "--folder", str(folder), "--port", "0"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=env)
    try:
        there = _ready(folder, process)
        try:
            yield there
        finally:
            _end_jobs(there)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> Remote:
    give_up = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            there = remote("", "", folder)
            there.get(Health, "/readyz")
        except (NoController, typer.BadParameter):
            time.sleep(AGAIN_S)
        else:
            return there
    said = (folder / "serve.log").read_text(encoding="utf-8", errors="replace")[-1000:]
    raise NotStarted(f"the controller is not ready after {START_S:.0f} s; it said: {said}")


def _end_jobs(there: Remote) -> None:
    """A controller that ends leaves its jobs to the next one, and here there is none."""
    for job in there.get(ClusterView, "/v1/cluster").jobs:
        if job.state != Job.ENDED.value:
            there.post(Done, f"/v1/jobs/{job.job}/cancel")
    give_up = time.monotonic() + END_S
    while not ended(there.get(ClusterView, "/v1/cluster")) and time.monotonic() < give_up:
        time.sleep(AGAIN_S)


def ended(cluster: ClusterView) -> bool:
    """Whether no job is left."""
    return all(job.state == Job.ENDED.value for job in cluster.jobs)
