"""The shipped examples as their readers run them: scripts in processes of their own, alone and beside a controller."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.service.running import Running, clean_env, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# An import of torch takes two seconds of a core, and that core may be shared with many.
LIMIT_S = 300.0


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


def ended(job: str) -> Any:
    """Waits for the end of a job."""
    until = time.monotonic() + LIMIT_S
    while (view := json.loads(command("status", job, "--json")))["state"] != "ended":
        assert time.monotonic() < until, view
        time.sleep(0.2)
    return view


def begun(script: Path, *arguments: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def printed(process: subprocess.Popen[str]) -> list[str]:
    """What a script has printed, once it has ended well."""
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return out.splitlines()


def alone(script: Path, *arguments: str) -> list[str]:
    """What a script prints where there is no controller."""
    return printed(begun(script, *arguments, env=clean_env()))
