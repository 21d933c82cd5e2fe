"""What a response is worth, or what is replied to it, or why that is not known.

Invariant: only an outcome that is a score has one. Whatever was aborted, cut off or broken is never a zero.
"""

from dataclasses import dataclass
from enum import Enum

from rollmux.errors import RollmuxError

MOST = 1e9  # up or down; a larger score is a mistake, and nothing else would be learnt


class Status(Enum):
    """How scoring ended."""

    SCORE = "score"
    TIMEOUT = "timeout"  # the response's own work was cut off by a limit of time
    ERROR = "error"  # scoring failed: nothing is known about the response
    CANCELLED = "cancelled"


class NotScored(RollmuxError):
    """There is no score: whoever asks for one must first look at the status."""


@dataclass(frozen=True, slots=True)
class Reward:
    """`detail` says in words what led to the outcome. Times are those of the work, without the wait for a turn."""

    status: Status
    score: float | None = None
    detail: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.score is None) == (self.status is Status.SCORE):
            raise NotScored(f"{self.status.value} with score {self.score}: a score goes with SCORE, and only with it")

    @property
    def value(self) -> float:
        if self.score is None:
            told = f"{self.status.value} ({self.detail or 'no detail'})"
            raise NotScored(f"{told} is no score: drop the response, or requeue its prompt; don't train on a zero")
        return self.score


Message = dict[str, str]  # of a chat: its role, its content, and what belongs to these
Told = str | list[Message]  # a text does not say in which role it is said


@dataclass(frozen=True, slots=True)
class Reply:
    """What is replied to a response that may go on; None if it is over. `trouble`: why the reply is not known."""

    told: Told | None = None
    trouble: str = ""
