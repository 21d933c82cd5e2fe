"""A controller of a few nodes on this machine, in a process of its own, for as long as a run lasts.

Invariant: when the block ends, however it ends, controller and jobs are gone. So the jobs' keepers end them, and not
the controller, which may have failed itself.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rollmux.cli.remote import CallRefused, Remote, remote
from rollmux.errors import RollmuxError
from rollmux.mux.transitions import Job
from rollmux.protocol.views import ClusterView, Health

ROLLMUX = (sys.executable, "-c", "from rollmux.cli import app; app()")
CLUSTER = """\
# So many nodes for rollouts and so many for training. Each is meant to be a core of this machine.
rollout:
  on_demand: false
  max_nodes: {rollout}
  node: {{name: core, gpus: 1, usd_per_gpu_hour: 1.85, hbm_gb: 1, host_memory_gb: 4}}

train:
  on_demand: false
  max_nodes: {train}
  node: {{name: core, gpus: 1, usd_per_gpu_hour: 5.28, hbm_gb: 1, host_memory_gb: 4}}
"""
START_S, AGAIN_S, END_S = 60.0, 0.1, 30.0


class ControllerFailed(RollmuxError):
    """The controller ended, or took too long to be ready, or refused a call."""


@contextmanager
def controller(folder: Path, rollout: int = 1, train: int = 1) -> Iterator[Remote]:
    """A controller that is ready, with so many nodes of each kind; its files and all logs are in the folder."""
    folder.mkdir(parents=True, mode=0o700)
    cluster = folder / "cluster.yaml"
    cluster.write_text(CLUSTER.format(rollout=rollout, train=train), encoding="utf-8")
    words = [*ROLLMUX, "serve", "--cluster", str(cluster), "--folder", str(folder), "--port", "0"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
    with (folder / "serve.log").open("wb") as log:  # in a session of its own: an interrupt is the caller's to hear
        process = subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield _ready(folder, process)
    except CallRefused as error:
        raise ControllerFailed(f"{error.message}\nIts log: {folder / 'serve.log'}") from error
    finally:
        process.kill()  # the controller first, so that it starts no job again
        process.wait()
        _end_jobs(folder)


def _ready(folder: Path, process: subprocess.Popen[bytes]) -> Remote:
    give_up = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            there = remote("", "", folder)
            there.get(Health, "/readyz")
        except typer.BadParameter:
            time.sleep(AGAIN_S)
        else:
            return there
    how = f"is not ready after {START_S:.0f} s" if process.returncode is None else f"ended with {process.returncode}"
    raise ControllerFailed(f"the controller {how}; its log: {folder / 'serve.log'}")


def _end_jobs(folder: Path) -> None:
    # Imported only here, for these need a POSIX system, and the virtual demo does not.
    from rollmux.service.local.attempt_files import AttemptFiles  # noqa: PLC0415
    from rollmux.service.local.kept import ask  # noqa: PLC0415

    for started in AttemptFiles(folder).all_started():
        keeper = started.keeper.open()
        if keeper is not None:
            ask(keeper, signal.SIGUSR1)
            keeper.wait(END_S)
            keeper.close()


def ended(cluster: ClusterView) -> bool:
    """Whether no job is left."""
    return all(job.state == Job.ENDED.value for job in cluster.jobs)
