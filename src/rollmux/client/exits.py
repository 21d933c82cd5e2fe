"""How a script ends that calls `sys.exit`: Python tells nobody the code, not even those that it calls at the end."""

import sys
from threading import current_thread, main_thread
from typing import Any


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

    def watch(self) -> None:
        self._before, sys.exit = sys.exit, self._called  # type: ignore[assignment]  # it does end, by what was before

    def ignore(self) -> None:
        """As it was, unless somebody else watches since."""
        if sys.exit == self._called:
            sys.exit = self._before

    def _called(self, code: object = None) -> None:
        if current_thread() is main_thread():
            self.failed = failed_by(code)
        self._before(code)
