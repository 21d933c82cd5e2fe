"""Sees failures that a library catches and says nothing about.

Invariant: while it watches, no allocation, import or read fails unseen, however deep inside the failure is caught. If
the watching itself could not go on, that counts as a failure too.
"""

import sys
from types import FrameType
from typing import Any, Self


class Swallowed:
    """`with Swallowed() as seen:` and then `seen.failure`, in words, or None. Takes two to three times as long."""

    def __init__(self) -> None:
        self.failure: str | None = None

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        went_on = sys.gettrace() == self._called
        sys.settrace(None)
        if not went_on and self.failure is None:
            self.failure = "nothing could be watched any more: memory or stack ran out"

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        return self._happened

    def _happened(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and self.failure is None and _of_the_machine(argument[1]):
            self.failure = f"{argument[0].__name__}: {argument[1]}"[:200]
        return self._happened


def _of_the_machine(error: object) -> bool:
    """Whether an error is the machine's. Missing files, and packages that a library can do without, are no failure."""
    match error:
        case ImportError(name=str(name)):
            return name.partition(".")[0] in sys.modules
        case FileNotFoundError() | NotADirectoryError():
            return False
        case MemoryError() | OSError():
            return True
        case _:
            return False
