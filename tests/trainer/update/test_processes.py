"""The update over real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_two_processes_are_left_with_the_same_synchronous_gradient(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.trainer.update.gloo_rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        said = [[json.loads(line) for line in rank.communicate(timeout=180)[0].splitlines()] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said[0] == said[1]
    assert [each["objective"] for each in said[0]] == ["grpo", "dapo", "whitened"]
    assert all(each["furthest"] < 1e-9 for each in said[0])
    assert all(each["streamed"] and each["late"] for each in said[0])
