"""How fast a live controller grants phases, and what the signs of life of many jobs cost it.

A real `rollmux serve` on one core, with a real journal; its jobs are sockets of this process on another core. Each
keeps a call parked that listens for orders, while phases are asked for, begun and finished at a fixed rate, whatever
the answers take. Beside it, at the same rate and in the same pattern of calls, a server that only echoes: the price of
HTTP.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from benchmarks.harness import arguments, percentile, record, table
from rollmux.service.tokens import Tokens

GOAL_P50_MS, GOAL_P99_MS, GOAL_BEATS = 3.0, 15.0, 0.2
CHANGES_PER_S = 500.0
BEAT_S = 5.0  # as the client does with leases of 15 s
KINDS = ("rollout", "train", "sync")
ECHO = """
import sys, uvicorn
async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, lifespan="off")
"""


class Socket:
    """One connection that stays up, and one call at a time on it."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        text = json.dumps(body).encode()
        headers = ("Host: x", f"Authorization: Bearer {self.token}", f"Content-Length: {len(text)}")
        lines = (f"POST {path} HTTP/1.1", *headers)
        writer.write("\r\n".join([*lines, "", ""]).encode() + text)
        answer = await reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = json.loads(await reader.readexactly(size))
        if b" 200 " not in answer[:20]:
            raise RuntimeError(f"{path}: {content}")
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

    async def listen(self, seen: int) -> int:
        body = {"attempt": self.attempt, "epochs": [self.epoch] if self.epoch else [], "seen": seen, "wait_s": BEAT_S}
        found: int = (await self.listens.call(f"{self.path}/listen", body))["version"]
        return found


