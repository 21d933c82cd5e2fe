"""The example of a job that spans nodes, as its page says; one of its processes is killed on the way."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.metrics import METRICS
from tests.examples.playing import EXAMPLES, Board, command
from tests.service.running import running
from tests.shortened import shorten
from tests.trainer.jobs import alone, left_behind
from tests.trainer.killing import pid_of

STEPS = 6


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_on_three_nodes_leaves_what_it_leaves_in_one_process_though_one_of_its_three_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    folder = tmp_path / "spanning"
    shutil.copytree(EXAMPLES / "spanning", folder)
    shorten(folder / "train.yaml", {"steps: 20": f"steps: {STEPS}", "warmup: {steps: 100": "warmup: {steps: 20"})
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with running(tmp_path / "controller", "--cluster", str(folder / "cluster.yaml")) as there:
        monkeypatch.setenv("ROLLMUX_URL", there.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", there.token)
        board = Board(there)
        command("submit", str(folder / "job.yaml"))
        board.wait(lambda jobs: (folder / "run" / METRICS).exists())
        if is_killed:
            pid = pid_of("spanning", attempt=1, rank=0)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        board.wait(lambda jobs: all(view["state"] == "ended" for view in jobs))
        assert [view["reason"] for view in board.jobs()] == ["finished"]
        said = command("logs", "spanning")
        board.close()
    train(read_job_file(folder / "train.yaml"), folder / "alone", alone())
    assert left_behind(folder / "run") == left_behind(folder / "alone")
    assert f"step    {STEPS}/{STEPS}" in said
