"""How a script ends that calls `sys.exit`: Python tells nobody the code, not even those that it calls at the end.

Of an error it does tell, but interactive sessions, a notebook's among them, outlive errors of which it tells the same.
"""

import sys
from threading import current_thread, main_thread
from typing import Any

from rollmux.client.errors import reason_of


def failed_by(code: object) -> str:
    """Why a script has failed that ended with this code; nothing where it has not."""
    if code is None or code == 0:
        return ""
    return f"it ended with exit code {code}" if isinstance(code, int) else str(code)


class Exit:
    """Hears of `sys.exit` while it watches. `failed` is what the latest call says of the script's end."""

    def __init__(self) -> None:
        self.failed = ""
        self._before: Any = None
        self._outlived: Any = None  # an error that did not end the script

    @property
    def reason(self) -> str:
        """Why the script has failed, where it has, once it ends."""
        error = _latest_error()
        return self.failed if error is None or error is self._outlived else reason_of(error)

    def is_overruled(self) -> None:
        """The script goes on, whoever was to end it; an interactive session also whatever was."""
        self.failed = ""
        if hasattr(sys, "ps1"):  # else its other threads may go on a little, while it ends
            self._outlived = _latest_error()

    def watch(self) -> None:
        self.is_overruled()
        self._before, sys.exit = sys.exit, self._called  # type: ignore[assignment]  # it does end, by what was before

    def ignore(self) -> None:
        """As it was, unless somebody else watches since."""
        if sys.exit == self._called:
            sys.exit = self._before

    def _called(self, code: object = None) -> None:
        if current_thread() is main_thread():
            self.failed = failed_by(code)
        self._before(code)


def _latest_error() -> Any:
    return getattr(sys, "last_value", None)
