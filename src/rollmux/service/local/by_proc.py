"""Processes as Linux's /proc shows them. Starts are in clock ticks since the boot."""

import os
import time
from collections.abc import Iterator

from rollmux.service.local.process import Process

# The folders in which a keeper finds what this module imports.
FOLDERS: tuple[str, ...] = ()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def ticks() -> int:
    """Now, on the clock of starts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def look(pid: int) -> Process | None:
    """The process that has this number now, if any."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: of another user, with `hidepid=1`
        return None
    # A process whose first thread has ended looks like a zombie, even if its other threads run on.
    alive = words[0] not in (b"Z", b"X") or int(words[17]) > 1
    return Process(pid, int(words[1]), int(words[3]), int(words[19]), alive)


def everything() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := look(int(name))) is not None:
            yield process


def environ(pid: int) -> bytes:
    """The variables that a process was started with, a zero after each; nothing if it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
