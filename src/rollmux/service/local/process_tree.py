"""Processes as /proc shows them: who descends from whom, and whether one is still the one that was meant.

A number alone is never trusted. A process is its number, its start and the boot of its machine: no signal from here can
reach a stranger that was given the number later. Loaded by every keeper, so it imports next to nothing.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

# The answers of pidfd_open where there is no such process, or a mere thread of another under its number.
_NOT_THERE = (errno.ESRCH, errno.EINVAL, errno.ENOENT)


class Process(NamedTuple):
    """What /proc says of a process. `start` is in clock ticks since the boot."""

    pid: int
    parent: int
    session: int
    start: int
    alive: bool


class Identity(NamedTuple):
    """A keeper for ever: `marker` is what the processes below it have in their environment."""

    pid: int
    start: int
    boot: str
    marker: str

    def open(self) -> int | None:
        """A descriptor that becomes readable when this process ends, or None if it has ended."""
        if self.boot != boot_id():
            return None
        return _open(self.pid, self.start)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def ticks() -> int:
    """Now, on the clock of starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def look(pid: int) -> Process | None:
    """What is there under this number now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A first thread that has ended looks like a zombie, even where others of its process run on.
    alive = words[0] not in (b"Z", b"X") or int(words[17]) > 1
    return Process(pid, int(words[1]), int(words[3]), int(words[19]), alive)


def everything() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := look(int(name))) is not None:
            yield process


def descendants(root: int, among: Iterable[Process] | None = None) -> list[Process]:
    """All that live below a process, whatever session or group they have made for themselves."""
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
    """What lives on after keepers, in one look at all that runs. A keeper that has left nothing is not in it."""
    boot = boot_id()
    here = [keeper for keeper in keepers if keeper.boot == boot]
    seen = list(everything()) if here else []
    now, environ = {process.pid: process for process in seen}, cache(_environ)
    found = {keeper: _left_by(keeper, now, environ) for keeper in here}
    return {keeper: left for keeper, left in found.items() if left}


def _left_by(keeper: Identity, now: Mapping[int, Process], environ: Callable[[int], bytes]) -> list[Process]:
    """By its session, by the marker, and all below those."""
    marker = keeper.marker.encode()
    # While anybody is in a session its number is not given away, but afterwards it may be.
    ours = keeper.pid not in now or now[keeper.pid].start == keeper.start
    found: dict[int, Process] = {}
    for process in now.values():
        in_session = ours and process.session == keeper.pid and process.start >= keeper.start
        if process.alive and process.pid != keeper.pid and (in_session or marker in environ(process.pid)):
            found[process.pid] = process
            found.update({each.pid: each for each in descendants(process.pid, now.values())})
    return list(found.values())


def send(process: Process, number: int) -> None:
    """A signal to this very process, if it is still there."""
    descriptor = _open(process.pid, process.start)
    if descriptor is not None:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)
        os.close(descriptor)


def _open(pid: int, start: int) -> int | None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    process = look(pid)  # looked at only now: from here on the descriptor and the number mean the same
    if process is not None and process.start == start and process.alive:
        return descriptor
    os.close(descriptor)
    return None


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:  # gone, or somebody else's
        return b""
