"""The processes of both sides of a sync, each in a network namespace of its own. Each answers a line with a line."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures.slow_link import Fabric
from benchmarks.harness import ROOT

Process = subprocess.Popen[str]


@dataclass(slots=True)
class Ranks:
    """Those that run now."""

    fabric: Fabric
    sizes: dict[str, object]
    folder: Path
    stack: ExitStack
    senders: list[Process] = field(default_factory=list)
    receivers: list[Process] = field(default_factory=list)

    @property
    def all(self) -> list[Process]:
        return [*self.senders, *self.receivers]

    def start(self, role: str, rank: int) -> Process:
        space = (self.fabric.senders if role == "senders" else self.fabric.receivers)[rank]
        command = ["ip", "netns", "exec", space, sys.executable, "-m", "benchmarks.figures.sync_rank"]
        command += [role, str(rank), str(self.folder / f"{role}-{rank}"), json.dumps(self.sizes)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.push(process)
        self.stack.callback(process.kill)
        return process


@contextmanager
def running(fabric: Fabric, sizes: dict[str, object], folder: Path) -> Iterator[Ranks]:
    with ExitStack() as stack:
        ranks = Ranks(fabric, sizes, folder, stack)
        ranks.senders = [ranks.start("senders", rank) for rank in range(len(fabric.senders))]
        ranks.receivers = [ranks.start("receivers", rank) for rank in range(len(fabric.receivers))]
        yield ranks


def tell(rank: Process, order: dict[str, object]) -> None:
    assert rank.stdin is not None
    print(json.dumps(order), file=rank.stdin, flush=True)


def hear(rank: Process) -> Any:
    assert rank.stdout is not None
    line = rank.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with {rank.wait()}: what it said is above")
    return json.loads(line)


def completed(ranks: Ranks, how: dict[str, object]) -> None:
    """A sync that all senders say is done."""
    for answer in told(ranks.senders, lambda _: {"do": "sync", **how}):
        if "failed" in answer:
            raise RuntimeError(answer["failed"])


def told(ranks: Sequence[Process], order: Callable[[int], dict[str, object]]) -> list[Any]:
    """Tells all of them at once; returns what they answer."""
    for number, rank in enumerate(ranks):
        tell(rank, order(number))
    return [hear(rank) for rank in ranks]
