"""How a script ends that calls `sys.exit`: Python tells nobody the exit code, not even functions of `atexit`.

Python does tell the error that ends a script, but in the same way the errors that an interactive session (a notebook,
say) outlives.
"""

import sys
from threading import current_thread, main_thread
from typing import Any

from rollmux.client.errors import reason_of


def failed_by(code: object) -> str:
    """Why a script that ended with this code has failed; empty if it has not."""
    if code is None or code == 0:
        return ""
    return f"it ended with exit code {code}" if isinstance(code, int) else str(code)


class Exit:
    """Notes calls of `sys.exit` between `watch` and `ignore`. `failed` is the reason that the latest call gives."""

    def __init__(self) -> None:
        self.failed = ""
        self._before: Any = None
        self._outlived: Any = None  # an error that did not end the script

    @property
    def reason(self) -> str:
        """Asked at the script's end: why the script has failed; empty if it has not."""
        error = _latest_error()
        return self.failed if error is None or error is self._outlived else reason_of(error)

    def is_overruled(self) -> None:
        """The script goes on in spite of a call of `sys.exit`; an interactive session also in spite of an error."""
        self.failed = ""
        if hasattr(sys, "ps1"):  # else the error ends the script, and only its threads come here
            self._outlived = _latest_error()

    def watch(self) -> None:
        self.is_overruled()
        self._before, sys.exit = sys.exit, self._called  # type: ignore[assignment]  # it ends by the former sys.exit

    def ignore(self) -> None:
        """Puts the former `sys.exit` back, unless somebody else has replaced it since."""
        if sys.exit == self._called:
            sys.exit = self._before

    def _called(self, code: object = None) -> None:
        if current_thread() is main_thread():
            self.failed = failed_by(code)
        self._before(code)


def _latest_error() -> Any:
    return getattr(sys, "last_value", None)
