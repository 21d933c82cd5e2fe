"""A process and all below it, as /proc shows them: what they use together, and their end.

Invariant: nothing is killed but what descends from the process that was named.
"""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE = (FileNotFoundError, ProcessLookupError)
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


@dataclass(frozen=True, slots=True)
class Usage:
    """How many live below the root, CPU time of them and of those they waited for, and memory.

    `resident_bytes` counts what processes share once for each of them: it is quick to know, and never too little.
    """

    processes: int
    cpu_s: float
    resident_bytes: int


def usage(root: int, most: int) -> Usage:
    """Looks no further than so many processes, so that it ends however fast they fork.

    Only those count that still live when the last is listed, for so many lived at one moment: those that come while
    others go would add up to more.
    """
    cpu_ticks, pages, alive = 0, 0, 0
    for pid in {root, *descendants(root, most)}:
        with suppress(*_GONE):
            words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            alive += pid != root
            cpu_ticks += sum(map(int, words[11:15]))
            pages += int(_read(f"/proc/{pid}/statm").split()[1])
    return Usage(alive, cpu_ticks * _TICK_S, pages * _PAGE_BYTES)


def memory_bytes(root: int) -> int:
    """What the processes would give back: what is shared counts in part, what lies in files does not. Takes a while."""
    return sum(map(_own_memory_bytes, [root, *descendants(root)]))


def sockets(pid: int) -> int:
    """How many there are in a process's network namespace."""
    with suppress(*_GONE), open(f"/proc/{pid}/net/unix", "rb") as file:
        return sum(1 for _ in file) - 1
    return 0


def _own_memory_bytes(pid: int) -> int:
    try:
        lines = (line.split() for line in _read(f"/proc/{pid}/smaps_rollup").splitlines())
        kib = [int(words[1]) for words in lines if words[0] in (b"Pss_Anon:", b"Pss_Shmem:")]
        return 1024 * sum(kib)
    except _GONE:
        return 0
    except PermissionError:  # not ours to look into: then all that is resident counts
        return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES


def descendants(root: int, most: int | None = None, spared: Collection[int] = ()) -> list[int]:
    """All below a process, or somewhat more than so many of them; nothing of those that are spared."""
    found, parents = list[int](), [root]
    listed = None if _KERNEL_LISTS_CHILDREN else _everybody()
    while parents and (most is None or len(found) <= most):
        parent = parents.pop()
        children = _children(parent) if listed is None else listed.get(parent, [])
        below = [pid for pid in children if pid not in spared]
        found += below
        parents += below
    return found


def _children(pid: int) -> Iterator[int]:
    with suppress(*_GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(*_GONE):
                yield from map(int, _read(f"/proc/{pid}/task/{task}/children").split())


def _everybody() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(*_GONE):
            parent = int(_read(f"/proc/{name}/stat").rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    return children


def kill_below(root: int, spared: Collection[int] = ()) -> None:
    """Ends all that descends from a process; none is left that could start another when the first is killed."""
    stopped = set[int]()
    while fresh := set(descendants(root, spared=spared)) - stopped:
        _send(fresh, signal.SIGSTOP)
        stopped |= fresh
    _send(stopped, signal.SIGKILL)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
