"""Real controllers to measure, and jobs that are only sockets."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rollmux.service.tokens import Tokens

Process = subprocess.Popen[bytes]

BEAT_S = 5.0  # as the client does with leases of 15 s
KINDS = ("rollout", "train", "sync")
_SOON_S = 30.0


class Socket:
    """One connection that stays up, and one call at a time on it."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        return json.loads(await self._exchange("POST", path, json.dumps(body).encode()))

    async def look(self, path: str) -> int:
        """How many bytes the answer has."""
        return len(await self._exchange("GET", path, b""))

    async def _exchange(self, method: str, path: str, body: bytes) -> bytes:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        headers = ("Host: x", f"Authorization: Bearer {self.token}", f"Content-Length: {len(body)}")
        lines = (f"{method} {path} HTTP/1.1", *headers)
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(size)
        if b" 200 " not in answer[:20]:
            raise RuntimeError(f"{path}: {content.decode()}")
        return content

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


class Job:
    """One job: a socket that works, and one that listens."""

    def __init__(self, name: str, port: int, token: str) -> None:
        self.name, self.path = name, f"/v1/jobs/{name}"
        self.works, self.listens = Socket(port, token), Socket(port, token)
        self.attempt = self.step = 0
        self.epoch: int | None = None

    async def attach(self) -> None:
        self.attempt = (await self.works.call(f"{self.path}/attach", {"instance": "x", "wait_s": 30.0}))["attempt"]

    async def change(self) -> float:
        """The next phase from its request to its end; returns how long the grant took."""
        kind, iteration = KINDS[self.step % 3], self.step // 3
        began = time.perf_counter()
        ask = {"attempt": self.attempt, "kind": kind, "iteration": iteration, "wait_s": 30.0}
        self.epoch = (await self.works.call(f"{self.path}/ask", ask))["lease"]["epoch"]
        taken = time.perf_counter() - began
        for said in ("started", "finished"):
            await self.works.call(f"{self.path}/report", {"said": said, "epoch": self.epoch})
        self.epoch = None
        self.step += 1
        return taken

    def close(self) -> None:
        self.works.close()
        self.listens.close()

    async def listen(self, seen: int) -> int:
        body = {"attempt": self.attempt, "epochs": [self.epoch] if self.epoch else [], "seen": seen, "wait_s": BEAT_S}
        found: int = (await self.listens.call(f"{self.path}/listen", body))["version"]
        return found


@contextmanager
def pinned(command: Sequence[str], core: int, errors: IO[bytes] | int = subprocess.DEVNULL) -> Iterator[Process]:
    """A process on one core, for as long as the block lasts."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        os.sched_setaffinity(process.pid, {core})
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def begun(folder: Path, port: int, lease_s: float) -> Iterator[tuple[Process, int]]:
    """A controller over this folder on the first core, and its port; it may not answer yet."""
    url = folder / "url"
    url.unlink(missing_ok=True)
    command = [str(Path(sys.executable).with_name("rollmux")), "serve", "--folder", str(folder), "--port", str(port)]
    core = min(os.sched_getaffinity(1))
    with (
        (folder / "stderr").open("w+b") as errors,
        pinned([*command, "--lease-s", str(lease_s)], core, errors) as process,
    ):
        until = time.monotonic() + _SOON_S
        while not url.exists():
            if process.poll() is not None or time.monotonic() > until:
                errors.seek(0)
                raise RuntimeError(f"the controller did not begin: {errors.read().decode()[-2000:]}")
            time.sleep(0.002)
        yield process, int(url.read_text().rpartition(":")[2])


def cpu_s(pid: int) -> float:
    """What a process has used of its core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def submitted(count: int, port: int, folder: Path, slo: float) -> list[Job]:
    """So many jobs that are attached."""
    tokens = Tokens(folder, time.time)
    admin = Socket(port, (folder / "admin.token").read_text())
    jobs = []
    for number in range(count):
        name = f"job-{number}"
        phase = {"duration_s": 100.0 + number % 50, "nodes": 1}
        while True:
            try:
                await admin.call("/v1/jobs", {"name": name, "slo": slo, "rollout": phase, "train": phase})
                break
            except RuntimeError as error:
                if "too many" not in str(error):
                    raise
                await asyncio.sleep(0.5)
        jobs.append(Job(name, port, tokens.of_job(name, "admin")))
    admin.close()
    for start in range(0, count, 50):
        await asyncio.gather(*[job.attach() for job in jobs[start : start + 50]])
    return jobs
