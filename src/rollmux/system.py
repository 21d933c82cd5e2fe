"""What operating systems have each in their own way: it is asked here, and no other module asks which one this is.

Where a system has nothing of a kind, the next best that is as safe stands in for it; where nothing is, what needs it
refuses in words. It is looked for when it is wanted, not when this is loaded: planning needs none of it.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

# What only Linux has, and nothing can stand in for: the sandbox's walls, cores and memory that processes are held to.
IS_LINUX = sys.platform == "linux"
# As much as a system without a limit of its own takes for one process (OPEN_MAX of macOS).
MOST_FILES = 10_240
_ZEROS = bytes(1 << 20)


def cores() -> int:
    """Those that this process may use; all of them where that can't be told."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """The most memory that this process has had."""
    import resource  # noqa: PLC0415  not each system has it

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_bytes() -> tuple[int, int]:
    """What could be had of the machine's memory now, and all of it. OSError: it does not say."""
    if IS_LINUX:
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024
    import psutil  # noqa: PLC0415  installed where it is needed

    found = psutil.virtual_memory()
    return found.available, found.total


def group_bytes(group: str = "/sys/fs/cgroup") -> tuple[int, int] | None:
    """What the control group of this process, as a container's is seen from within, allows, and what of it is used but
    for pages of files that nobody needs; None where it allows all.
    """
    try:
        most, used, parts = (_text(f"{group}/memory.{name}") for name in ("max", "current", "stat"))
        spare = dict(line.split() for line in parts.splitlines()).get("inactive_file", 0)
        return int(most), int(used) - int(spare)
    except (OSError, ValueError):
        return None


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def took_lock(file: int, patience_s: float = 0.0, pause_s: float = 0.0, *, shared: bool = False) -> bool:
    """Whether a file's lock was to be had within so long. It goes with the process that has it, however that ends."""
    import fcntl  # noqa: PLC0415  not each system has it

    until = time.monotonic() + patience_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(pause_s)


def let_go(file: int) -> None:
    """Of a lock and its file, though a child that was forked meanwhile has that open too."""
    import fcntl  # noqa: PLC0415  as above

    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def since_boot_s() -> float:
    """On a clock that stands still for nothing, sleep of the machine included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def loopback() -> str:
    """The interface by which processes of one machine reach each other."""
    import socket  # noqa: PLC0415  keepers do without

    return "lo" if "lo" in [name for _, name in socket.if_nameindex()] else "lo0"


def take_room(file: int, nbytes: int) -> None:
    """So many bytes for a file that is new: a full disk is an error here, and no SIGBUS later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
        return
    at = 0
    while at < nbytes:
        at += os.pwrite(file, _ZEROS[: nbytes - at], at)


def without_name(what: str) -> int:
    """A descriptor of a file that nobody can open by its name: in memory, where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(what)
    from tempfile import TemporaryFile  # noqa: PLC0415  takes as long to load as all else

    with TemporaryFile(prefix=what) as file:
        return os.dup(file.fileno())


def all_files(hard: int) -> int:
    """As many as a process with this limit may have open: no system has files without end."""
    import resource  # noqa: PLC0415  not each system has it

    return MOST_FILES if hard == resource.RLIM_INFINITY else hard


class Watched:
    """A process, this very one, whatever becomes of its number. ProcessLookupError: there is none of this number.

    Its descriptor becomes readable when it ends. Systems without descriptors of processes have a queue of events; there
    a signal is still sent to a number, which is given away no sooner than its end can be seen here.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._queue: Any = None
        self._file: int | None = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        if self._file is None:
            self._queue = _queue_of(pid)

    def fileno(self) -> int:
        return int(self._queue.fileno()) if self._file is None else self._file

    def wait(self, patience_s: float | None = None) -> bool:
        """Whether it has ended, at the latest after so long."""
        ended = select.poll()
        ended.register(self.fileno(), select.POLLIN)
        return bool(ended.poll(None if patience_s is None else patience_s * 1000))

    def send(self, number: int) -> None:
        """ProcessLookupError: it has ended."""
        if self._file is not None:
            signal.pidfd_send_signal(self._file, number)
        elif self.wait(0.0):
            raise ProcessLookupError(f"process {self.pid} has ended")
        else:
            os.kill(self.pid, number)

    def reap(self) -> None:
        """Once it has ended: where it is a child of this process, nothing is left of it."""
        with suppress(ChildProcessError):  # somebody else's
            if self._file is not None:
                os.waitid(os.P_PIDFD, self._file, os.WEXITED | os.WNOHANG)
            else:
                os.waitpid(self.pid, 0)  # a queue tells of an end a moment before there is something to reap

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        else:
            self._queue.close()


def _queue_of(pid: int) -> Any:
    events: Any = select
    queue = events.kqueue()
    ends = events.kevent(pid, events.KQ_FILTER_PROC, events.KQ_EV_ADD, events.KQ_NOTE_EXIT)
    try:
        queue.control([ends], 0)
    except ProcessLookupError:
        queue.close()
        os.kill(pid, 0)  # it is there: one that has ended, and was not reaped yet, has no events
        ended, nobody = os.pipe()
        os.close(nobody)
        return open(ended, "rb", buffering=0)
    return queue