@contextmanager
def pinned(command: Sequence[str], core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, for as long as the block lasts."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def cpu_s(pid: int) -> float:
    """What a process has used of its core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def at_rate(per_s: float, seconds: float, work: Sequence[Callable[[], Awaitable[float]]]) -> list[float]:
    """Starts work in turn at this rate, however long it takes; nobody is given work before its last is done."""
    taken: list[float] = []
    busy: dict[int, asyncio.Task[float]] = {}
    began, number = time.perf_counter(), 0
    while (due := number / per_s) < seconds:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        place = number % len(work)
        if place in busy:
            taken.append(await busy.pop(place))
        busy[place] = asyncio.ensure_future(work[place]())
        number += 1
    return taken + list(await asyncio.gather(*busy.values()))


def listening(jobs: Sequence[Job]) -> list[asyncio.Task[None]]:
    async def forever(job: Job, first_s: float) -> None:
        await asyncio.sleep(first_s)
        seen = 0
        while True:
            seen = await job.listen(seen)

    rng = Random(0)
    return [asyncio.ensure_future(forever(job, rng.random() * BEAT_S)) for job in jobs]


async def ended(tasks: Sequence[asyncio.Task[None]], jobs: Sequence[Job]) -> None:
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(found, asyncio.CancelledError):
            raise found or RuntimeError("a job stopped listening")
    for job in jobs:
        job.works.close()
        job.listens.close()


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


async def granted(args: Namespace, port: int, folder: Path, pid: int) -> dict[str, float]:
    """Latencies of grants at the fixed rate."""
    count, seconds = (20, 2.0) if args.quick else (1000, args.seconds)
    jobs = await submitted(count, port, folder, 2.0)
    tasks = listening(jobs)
    await at_rate(CHANGES_PER_S, seconds / 4, [job.change for job in jobs])
    used, began = cpu_s(pid), time.perf_counter()
    taken = await at_rate(CHANGES_PER_S, seconds, [job.change for job in jobs])
    share = (cpu_s(pid) - used) / (time.perf_counter() - began)
    await ended(tasks, jobs)
    return {
        "grants": len(taken),
        "p50_ms": percentile(taken, 50) * 1000,
        "p99_ms": percentile(taken, 99) * 1000,
        "core": share,
    }


async def echoed(args: Namespace, port: int, pid: int) -> dict[str, float]:
    """The same pattern of calls to a server that does nothing."""
    seconds = 1.0 if args.quick else args.seconds
    sockets = [Socket(port, "x" * 43) for _ in range(20 if args.quick else 1000)]

    def change(socket: Socket) -> Callable[[], Awaitable[float]]:
        async def one() -> float:
            began = time.perf_counter()
            await socket.call("/", {"attempt": 1, "kind": "rollout", "iteration": 3, "wait_s": 30.0})
            taken = time.perf_counter() - began
            for said in ("started", "finished"):
                await socket.call("/", {"said": said, "epoch": 7})
            return taken

        return one

    work = [change(socket) for socket in sockets]
    await at_rate(CHANGES_PER_S, seconds / 4, work)
    used, began = cpu_s(pid), time.perf_counter()
    taken = await at_rate(CHANGES_PER_S, seconds, work)
    share = (cpu_s(pid) - used) / (time.perf_counter() - began)
    for socket in sockets:
        socket.close()
    return {
        "grants": len(taken),
        "p50_ms": percentile(taken, 50) * 1000,
        "p99_ms": percentile(taken, 99) * 1000,
        "core": share,
    }


async def beaten(args: Namespace, port: int, folder: Path, pid: int) -> dict[str, float]:
    """What the signs of life of jobs that hold a lease each cost."""
    count, seconds = (50, 2.0) if args.quick else (5000, args.seconds)
    jobs = await submitted(count, port, folder, 1.0)
    for job in jobs:
        ask = {"attempt": job.attempt, "kind": "rollout", "iteration": 0, "wait_s": 30.0}
        job.epoch = (await job.works.call(f"{job.path}/ask", ask))["lease"]["epoch"]
        job.works.close()
    tasks = listening(jobs)
    await asyncio.sleep(1.0 if args.quick else 2 * BEAT_S)
    used, began = cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (cpu_s(pid) - used) / (time.perf_counter() - began)
    await ended(tasks, jobs)
    return {"jobs": count, "beats_per_s": count / BEAT_S, "core": share}


def controller(
    run: Callable[[int, Path, int], Coroutine[Any, Any, dict[str, float]]], lease_s: float
) -> dict[str, float]:
    """Runs this against a new controller on the first core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [str(Path(sys.executable).with_name("rollmux")), "serve", "--folder", name, "--port", "0"]
        with pinned([*command, "--lease-s", str(lease_s)], 0) as process:
            while not (folder / "url").exists():
                time.sleep(0.05)
            time.sleep(0.5)
            port = int((folder / "url").read_text().rpartition(":")[2])
            return uvloop.run(run(port, folder, process.pid))


def echo(args: Namespace) -> dict[str, float]:
    import socket  # noqa: PLC0415

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pinned([sys.executable, "-c", ECHO, str(port)], 0) as process:
        time.sleep(1.5)
        return uvloop.run(echoed(args, port, process.pid))


def main() -> None:
    parser = arguments("permits", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part is measured")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})

    def run() -> dict[str, object]:
        bare = echo(args)
        grants = controller(lambda port, folder, pid: granted(args, port, folder, pid), 15.0)
        table([{"part": "echo", **bare}, {"part": "grants", **grants}])
        beats = controller(lambda port, folder, pid: beaten(args, port, folder, pid), 60.0)
        ratio = {f"{name} over echo": grants[name] / bare[name] for name in ("p50_ms", "p99_ms", "core")}
        table([beats])
        for name, goal in (("p50_ms", GOAL_P50_MS), ("p99_ms", GOAL_P99_MS)):
            print(f"grant {name}: {grants[name]:.2f}, goal at most {goal:g}; met: {grants[name] <= goal}")
        print(
            f"heartbeats of {beats['jobs']:,} jobs: {beats['core']:.1%} of a core, goal at most {GOAL_BEATS:.0%}; "
            f"met: {beats['core'] <= GOAL_BEATS}"
        )
        return {"changes_per_s": CHANGES_PER_S, "echo": bare, "grants": grants, "ratios": ratio, "beats": beats}

    record("permits", args, run)


if __name__ == "__main__":
    main()
