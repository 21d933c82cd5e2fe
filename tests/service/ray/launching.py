"""Attempts on a real Ray cluster: built in few words, heard when they end, and looked for among all processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission
from rollmux.protocol.node_means import Means
from rollmux.service.launcher import Attempt
from rollmux.service.ray.http_gateway import HttpGateway
from rollmux.service.ray.launcher import RayLauncher
from tests import builders
from tests.service.ray.real import RealRay

PATIENCE_S = 120.0
NODES = ("rollout-0", "rollout-1", "train-0", "train-1")
HERE = Placement(("rollout-0",), ("train-0",))


class Heard:
    """What a launcher tells."""

    def __init__(self) -> None:
        self.exits: list[tuple[str, int, str]] = []
        self.nodes: list[tuple[str, bool]] = []
        self.there: set[str] = set()
        self.running: set[tuple[str, int]] = set()

    async def exit(self, job_id: str, attempt: int, failed: str) -> None:
        self.exits.append((job_id, attempt, failed))

    async def node(self, node: str, there: bool) -> None:
        self.nodes.append((node, there))

    async def why(self, job_id: str, attempt: int) -> str:
        """Why this one has failed, once that is told."""
        await until(lambda: (job_id, attempt) in [each[:2] for each in self.exits])
        return next(why for job, number, why in self.exits if (job, number) == (job_id, attempt))


@asynccontextmanager
async def launching(
    folder: Path, cluster: RealRay, means: dict[str, Means] | None = None, gateway: Any = None
) -> AsyncIterator[tuple[RayLauncher, Heard]]:
    """One life of a launcher with its state in this folder."""
    launcher = RayLauncher(folder / "state", gateway or HttpGateway(cluster.url), means)
    heard = Heard()
    heard.there = await launcher.watch(NODES, heard.node)
    heard.running = await launcher.begin(heard.exit)
    try:
        yield launcher, heard
    finally:
        await launcher.close()


def shell(folder: Path, script: str, name: str = "a", number: int = 1, place: Placement = HERE, **more: Any) -> Attempt:
    submission = Submission(builders.job(name), ("sh", "-c", script), folder=str(folder), **more)
    return Attempt(submission, number, place, {"ROLLMUX_JOB": name})


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it has not come true"
        await asyncio.sleep(0.05)


def processes_of(launcher: RayLauncher) -> dict[int, str]:
    """All processes that ranks of this launcher's have started, and their ends on other nodes too: all are here."""
    marker, found = f"ROLLMUX_KEEPER=rollmux-{launcher.intents.cluster}-", {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marker in (path / "environ").read_text(errors="replace"):
                found[int(path.name)] = (path / "cmdline").read_text(errors="replace").replace("\0", " ")
    return found


def machine_of(pid: int) -> str:
    """The address of the Ray node that a process is below."""
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for word in words:
            if word.startswith("--node_ip_address="):
                return word.removeprefix("--node_ip_address=")
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("it is below no Ray node")
