"""What each operating system has in its own way: only this module asks which system it runs on.

Where a system lacks something, the next best that is as safe stands in for it. Where nothing is as safe, the code that
needs it refuses and says why. Nothing is looked for before it is needed: planning needs none of it.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

# Only Linux has the sandbox's walls, and limits on a process's cores and memory. Nothing can stand in for them.
IS_LINUX = sys.platform == "linux"
# The most files that one process may open on a system that sets no limit (OPEN_MAX of macOS).
MOST_FILES = 10_240
_ZEROS = bytes(1 << 20)


def cores() -> int:
    """How many cores this process may use; where the system does not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """The most memory that this process has had."""
    import resource  # noqa: PLC0415  not each system has it

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_bytes() -> tuple[int, int]:
    """The bytes of memory that could be had on this machine now, and all that it has. OSError: it does not say."""
    if IS_LINUX:
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024
    import psutil  # noqa: PLC0415  installed where it is needed

    found = psutil.virtual_memory()
    return found.available, found.total


def group_bytes(group: str = "/sys/fs/cgroup") -> tuple[int, int] | None:
    """The bytes of memory that this process's control group allows (a container's group, as seen from within), and how
    many of them are used, without pages of files that nobody needs; None where there is no limit.
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
    """Whether this process got the file's lock within `patience_s`. A process that ends, in any way, frees its lock."""
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
    """Frees a lock and closes its file, even if a child that was forked meanwhile has the file open too."""
    import fcntl  # noqa: PLC0415  as above

    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def since_boot_s() -> float:
    """Seconds on a clock that never stands still, not even while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def loopback() -> str:
    """The interface by which processes of one machine reach each other."""
    import socket  # noqa: PLC0415  keepers don't need it

    return "lo" if "lo" in [name for _, name in socket.if_nameindex()] else "lo0"


def take_room(file: int, nbytes: int) -> None:
    """Reserves `nbytes` for a new file, so that a full disk is an error here, and no SIGBUS later."""
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
    """How many files a process with this hard limit may have open: no system allows infinitely many."""
    import resource  # noqa: PLC0415  not each system has it

    return MOST_FILES if hard == resource.RLIM_INFINITY else hard


class Watched:
    """This very process, even if another one gets its number later. ProcessLookupError: no process has this number.

    The descriptor becomes readable when the process ends. Systems without descriptors of processes have a queue of
    events. There a signal is still sent to a number, but no other process gets the number before the end is seen here.
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
        """Whether the process has ended; waits for its end, at most `patience_s`."""
        ended = select.poll()
        ended.register(self.fileno(), select.POLLIN)
        return bool(ended.poll(None if patience_s is None else patience_s * 1000))

    def send(self, number: int) -> None:
        """Sends a signal. ProcessLookupError: the process has ended."""
        if self._file is not None:
            signal.pidfd_send_signal(self._file, number)
        elif self.wait(0.0):
            raise ProcessLookupError(f"process {self.pid} has ended")
        else:
            os.kill(self.pid, number)

    def reap(self) -> None:
        """Removes what is left of a process that has ended, if it is a child of this one."""
        with suppress(ChildProcessError):  # another process's child
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
        os.kill(pid, 0)  # the number is in use: a process that has ended, but was not reaped yet, has no events
        ended, nobody = os.pipe()
        os.close(nobody)
        return open(ended, "rb", buffering=0)
    return queue
