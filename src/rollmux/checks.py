"""Reading a description critically: every problem at once, each with its path, value, limit and remedy.

Nothing enters the state of either tier without passing through checks like these.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches

from rollmux.errors import InvalidSpec, Problem

MAX_COUNT = 10**15
MAX_SECONDS = 1e9


def one_of(known: Collection[str], name: object) -> tuple[str, str]:
    """Limit and remedy for a name that is not one of the known names."""
    nearest = get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
    return f"one of {', '.join(known)}", f"the nearest is {nearest}"


@dataclass(slots=True)
class Checks:
    """Collects all problems of one description."""

    subject: str
    problems: list[Problem] = field(default_factory=list)

    def report(self, name: str, value: object, limit: str, remedy: str) -> None:
        self.problems.append(Problem(f"{self.subject}.{name}", value, limit, remedy))

    def number(self, name: str, value: object, low: float, high: float, remedy: str) -> bool:
        """Whether the value is a finite number in [low, high]; booleans and strings are not numbers."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return True
        self.report(name, value, f"a number from {low:g} to {high:g}", remedy)
        return False

    def whole(self, name: str, value: object, low: int, high: int, remedy: str) -> bool:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return True
        self.report(name, value, f"a whole number from {low} to {high}", remedy)
        return False

    def keys(self, found: Collection[str], expected: Collection[str]) -> bool:
        """Whether exactly the expected names were found; each unknown and each missing name is reported."""
        for name in sorted(set(found) - set(expected)):
            near = get_close_matches(name, expected, 1)
            self.report(name, name, "a known name", f"did you mean {near[0]!r}?" if near else "leave it out")
        for name in sorted(set(expected) - set(found)):
            self.report(name, None, "present", "restore from what state() gave")
        return set(found) == set(expected)

    def refusal(self, name: str, value: object, limit: str, remedy: str) -> InvalidSpec:
        """The error to raise at once, for a problem that makes it pointless to look for more."""
        self.report(name, value, limit, remedy)
        return InvalidSpec(self.subject, tuple(self.problems))

    def require(self) -> None:
        if self.problems:
            raise InvalidSpec(self.subject, tuple(self.problems))
