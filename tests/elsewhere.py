"""Makes this Linux look like a system that has less: what others lack is taken away, and a queue watches processes.

What tests with it can't show is that such a system means by its names what is meant here.
"""

import mmap
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rollmux import system

LACKING: dict[ModuleType, Sequence[str]] = {
    os: ("memfd_create", "pidfd_open", "pipe2", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "waitid"),
    signal: ("SIGRTMAX", "SIGRTMIN", "pidfd_send_signal"),
    socket: ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
    mmap: ("MAP_POPULATE",),
    time: ("CLOCK_BOOTTIME",),
}
_open, _limits, _limit = os.pidfd_open, resource.getrlimit, resource.setrlimit


class Queue:
    """As much of a kqueue as is used: of one process, which has events only while it runs."""

    def __init__(self) -> None:
        self._file = -1

    def control(self, wanted: Sequence[int], most: int) -> None:
        assert most == 0, "what is taken from the queue would be seen by nobody else"
        (pid,) = wanted
        self._file = _open(pid)
        ended = select.poll()
        ended.register(self._file, select.POLLIN)
        if ended.poll(0):
            self.close()
            raise ProcessLookupError(pid)

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _event(pid: int, kind: int, how: int, what: int) -> int:
    assert (kind, how, what) == (-5, 1, 0x8000_0000)
    return pid


QUEUES = {"kqueue": Queue, "kevent": _event, "KQ_FILTER_PROC": -5, "KQ_EV_ADD": 1, "KQ_NOTE_EXIT": 0x8000_0000}


def getrlimit(kind: int) -> tuple[int, int]:
    soft, hard = _limits(kind)
    return soft, resource.RLIM_INFINITY if kind == resource.RLIMIT_NOFILE else hard


def setrlimit(kind: int, limits: tuple[int, int]) -> None:
    """Files may be allowed without end, and not be asked for without end."""
    if kind == resource.RLIMIT_NOFILE and limits[0] == resource.RLIM_INFINITY:
        raise ValueError("current limit exceeds maximum limit")
    hard = _limits(kind)[1] if kind == resource.RLIMIT_NOFILE else limits[1]
    _limit(kind, (min(limits[0], hard) if hard != resource.RLIM_INFINITY else limits[0], hard))


def _give(module: ModuleType, name: str, value: object) -> None:
    setattr(module, name, value)


def be_elsewhere(
    delete: Callable[[Any, str], None] = delattr, give: Callable[[Any, str, object], None] = _give
) -> None:
    """For this process; with a monkeypatch's means for one test."""
    give(system, "IS_LINUX", False)
    for module, names in LACKING.items():
        for name in names:
            if hasattr(module, name):
                delete(module, name)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on it asks what is gone
        give(os, "process_cpu_count", os.cpu_count)
    for name, value in QUEUES.items():
        give(select, name, value)
    for function in (getrlimit, setrlimit):
        give(resource, function.__name__, function)
