"""`rollmux serve` as its users run it: a process of its own, found by its folder.

Tests speak to controllers with `verify=False`: else each look that has a client of its own loads all certificates,
which takes most of a tenth of a second of a core, and many look until something has come about.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CLUSTER = Path(__file__).resolve().parents[2] / "examples" / "attach" / "cluster.yaml"
ROLLMUX = (sys.executable, "-c", "from rollmux.cli import app; app()")
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A controller in a process of its own; what it says on standard error is in `log`."""

    folder: Path
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        return (self.folder / "url").read_text()

    @property
    def token(self) -> str:
        return (self.folder / "admin.token").read_text()

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return httpx.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=20, verify=False)

    def end(self) -> str:
        """What it said on standard output until its clean end."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=START_S)
        assert self.process.returncode == 0
        return said


@contextmanager
def running(folder: Path, *options: str, port: int = 0, **streams: Any) -> Iterator[Running]:
    """A controller over this folder that is ready. `streams` say where else its words go."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "url").unlink(missing_ok=True)
    log = folder / "serve.log"
    words = [*ROLLMUX, "serve", "--cluster", str(CLUSTER), "--folder", str(folder), "--port", str(port), *options]
    with log.open("a") as errors:
        usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(words, text=True, env=clean_env(), **usual | streams)
    there = Running(folder, process, log)
    try:
        end = time.monotonic() + START_S
        while not _ready(there):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield there
    finally:
        process.kill()
        process.communicate()


def clean_env(**more: str) -> dict[str, str]:
    """The environment without a word of any controller, or of the size of this terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLMUX_", "COLUMNS", "LINES"))}
    return kept | more


def _ready(there: Running) -> bool:
    try:
        return httpx.get(f"{there.url}/readyz", timeout=2.0, verify=False).is_success
    except (httpx.HTTPError, FileNotFoundError):
        return False
