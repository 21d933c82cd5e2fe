"""The shipped examples as their readers run them: scripts in processes of their own, alone and beside a controller.

Processes that the tests start are forked from one that has imported torch and transformers already: each import takes
six seconds of a core. Those that the controller starts are not.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.service.running import Running, clean_env, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FORKS = get_context("forkserver")
PRELOAD = ["torch._dynamo", "transformers.models.llama.modeling_llama"]
LIMIT_S = 600.0  # a core may be shared with many


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


@dataclass(frozen=True, slots=True)
class Play:
    """A script at work; what it prints is in `said`."""

    process: ForkServerProcess
    said: Path

    def printed(self) -> list[str]:
        """What it has printed, once it has ended well; not what the client says of waits, which depends on how long."""
        try:
            self.process.join(LIMIT_S)
            lines = self.said.read_text().splitlines()
            assert self.process.exitcode == 0, lines
        finally:
            self.process.kill()
        return [line for line in lines if not line.startswith("rollmux: ")]


def begun(script: Path, *arguments: str, said: Path, env: Mapping[str, str]) -> Play:
    FORKS.set_forkserver_preload(PRELOAD)
    process = FORKS.Process(target=_play, args=(str(script), arguments, str(said), dict(env)))
    process.start()
    return Play(process, said)


def _play(script: str, arguments: tuple[str, ...], said: str, env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    file = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(file, standard)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def alone(script: Path, *arguments: str, said: Path) -> list[str]:
    """What a script prints where there is no controller."""
    return begun(script, *arguments, said=said, env=clean_env()).printed()


def gain(lines: list[str]) -> float:
    """How many times the reward of the first three steps that of the last three is."""
    rewards = [float(line.split("reward")[1].split(maxsplit=1)[0]) for line in lines]
    return sum(rewards[-3:]) / sum(rewards[:3])
