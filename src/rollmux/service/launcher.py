"""The seam to whatever starts and ends the processes of jobs: this machine, or a cluster engine.

A launcher keeps no promise but this one: `stop` returns when nothing of the attempt runs any more, and an attempt that
ends by itself is reported once, even one that an earlier life of the controller has started.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollmux.errors import RollmuxError
from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission

T = TypeVar("T")


class LaunchFailed(RollmuxError):
    """An attempt could not be started: the message is for the job's owner."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is to be started: one process for each of `submission.processes`, with its number in `ROLLMUX_RANK`.

    `env` is what the job needs to find the controller; it is added to the environment that its owner wants.
    """

    submission: Submission
    number: int
    placement: Placement
    env: Mapping[str, str]

    @property
    def key(self) -> tuple[str, int]:
        return self.submission.job.id, self.number

    @property
    def told(self) -> dict[str, str]:
        """What all processes of the attempt find in their environment."""
        submission, where = self.submission, self.placement
        return {
            **dict(submission.env),
            **self.env,
            "ROLLMUX_ROLLOUT_NODES": ",".join(where.rollout),
            "ROLLMUX_TRAIN_NODES": ",".join(where.train),
            "ROLLMUX_PROCESSES": str(submission.processes),
            "ROLLMUX_RANKS_PER_PROCESS": str(submission.ranks_per_process),
        }


def home_of(rank: int, processes: int, placement: Placement) -> str:
    """Ranks are spread over the nodes of a place in blocks, rollout nodes first."""
    nodes = placement.all_nodes
    return nodes[rank * len(nodes) // processes]


def seen_by(rank: int, processes: int, placement: Placement) -> tuple[str, ...]:
    """The nodes whose devices this rank sees: its own node, or all nodes if some node has no rank."""
    nodes = placement.all_nodes
    return (home_of(rank, processes, placement),) if processes >= len(nodes) else nodes


def each_once(some: Iterable[Sequence[T] | None]) -> list[T]:
    """What several nodes have together, each thing once; nodes that don't say (None) are left out."""
    return list(dict.fromkeys(one for each in some for one in each or ()))


# Called when all processes of an attempt have ended by themselves: job, attempt, and why if its work is not done.
OnExit = Callable[[str, int, str], Awaitable[None]]

# Called when a node is there again, or is gone with whatever ran on it: its name, and whether it is there.
OnNode = Callable[[str, bool], Awaitable[None]]


class Launcher(Protocol):
    """Starts and ends attempts."""

    def at_work(self) -> set[str]:
        """Called before all else. Returns the jobs that an earlier life of the controller has started, not ended."""

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        """Called once, before `begin`. Returns which of these nodes are there; later changes are told."""

    async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
        """Called once, before any start. Returns the attempts that still run; those that ended are reported."""

    async def start(self, attempt: Attempt) -> None:
        """Returns when its processes are up, or raises LaunchFailed. An attempt that runs already is left alone."""

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """Asks its processes to end, ends them after `grace_s`, and returns when they are gone. Never raises."""

    async def log(self, job_id: str, lines: int) -> list[str]:
        """The last lines that the job's latest attempt has printed; none if there is no attempt."""

    async def forget(self, job_id: str) -> None:
        """A new job is to have this name: nobody may read any more what older jobs of this name have printed."""

    async def close(self) -> None:
        """The controller goes. Attempts run on."""
