"""The shipped examples as their readers run them: scripts in processes of their own, alone and beside a controller.

Processes that the tests start are forked from one that has imported torch and transformers already: each import takes
six seconds of a core. Those that the controller starts are not.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.service.running import Running, clean_env, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FORKS = get_context("forkserver")
PRELOAD = ["torch._dynamo", "transformers.models.llama.modeling_llama"]
LIMIT_S = 300.0  # a core may be shared with many


@contextmanager
def controller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """`rollmux serve` with one node of each kind; the `python` of its jobs is that of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}")
    with running(folder) as there:
        monkeypatch.setenv("ROLLMUX_URL", there.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", there.token)
        yield there


def command(*words: str) -> str:
    """What a command of `rollmux` says."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def jobs() -> list[dict[str, Any]]:
    """All jobs, as the controller sees them."""
    found: list[dict[str, Any]] = json.loads(command("status", "--json"))["jobs"]
    return found


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, jobs()
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Play:
    """A script at work; what it prints is in `said`."""

    process: ForkServerProcess
    said: Path

    def printed(self) -> list[str]:
        """What it has printed, once it has ended well."""
        try:
            self.process.join(LIMIT_S)
            lines = self.said.read_text().splitlines()
            assert self.process.exitcode == 0, lines
        finally:
            self.process.kill()
        return lines


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
