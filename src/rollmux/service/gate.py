"""The gate of a bound socket: callers are let in by hand, so that a connection counts from its first moment on.

The event loop's own server counts one with TLS only once both ends have agreed on keys: strangers who connect and are
silent could take all files of the process. Invariant: whoever comes, files are left for the journal and for processes.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

# Which part of the files that this process may have open may be connections.
SHARE_OF_FILES = 0.75
# So many more are let in to be told that there is no room.
TOLD = 16
# How many may wait to be let in.
BACKLOG = 2048
# When to try again where the process, or the machine, has no file left for a guest.
AGAIN_S = 0.1
# The time between two lines in the log about connections for which there was no room.
COMPLAINT_S = 60.0

log = logging.getLogger("rollmux.service")


def most_connections(files: int) -> int:
    """The most connections of a process that may have so many open files."""
    return int((1 << 20 if files == resource.RLIM_INFINITY else files) * SHARE_OF_FILES)


MOST_CONNECTIONS = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class _Complaint:
    """One line in a while, however many connections come."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def __call__(self, now: float) -> None:
        if now >= self._not_before:
            self._not_before = now + COMPLAINT_S
            log.warning("no more than %d connections at a time: let it have more open files", MOST_CONNECTIONS)


complain = _Complaint()


class Gate:
    """Hands each guest to `meet`, from now until it is closed, in the event loop that runs.

    `inside` is how many are there already whom nobody meets any more. Where all together are too many, a guest is sent
    away without a word.
    """

    def __init__(
        self,
        at: socket.socket,
        meet: Callable[[socket.socket], Coroutine[Any, Any, None]],
        inside: Callable[[], int] = lambda: 0,
    ) -> None:
        self._at, self._meet, self._inside = at, meet, inside
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._guests = set[asyncio.Task[None]]()
        at.setblocking(False)
        at.listen(BACKLOG)
        self._open()

    def close(self) -> None:
        """Lets nobody in any more."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._at)

    async def wait_closed(self, patience_s: float = 0.0) -> None:
        """Waits for those who are being met, and sends away those for whom that takes too long."""
        until = self._loop.time() + patience_s
        while self._guests:
            _, silent = await asyncio.wait(self._guests, timeout=max(0.0, until - self._loop.time()))
            for task in silent:
                task.cancel()
            await asyncio.gather(*silent, return_exceptions=True)

    def _open(self) -> None:
        self._loop.add_reader(self._at, self._let_in)

    def _let_in(self) -> None:
        try:
            guest, _ = self._at.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # it is gone again
            return
        except OSError:  # no file is left, and this would be called for nothing, on and on
            self._loop.remove_reader(self._at)
            self._again = self._loop.call_later(AGAIN_S, self._open)
            return
        if len(self._guests) + self._inside() >= MOST_CONNECTIONS + TOLD:
            complain(self._loop.time())
            guest.close()
            return
        guest.setblocking(False)
        meeting = self._loop.create_task(self._meet(guest))
        self._guests.add(meeting)
        meeting.add_done_callback(self._guests.discard)
