"""How fast a live controller grants phases, and how much the signs of life of many jobs cost it.

A real `rollmux serve` runs on one core, with a real journal; its jobs are sockets of this process on another core. Each
keeps a parked call that listens for orders, while phases are asked for, begun and finished at a fixed rate, however
long the answers take. No two jobs share a node (their SLO is 1), so no grant waits for another job. Beside it a server
that only echoes gets the same pattern of calls at the same rate: this is the price of HTTP.

No grant leaves before it is on disk, and disks stall. So each round also shows how long calls at the same rate wait for
a bare `fdatasync`, and the controller is run a second time with its journal in memory. The figures are the median of
the rounds.
"""

import asyncio
import os
import socket
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import uvloop

from benchmarks.controllers import BEAT_S, Job, Socket, begun, cpu_s, pinned, submitted
from benchmarks.figures.goals import Goal
from benchmarks.harness import arguments, percentile, record, table

GOAL_P50_MS, GOAL_P99_MS, GOAL_BEATS = 3.0, 15.0, 0.2
CHANGES_PER_S = 500.0
# So much the controller writes each time, for it gathers what changes within a millisecond or two.
SYNCED_BYTES = 12 * 1024
IN_MEMORY = Path("/dev/shm")
LOOKS, LOOK_S = ("/v1/cluster", "/v1/bill", "/v1/history?since_s=60", "/metrics"), 1.0
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
        job.close()


async def looking(port: int, folder: Path) -> None:
    """Somebody with four windows open."""
    admin = Socket(port, (folder / "admin.token").read_text())
    try:
        while True:
            for path in LOOKS:
                await admin.look(path)
                await asyncio.sleep(LOOK_S / len(LOOKS))
    finally:
        admin.close()


def figures(taken: Sequence[float], core: float) -> dict[str, float]:
    return {
        "times": len(taken),
        "p50_ms": percentile(taken, 50) * 1000,
        "p99_ms": percentile(taken, 99) * 1000,
        "core": core,
    }


async def measured(pid: int, seconds: float, work: Sequence[Callable[[], Awaitable[float]]]) -> dict[str, float]:
    """Work at the fixed rate, once it has gone on for a while."""
    await at_rate(CHANGES_PER_S, seconds / 4, work)
    used, began = cpu_s(pid), time.perf_counter()
    taken = await at_rate(CHANGES_PER_S, seconds, work)
    return figures(taken, (cpu_s(pid) - used) / (time.perf_counter() - began))


async def granted(args: Namespace, port: int, folder: Path, pid: int, *, looked_at: bool) -> dict[str, float]:
    """Latencies of grants at the fixed rate."""
    count, seconds = (20, 2.0) if args.quick else (1000, args.seconds)
    jobs = await submitted(count, port, folder, 1.0)
    tasks = listening(jobs)
    if looked_at:
        tasks.append(asyncio.ensure_future(looking(port, folder)))
    found = await measured(pid, seconds, [job.change for job in jobs])
    await ended(tasks, jobs)
    return found


async def echoed(args: Namespace, port: int, pid: int) -> dict[str, float]:
    """The same pattern of calls to a server that does nothing."""
    seconds = 1.0 if args.quick else args.seconds
    sockets = [Socket(port, "x" * 43) for _ in range(20 if args.quick else 1000)]

    def change(connection: Socket) -> Callable[[], Awaitable[float]]:
        async def one() -> float:
            began = time.perf_counter()
            await connection.call("/", {"attempt": 1, "kind": "rollout", "iteration": 3, "wait_s": 30.0})
            taken = time.perf_counter() - began
            for said in ("started", "finished"):
                await connection.call("/", {"said": said, "epoch": 7})
            return taken

        return one

    found = await measured(pid, seconds, [change(connection) for connection in sockets])
    for connection in sockets:
        connection.close()
    return found


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


def synced(args: Namespace) -> dict[str, float]:
    """What whoever comes at the rate of the changes waits for the disk alone, each write being for all who wait."""
    taken: list[float] = []
    began, used = time.perf_counter(), time.process_time()
    seconds = 1.0 if args.quick else args.seconds
    with tempfile.TemporaryFile(buffering=0) as file:
        while (now := time.perf_counter() - began) < seconds:
            here = range(len(taken), int(now * CHANGES_PER_S) + 1)
            if not here:
                time.sleep(len(taken) / CHANGES_PER_S - now)
                continue
            file.write(bytes(SYNCED_BYTES))
            os.fdatasync(file.fileno())
            taken += [time.perf_counter() - began - number / CHANGES_PER_S for number in here]
    return figures(taken, (time.process_time() - used) / (time.perf_counter() - began))


def controller(
    run: Callable[[int, Path, int], Coroutine[Any, Any, dict[str, float]]], lease_s: float, where: Path | None = None
) -> dict[str, float]:
    """Runs this against a new controller on the first core."""
    with tempfile.TemporaryDirectory(dir=where) as name, begun(Path(name), 0, lease_s) as (process, port):
        time.sleep(0.5)
        return uvloop.run(run(port, Path(name), process.pid))


def echo(args: Namespace) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pinned([sys.executable, "-c", ECHO, str(port)], min(os.sched_getaffinity(1))) as process:
        time.sleep(1.5)
        return uvloop.run(echoed(args, port, process.pid))


def typical(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    parser = arguments("permits", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part is measured")
    parser.add_argument("--rounds", type=int, default=3, help="how often grants are measured")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})

    def grants(where: Path | None, *, looked_at: bool = False) -> dict[str, float]:
        def load(port: int, folder: Path, pid: int) -> Coroutine[Any, Any, dict[str, float]]:
            return granted(args, port, folder, pid, looked_at=looked_at)

        return controller(load, 15.0, where)

    def run() -> dict[str, object]:
        bare = echo(args)
        rounds = [
            {
                "disk": synced(args),
                "grants": grants(None),
                "grants, journal in memory": grants(IN_MEMORY),
                "grants, looked at": grants(None, looked_at=True),
            }
            for _ in range(1 if args.quick else args.rounds)
        ]
        parts = {part: typical([each[part] for each in rounds]) for part in rounds[0]}
        rows = [{"part": part, **figures} for part, figures in {"echo": bare, **parts}.items()]
        table(rows)
        found = parts["grants"]
        print(*(f"{name} over echo: {found[name] / bare[name]:.2f}" for name in ("p50_ms", "p99_ms", "core")), sep="\n")
        beats = controller(lambda port, folder, pid: beaten(args, port, folder, pid), 60.0)
        table([beats])
        in_memory, looked_at = parts["grants, journal in memory"], parts["grants, looked at"]
        goals = [
            Goal("milliseconds from request to grant, p50", found["p50_ms"], GOAL_P50_MS),
            Goal("milliseconds from request to grant, p99", found["p99_ms"], GOAL_P99_MS),
            Goal("the same with the journal in memory", in_memory["p99_ms"], GOAL_P99_MS),
            Goal("the same while somebody looks on", looked_at["p99_ms"], GOAL_P99_MS),
            Goal("part of a core that signs of life take", beats["core"], GOAL_BEATS),
        ]
        print(*(goal.line() for goal in goals), sep="\n")
        return {
            "changes_per_s": CHANGES_PER_S,
            "rows": rows,
            "rounds": rounds,
            "beats": beats,
            "goals": [goal.row() for goal in goals],
        }

    record("permits", args, run)


if __name__ == "__main__":
    main()
