"""Real attempts for tests: built in few words, heard when they end, and none left behind."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission
from rollmux.service.launcher import Attempt
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.local.process_tree import Process, descendants, everything, send
from tests import builders
from tests.waiting import eventually

PATIENCE_S = 10.0
until = partial(eventually, within_s=PATIENCE_S)
Those = frozenset[tuple[int, int]]  # processes, each by its number and its start
_PR_SET_CHILD_SUBREAPER = 36

# Lives in a session of its own and takes no hint, as a daemon would that a job has left behind.
STUBBORN_DAEMON = f"""setsid {sys.executable} -c '
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("daemon", "w").write(str(os.getpid()))
time.sleep(60)' & while [ ! -s daemon ]; do sleep 0.01; done"""


class Exits:
    """Hears of the ends of attempts."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, str]] = []
        self.running: set[tuple[str, int]] = set()

    async def __call__(self, job_id: str, attempt: int, failed: str) -> None:
        self.heard.append((job_id, attempt, failed))

    async def next(self) -> str:
        """Why the one that ends next has failed."""
        count = len(self.heard)
        await until(lambda: len(self.heard) > count)
        return self.heard[count][2]


@asynccontextmanager
async def launching(folder: Path, **options: Any) -> AsyncIterator[tuple[ProcessLauncher, Exits]]:
    """One life of a launcher with its state in this folder."""
    launcher, exits = ProcessLauncher(folder / "state", **options), Exits()
    exits.running = await launcher.begin(exits)
    yield launcher, exits
    await launcher.close()


def shell(folder: Path, script: str, name: str = "a", number: int = 1, **more: Any) -> Attempt:
    """An attempt to run this script in this folder; `more` is for its submission."""
    submission = Submission(builders.job(name), ("sh", "-c", script), folder=str(folder), **more)
    return Attempt(submission, number, Placement(("r0", "r1"), ("t0",)), {"ROLLMUX_JOB": name})


def number_in(path: Path) -> int | None:
    """The number that a process has written there, once it is all there."""
    with suppress(FileNotFoundError, ValueError):
        return int(path.read_text())
    return None


async def written(path: Path) -> int:
    await until(lambda: number_in(path) is not None)
    return int(path.read_text())


@contextmanager
def nothing_left() -> Iterator[Those]:
    """Whatever is started meanwhile is gone afterwards, and reaped: else it is ended now, and that is an error.

    What was there before is told, for `be_init`.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that no orphan gets away
    older = frozenset((each.pid, each.start) for each in everything())
    try:
        yield older
    finally:
        left = {each.pid for each in _below(older)}
        told = [f"{pid}: {_command(pid)}" for pid in left]
        while more := [each for each in _below(older) if each.alive]:
            for process in more:
                send(process, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
    assert not told, f"left running: {told}"


def be_init(older: Those) -> None:
    """Reaps the orphans that have come to this process, as on a machine its first process does."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and (orphans := _below(older)):
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)
        time.sleep(0.01)


def _below(older: Those) -> list[Process]:
    """What this process has started since, zombies of its own too: not what its older children have.

    Another test's database starts its cleaners when it likes.
    """
    new = [each for each in everything() if (each.pid, each.start) not in older]
    zombies = [each for each in new if each.parent == os.getpid() and not each.alive]
    return [*zombies, *descendants(os.getpid(), new)]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or "a zombie"
    return "gone"
