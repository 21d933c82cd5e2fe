"""How long a controller is away when it is killed: from SIGKILL to the first answer of the next one.

The controllers are real `rollmux serve` processes with jobs that are attached and have done some iterations. Beside
them is an empty controller: it shows how long the start of the program takes anyway.
"""

import asyncio
import os
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import httpx
import uvloop

from benchmarks.controllers import Job, Process, begun, submitted
from benchmarks.figures.goals import Goal
from benchmarks.harness import arguments, percentile, record, table

GOALS_S = {200: 2.0, 2000: 5.0}
# Iterations that are played before the kill, and phases of a round that go on at the same time.
ITERATIONS, AT_ONCE = 3, 50
GIVE_UP_S = 120.0


async def played(jobs: Sequence[Job], iterations: int) -> None:
    """All jobs through so many iterations, a few at a time."""
    for start in range(0, len(jobs), AT_ONCE):
        for _ in range(3 * iterations):
            await asyncio.gather(*[job.change() for job in jobs[start : start + AT_ONCE]])
    for job in jobs:
        job.close()


def answered_s(process: Process, port: int, since: float) -> float:
    """When the controller at this port first answers that it can change something. Raises if it ends, or never does."""
    while process.poll() is None and time.perf_counter() < since + GIVE_UP_S:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1.0, verify=False).is_success:
                return time.perf_counter() - since
        except httpx.HTTPError:
            pass
        time.sleep(0.005)
    ended = "is not ready" if process.returncode is None else f"has ended with {process.returncode}"
    raise RuntimeError(f"the controller {ended} after {time.perf_counter() - since:.1f} s")


def killed(count: int, iterations: int, rounds: int) -> tuple[list[float], int]:
    """Seconds from each of so many kills to the first answer, and how many records there were to go by."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with begun(folder, 0, lease_s=120.0) as (process, port):
            answered_s(process, port, time.perf_counter())
            if count:
                uvloop.run(_filled(count, iterations, port, folder))
            seq = int(httpx.get(f"http://127.0.0.1:{port}/healthz").json()["seq"])
            process.send_signal(signal.SIGKILL)
            process.wait()
        taken = []
        for _ in range(rounds):
            since = time.perf_counter()
            with begun(folder, port, lease_s=120.0) as (process, port):
                taken.append(answered_s(process, port, since))
                process.send_signal(signal.SIGKILL)
                process.wait()
        return taken, seq


async def _filled(count: int, iterations: int, port: int, folder: Path) -> None:
    await played(await submitted(count, port, folder, 2.0), iterations)


def measure(args: Namespace) -> dict[str, object]:
    counts = (0, 20) if args.quick else (0, *GOALS_S)
    rows: list[dict[str, object]] = []
    empty_s = 0.0
    for count in counts:
        taken, records = killed(count, 1 if args.quick else ITERATIONS, 2 if args.quick else 5)
        empty_s = empty_s or percentile(taken, 50)
        row: dict[str, object] = {"jobs": count, "records": records, "median s": percentile(taken, 50)}
        rows.append(row | {"worst s": max(taken), "over empty": percentile(taken, 50) / empty_s})
    table(rows)
    goals = [
        Goal(f"seconds away with {row['jobs']} jobs", float(str(row["worst s"])), goal_s)
        for row, goal_s in zip(rows[1:], GOALS_S.values(), strict=False)
    ]
    print(*(goal.line() for goal in goals), sep="\n")
    return {"rows": rows, "goals": [goal.row() for goal in goals]}


def main() -> None:
    parser = arguments("recovery", __doc__)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    record("recovery", args, lambda: measure(args))


if __name__ == "__main__":
    main()
