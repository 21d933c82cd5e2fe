"""Processes of this machine: who descends from whom, and whether one is still the one that was meant.

A number alone is never trusted. A process is known by its number, its start and the boot of its machine: no signal from
here can reach a stranger that was given the number later. Every keeper loads this module, so it imports next to
nothing.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from rollmux import system
from rollmux.service.local.process import Process
from rollmux.system import Watched

if system.IS_LINUX:
    from rollmux.service.local.by_proc import FOLDERS, boot_id, environ, everything, look, ticks
else:
    from rollmux.service.local.by_psutil import FOLDERS, boot_id, environ, everything, look, ticks

__all__ = [
    "FOLDERS",
    "Identity",
    "Process",
    "boot_id",
    "descendants",
    "environ",
    "everything",
    "leftovers",
    "look",
    "send",
    "ticks",
]

# The errors of pidfd_open if there is no such process, or if the number is that of a mere thread of another process.
_NOT_THERE = (errno.ESRCH, errno.EINVAL, errno.ENOENT)


class Identity(NamedTuple):
    """Tells a keeper from all other processes, for ever. The processes below it have `marker` in their environment."""

    pid: int
    start: int
    boot: str
    marker: str

    def open(self) -> Watched | None:
        """This process, to be watched, or None if it has ended."""
        if self.boot != boot_id():
            return None
        return _open(self.pid, self.start)


def descendants(root: int, among: Iterable[Process] | None = None) -> list[Process]:
    """All processes that live below this one, whatever session or group they have made for themselves."""
    children: dict[int, list[Process]] = {}
    for process in everything() if among is None else among:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [root]
    while parents:
        below = children.pop(parents.pop(), [])
        found += below
        parents += [process.pid for process in below]
    return [process for process in found if process.alive]


def leftovers(keepers: Collection[Identity]) -> dict[Identity, list[Process]]:
    """The processes that live on after keepers, in one look at all that run. A keeper that left none is not in it."""
    boot = boot_id()
    here = [keeper for keeper in keepers if keeper.boot == boot]
    seen = list(everything()) if here else []
    now, environ_of = {process.pid: process for process in seen}, cache(environ)
    found = {keeper: _left_by(keeper, now, environ_of) for keeper in here}
    return {keeper: left for keeper, left in found.items() if left}


def _left_by(keeper: Identity, now: Mapping[int, Process], environ_of: Callable[[int], bytes]) -> list[Process]:
    """Processes of the keeper's session or with its marker, and all below those."""
    marker = keeper.marker.encode()
    # While a process is in a session, the session's number is not given away, but afterwards it may be.
    ours = keeper.pid not in now or now[keeper.pid].start == keeper.start
    found: dict[int, Process] = {}
    for process in now.values():
        in_session = ours and process.session == keeper.pid and process.start >= keeper.start
        if process.alive and process.pid != keeper.pid and (in_session or marker in environ_of(process.pid)):
            found[process.pid] = process
            found.update({each.pid: each for each in descendants(process.pid, now.values())})
    return list(found.values())


def send(process: Process, number: int) -> None:
    """Sends a signal to this very process, if it is still there."""
    watched = _open(process.pid, process.start)
    if watched is not None:
        with suppress(ProcessLookupError, PermissionError):
            watched.send(number)
        watched.close()


def _open(pid: int, start: int) -> Watched | None:
    try:
        watched = Watched(pid)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    process = look(pid)  # only now: from here on `watched` and the number mean the same process
    if process is not None and process.start == start and process.alive:
        return watched
    watched.close()
    return None
