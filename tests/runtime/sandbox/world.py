"""A sandbox for tests: started once for each way to protect, called from plain functions, beside a neighbour."""

import asyncio
import os
import threading
from collections.abc import Collection, Coroutine
from typing import Any, Self, TypeVar

import pytest

from rollmux.runtime.sandbox import Cause, Concern, Ended, Mechanism, Program, RunLimits, Sandbox
from rollmux.runtime.sandbox.limits import MIB
from rollmux.runtime.sandbox.tree import descendants

T = TypeVar("T")
NAMESPACES = (
    Mechanism.USER_NAMESPACE,
    Mechanism.MOUNT_NAMESPACE,
    Mechanism.PID_NAMESPACE,
    Mechanism.NETWORK_NAMESPACE,
    Mechanism.IPC_NAMESPACE,
)
# What machines may have: all that this one has, as root and as anybody, and what is left in a common container.
WAYS: dict[str, tuple[Mechanism, ...]] = {
    "all": (),
    "user namespace": (Mechanism.OWN_USER,),
    "no namespaces": NAMESPACES,
}
SMALL = RunLimits(cpu_s=5.0, wall_s=20.0, memory_bytes=192 * MIB, output_bytes=MIB, disk_bytes=8 * MIB)
NEIGHBOUR = Program(
    "import time\ntotal = 0\nfor n in range(50):\n    total += n * n\n    time.sleep(0.002)\nprint(total)"
)
NEIGHBOUR_SAYS = b"40425\n"


SPARES = len(os.sched_getaffinity(0))


def living(root: int) -> list[int]:
    """All below a process that have not ended."""
    return [pid for pid in descendants(root) if state(pid) not in ("gone", "Z")]


def state(pid: int) -> str:
    return (words(pid) or ["gone"])[0]


def words(pid: int) -> list[str]:
    """The state, the parent and what follows in the kernel's line about a process; nothing if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def keepers(zygote: int) -> list[int]:
    """Its children that have not ended."""
    return [pid for pid in living(zygote) if words(pid)[1:2] == [str(zygote)]]


def busy(zygote: int, spares: int = SPARES) -> list[int]:
    """All below a zygote but its idle spares: keepers with a first process and nothing below that."""
    found = []
    for keeper in keepers(zygote):
        below = living(keeper)
        if spares and len(below) <= 1:
            spares -= 1
        else:
            found += [keeper, *below]
    return found


class World:
    """An event loop in a thread with one sandbox."""

    def __init__(self, without: Collection[Mechanism]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.sandbox = Sandbox(allow=list(Concern), without=without)

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.sandbox.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(90)

    def needs(self, *concerns: Concern) -> None:
        exposed = self.sandbox.protections.uncovered.intersection(concerns)
        if exposed:
            pytest.skip(f"nothing prevents it here: {', '.join(each.value for each in exposed)}")

    def run(self, program: str | Program, limits: RunLimits = SMALL) -> Ended:
        """Runs hostile code beside a neighbour, who must not notice."""
        hostile = Program(program) if isinstance(program, str) else program
        ended, neighbour = self.do(self._both(hostile, limits))
        assert neighbour.cause is Cause.EXITED, neighbour
        assert neighbour.stdout == NEIGHBOUR_SAYS
        return ended

    async def _both(self, hostile: Program, limits: RunLimits) -> tuple[Ended, Ended]:
        neighbour = RunLimits(cpu_s=30.0, wall_s=60.0)
        return await asyncio.gather(self.sandbox.run(hostile, limits), self.sandbox.run(NEIGHBOUR, neighbour))
