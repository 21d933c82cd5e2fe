"""`rollmux serve` as its user starts it: a process of its own, which can be killed and started anew."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from rollmux.cli import app; app()"


class Commanded:
    """One folder and port, and the controller that is there now."""

    def __init__(self, folder: Path, cluster: str, *options: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "cluster.yaml").write_text(cluster)
        self.url = f"http://127.0.0.1:{free_port()}"
        where = [
            "--folder",
            str(folder),
            "--cluster",
            str(folder / "cluster.yaml"),
            "--port",
            self.url.rpartition(":")[2],
        ]
        self.command = [sys.executable, "-c", PROGRAM, "serve", *where, *options]
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=ROOT, stdout=log, stderr=log)
        self.until(self._is_up)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def submit(self, name: str, command: list[str], **more: Any) -> None:
        phase = {"nodes": 1, "duration_s": 0.2}
        body = {"name": name, "slo": 3.0, "rollout": phase, "train": phase, "command": command}
        self.post("/v1/jobs", {**body, "folder": str(self.folder.parent), **more})

    def view(self, name: str) -> Any:
        return self._call("GET", f"/v1/jobs/{name}")

    def nodes(self) -> list[str]:
        return [node["node"] for node in self._call("GET", "/v1/cluster")["nodes"]]

    def printed(self, name: str) -> list[str]:
        return list(self._call("GET", f"/v1/jobs/{name}/log")["lines"])

    def post(self, path: str, body: Any = None) -> Any:
        return self._call("POST", path, body)

    def until_ended(self, name: str, patience_s: float = 180.0) -> str:
        self.until(lambda: self.view(name)["state"] == "ended", patience_s)
        return str(self.view(name)["reason"])

    def until(self, holds: Callable[[], bool], patience_s: float = 180.0) -> None:
        end = time.monotonic() + patience_s
        while not holds():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < end, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.1)

    def _is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5, verify=False).is_success
        except httpx.HTTPError:
            return False

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.folder / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=30, verify=False)
        assert answer.is_success, answer.text
        return answer.json()


@contextmanager
def commanded(folder: Path, cluster: str, *options: str) -> Iterator[Commanded]:
    """A controller as long as the block lasts."""
    there = Commanded(folder, cluster, *options)
    try:
        yield there
    finally:
        there.end()
