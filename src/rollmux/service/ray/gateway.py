"""All that the launcher asks of Ray, call by call, and the ways in which a call can come to nothing.

Each call may fail before it took effect, take effect without a reply, or take effect long after it was given up:
`Unsure` says no more than that. Only `Rejected` is certain: the call has changed nothing and never will.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rollmux.errors import RollmuxError

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
VOID = {"rollmux": "void"}


class RayTrouble(RollmuxError):
    """A call to Ray has had no good answer."""


class Unsure(RayTrouble):
    """Nobody knows whether the call took effect, or still will."""


class Rejected(RayTrouble):
    """Ray has said no."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """What Ray says of one submission."""

    id: str
    status: str
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def void(self) -> bool:
        """Whether this is an empty submission, which only takes an id."""
        return VOID.items() <= self.metadata.items()


@dataclass(frozen=True, slots=True)
class RayNode:
    """One living node of Ray's, and how much of each resource it has."""

    id: str
    ip: str
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """What Ray is to run: a command on its head node, in this environment, which its actors and tasks have too."""

    id: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""  # a URI that each node unpacks


class RayGateway(Protocol):
    """Every call ends within its own time limit, and raises RayTrouble or nothing."""

    async def submit(self, wish: Wish) -> None:
        """Afterwards there is a submission by this id: this one, or one that was there before."""

    async def jobs(self) -> dict[str, RayJob]:
        """All submissions that Ray remembers."""

    async def job(self, job_id: str) -> RayJob | None:
        """One submission, or None if Ray knows none by this id."""

    async def stop(self, job_id: str) -> None:
        """Asks Ray to end this submission, which takes a while."""

    async def said(self, job_id: str) -> str:
        """What this submission's command has printed."""

    async def tail(self, node: str, file: str, lines: int) -> str:
        """The last lines of a file among a node's logs; nothing if there is no such file."""

    async def nodes(self) -> list[RayNode]:
        """All nodes that live."""

    async def forget(self, job_id: str) -> None:
        """Ray need not remember this submission, which is over, any more."""

    async def close(self) -> None:
        """No more calls."""
