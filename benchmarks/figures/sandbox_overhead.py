"""How much time the sandbox adds: the same programs bare in this process, as bare processes, and in the sandbox."""

import asyncio
import io
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from statistics import median

from benchmarks.figures.goals import Goal
from benchmarks.harness import percentile
from rollmux.runtime.sandbox import Program, RunLimits, Sandbox

OVERHEAD_GOAL_MS = 30.0
SOLUTION = """
import sys
from collections import Counter
words = sys.stdin.read().split()
def best(words):
    counted = Counter(words)
    return sorted(counted, key=lambda word: (-counted[word], word))[:3]
print(*best(words))
"""
PRIMES = """
limit = int(input())
sieve = bytearray([1]) * (limit + 1)
for n in range(2, int(limit ** 0.5) + 1):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, limit + 1, n)))
print(sum(sieve) - 2)
"""
PROGRAMS = ((SOLUTION, b"the cat and the dog and the bird\n" * 20), (PRIMES, b"20000\n"), ("print(42)", b""))


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of the same runs, in turn."""

    bare_s: list[float]
    process_s: list[float]
    sandbox_s: list[float]

    @property
    def overhead_ms(self) -> list[float]:
        """What each run took beyond the bare one just before it."""
        return [1e3 * (held - bare) for held, bare in zip(self.sandbox_s, self.bare_s, strict=True)]


def bare(source: str, stdin: bytes) -> bytes:
    """In this process, with nothing around it."""
    kept, written = sys.stdin, io.StringIO()
    sys.stdin = io.StringIO(stdin.decode())
    try:
        with redirect_stdout(written):
            exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = kept
    return written.getvalue().encode()


def process(source: str, stdin: bytes) -> bytes:
    """In a fresh interpreter, with nothing around it."""
    return subprocess.run([sys.executable, "-I", "-c", source], input=stdin, capture_output=True, check=True).stdout


async def in_turn(sandbox: Sandbox, runs: int) -> Timed:
    """Bare, process, sandbox, bare … so that all three meet the same weather; their outputs must agree."""
    timed = Timed([], [], [])
    limits = RunLimits()
    for number in range(-len(PROGRAMS), runs):  # the first of each program is not counted
        source, stdin = PROGRAMS[number % len(PROGRAMS)]
        taken = [time.perf_counter()]
        expected = bare(source, stdin)
        taken.append(time.perf_counter())
        fresh = process(source, stdin)
        taken.append(time.perf_counter())
        ended = await sandbox.run(Program(source, stdin=stdin), limits)
        taken.append(time.perf_counter())
        if not ended.stdout == fresh == expected:
            raise RuntimeError(f"three runs of one program differ: {expected!r}, {fresh!r}, {ended}")
        if number >= 0:
            for kept, start_s, end_s in zip(
                (timed.bare_s, timed.process_s, timed.sandbox_s), taken[:-1], taken[1:], strict=True
            ):
                kept.append(end_s - start_s)
    return timed


async def per_s(run: Callable[[int], Awaitable[object]], runs: int, at_once: int) -> float:
    """Runs a second, so many at once."""
    numbers = iter(range(runs))

    async def worker() -> None:
        for number in numbers:
            await run(number)

    start_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return runs / (time.perf_counter() - start_s)


async def throughput(sandbox: Sandbox, runs: int, at_once: int) -> tuple[float, float]:
    """Of the sandbox, and of bare processes. A run that fails is no run: it may take no time at all."""

    async def held(number: int) -> object:
        source, stdin = PROGRAMS[number % len(PROGRAMS)]
        ended = await sandbox.run(Program(source, stdin=stdin), RunLimits())
        if not ended.succeeded:
            raise RuntimeError(f"one of several runs at once has failed: {ended}")
        return ended

    async def fresh(number: int) -> object:
        source, stdin = PROGRAMS[number % len(PROGRAMS)]
        return await asyncio.to_thread(process, source, stdin)

    return await per_s(held, runs, at_once), await per_s(fresh, runs, at_once)


def rows(timed: Timed) -> list[dict[str, object]]:
    """A row for each way, in milliseconds."""
    ways = {"bare, in this process": timed.bare_s, "bare process": timed.process_s, "sandbox": timed.sandbox_s}
    return [{"run": name, **_quantiles([1e3 * each for each in taken])} for name, taken in ways.items()] + [
        {"run": "sandbox less bare", **_quantiles(timed.overhead_ms)}
    ]


def _quantiles(taken_ms: Sequence[float]) -> dict[str, float]:
    return {
        "median_ms": median(taken_ms),
        "p95_ms": percentile(taken_ms, 95),
        "p99_ms": percentile(taken_ms, 99),
        "max_ms": max(taken_ms),
    }


def goals(timed: Timed) -> list[Goal]:
    return [
        Goal("overhead of a sandboxed run, median (ms)", median(timed.overhead_ms), OVERHEAD_GOAL_MS),
        Goal(
            "overhead of a sandboxed run, mean (ms)", sum(timed.overhead_ms) / len(timed.overhead_ms), OVERHEAD_GOAL_MS
        ),
    ]
