"""Processes as psutil shows them, on systems without Linux's /proc. Starts are in microseconds on the wall clock.

So the start alone tells processes of two boots apart.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from rollmux.service.local.process import Process

FOLDERS: tuple[str, ...] = (str(Path(psutil.__file__).parents[1]),)
_OVER = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def boot_id() -> str:
    return ""


def ticks() -> int:
    """Now, on the clock of starts."""
    return int(time.time() * 1e6)


def look(pid: int) -> Process | None:
    """The process that has this number now, if any."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            start, alive = round(process.create_time() * 1e6), process.status() not in _OVER
            return Process(pid, process.ppid(), os.getsid(pid), start, alive)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def everything() -> Iterator[Process]:
    for pid in psutil.pids():
        if (process := look(pid)) is not None:
            yield process


def environ(pid: int) -> bytes:
    """The variables that a process was started with, a zero after each; nothing if it is gone or another user's."""
    try:
        found = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return b""
    return "".join(f"{name}={value}\0" for name, value in found.items()).encode(errors="surrogateescape")
