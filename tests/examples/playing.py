"""The shipped examples as their readers run them: scripts in processes of their own, alone and beside a controller.

Processes that the tests start are forks (`tests/forking.py`). Those that the controller starts are not.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.forking import LIMIT_S, begun
from tests.service.running import Running, clean_env, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Board:
    """What a running controller shows."""

    def __init__(self, there: Running) -> None:
        self._client = httpx.Client(
            base_url=there.url, headers={"Authorization": f"Bearer {there.token}"}, timeout=20, verify=False
        )

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs."""
        found: list[dict[str, Any]] = self._client.get("/v1/cluster").raise_for_status().json()["jobs"]
        return found

    def wait(self, true: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Until this is true of all jobs."""
        end = time.monotonic() + LIMIT_S
        while not true(found := self.jobs()):
            assert time.monotonic() < end, found
            time.sleep(0.5)

    def close(self) -> None:
        self._client.close()


@contextmanager
def controller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """`rollmux serve` with one node of each kind; the `python` of its jobs is that of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}")
    with running(folder) as there, closing(Board(there)) as board:
        monkeypatch.setenv("ROLLMUX_URL", there.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", there.token)
        yield board


def command(*words: str) -> str:
    """What a command of `rollmux` says."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def alone(script: Path, *arguments: str, said: Path) -> list[str]:
    """What a script prints where there is no controller."""
    return begun(script, *arguments, said=said, env=clean_env()).printed()


def gain(lines: list[str]) -> float:
    """How many times the reward of the first three steps that of the last three is."""
    rewards = [float(line.split("reward")[1].split(maxsplit=1)[0]) for line in lines]
    return sum(rewards[-3:]) / sum(rewards[:3])
