"""Work on a copy of the whole process, as it is at this instant, while the process itself goes on.

For work that takes a tenth of a second and must see one state: the copy is made in milliseconds, whatever it then does.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable

from rollmux.errors import RollmuxError


class CopyFailed(RollmuxError):
    """The copy ended without a result."""


class Forked:
    """One piece of work, begun when this is made. It must not touch files, sockets or locks of the process."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._from, to = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._from)
            raise
        else:
            if self._pid == 0:
                _run(work, to)
        finally:
            os.close(to)

    async def result(self) -> bytes:
        """What the work returned."""
        loop = asyncio.get_running_loop()
        content, status = await loop.run_in_executor(None, self._collect)
        if status != 0:
            raise CopyFailed(f"a copy of the controller ended with {status} instead of a result")
        return content

    def _collect(self) -> tuple[bytes, int]:
        with open(self._from, "rb") as pipe:
            content = pipe.read()
        return content, os.waitpid(self._pid, 0)[1]


def _run(work: Callable[[], bytes], to: int) -> None:
    """In the copy: never returns, and leaves nothing to be cleaned up twice."""
    status = 1
    try:
        gc.disable()
        # If this copy kept the process's end of the pipe open, it would write to nobody for ever once the process is
        # killed; if it kept the socket open, no other process could take the controller's place.
        os.closerange(3, to)
        os.closerange(to + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(19)  # the process itself is not to wait for its copy
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with open(to, "wb") as pipe:
            pipe.write(work())
        status = 0
    finally:
        os._exit(status)
