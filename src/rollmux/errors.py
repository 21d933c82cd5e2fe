"""Every error that RollMux raises on purpose.

RollmuxError
├── InvalidSpec         a cluster or a job is described wrongly; carries every problem found
├── IllegalEvent        an event that the present state does not allow; nothing was changed
└── InvariantViolated   a numbered promise would be broken; nothing was changed
"""

from dataclasses import dataclass
from reprlib import Repr


class RollmuxError(Exception):
    """Root of the tree: catch this to catch all of ours."""


class _Shown(Repr):
    """What somebody wrote, cut to a length that fits a message."""

    def repr_int(self, x: int, level: int) -> str:
        return f"a whole number of {x.bit_length()} bits" if x.bit_length() > 256 else repr(x)


_shown = _Shown()
_shown.maxstring = _shown.maxother = 120


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a description: where, what, the limit, and what to do."""

    path: str
    value: object
    limit: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} = {_shown.repr(self.value)}: must be {self.limit}; {self.remedy}"


class InvalidSpec(RollmuxError):
    """A description that can't be accepted, with all its problems at once."""

    def __init__(self, subject: str, problems: tuple[Problem, ...]) -> None:
        self.subject = subject
        self.problems = problems
        count = len(problems)
        head = f"{subject} has {count} problem{'s' if count != 1 else ''}:"
        super().__init__("\n  ".join([head, *map(str, problems)]))

    def __reduce__(self) -> tuple[object, ...]:
        return InvalidSpec, (self.subject, self.problems)  # so that it can go from process to process


class IllegalEvent(RollmuxError):
    """An event that the state machine does not allow now. The state is as it was."""


class InvariantViolated(RollmuxError):
    """A promise with a number (docs/design/weave.md lists them) does not hold, or would not hold after a plan."""

    def __init__(self, number: str, what: str) -> None:
        self.number, self.what = number, what
        super().__init__(f"{number}: {what}")

    def __reduce__(self) -> tuple[object, ...]:
        return InvariantViolated, (self.number, self.what)
