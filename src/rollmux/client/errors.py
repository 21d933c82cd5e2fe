"""What can go wrong between a job and the controller.

RollmuxError
├── LeaseLost          the phase was done without a lease: its result does not count, and it is to be done again
├── Stopped            the controller wants the job to end
├── Unreachable        there has been no answer for as long as the job cares to wait
├── AlreadyCommitted   the phase that was asked for is done: its iteration was given, and is over
└── CallRefused        the controller said no, and a repeat would not help
"""

from rollmux.errors import RollmuxError
from rollmux.protocol.messages import MOST_REASON


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def sendable(reason: str) -> str:
    """The part of a reason that fits a message: errors may be longer than a call, and may name files in bytes."""
    return reason[:MOST_REASON].encode(errors="backslashreplace").decode()


class LeaseLost(RollmuxError):
    """The phase ended without its lease. Undo what it did, and enter the phase again."""


class Stopped(RollmuxError):
    """The job is to end here: it was cancelled, or goes on elsewhere from its last synced iteration."""


class Unreachable(RollmuxError):
    """The controller has not answered for too long."""


class AlreadyCommitted(RollmuxError):
    """The phase is committed: go on with the next iteration."""


class CallRefused(RollmuxError):
    """The controller's own words, with the HTTP status and all problems that it found."""

    def __init__(self, status: int, error: str, problems: tuple[str, ...] = ()) -> None:
        self.status, self.error, self.problems = status, error, problems
        super().__init__("\n  ".join([error, *problems]))

    def __reduce__(self) -> tuple[object, ...]:
        return CallRefused, (self.status, self.error, self.problems)
