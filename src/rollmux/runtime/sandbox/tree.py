"""A process and all below it, as /proc shows them: what they use together, and their end.

Invariant: only descendants of the process that was named are killed.
"""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


@dataclass(frozen=True, slots=True)
class Usage:
    """How many processes live below the root, the CPU time of these and of the dead, and memory.

    `held_bytes` includes page tables and what is swapped out, and counts shared memory once for each process: quick to
    know, and never too little.
    """

    processes: int
    cpu_s: float
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU time of a process, and of children that it waited for. `began` tells it from others with its number."""

    began: int
    own: int
    credited: int

    @property
    def ticks(self) -> int:
        return self.own + self.credited


class Ledger:
    """What a tree takes, look by look.

    Invariant: no CPU time counts twice, and none that was seen is lost. The kernel credits the dead to whoever
    waits for them; if nobody does, as their parent ignores SIGCHLD, they count with what they had when last seen.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, _Spent] = {}
        self._lost = 0
        self._early = 0  # credited already, perhaps for processes that were not missed yet

    @property
    def lost_s(self) -> float:
        """CPU time of processes that died and were credited to nobody."""
        return self._lost * _TICK_S

    def look(self, most: int) -> Usage:
        """Looks at little more than `most` processes, so that it ends however fast they fork.

        Only processes count that still live when the last one is listed: so many did live at one moment. If those that
        came while others went were added, the sum would be more.
        """
        listed = dict.fromkeys([self._root, *descendants(self._root, most)])
        listed |= dict.fromkeys(pid for pid, spent in self._known.items() if pid not in listed and _lives(pid, spent))
        seen, held_bytes = dict[int, _Spent](), 0
        # Parents come before children: one that dies meanwhile and is credited counts once, or is left out this time.
        for pid in listed:
            with suppress(*_GONE):
                seen[pid] = _spent(pid)
                held_bytes += _held_bytes(pid)
        self._settle(listed, seen)
        ticks = self._lost + sum(spent.ticks for spent in seen.values())
        return Usage(len(seen.keys() - {self._root}), ticks * _TICK_S, held_bytes)

    def _settle(self, listed: Collection[int], seen: dict[int, _Spent]) -> None:
        """Counts processes that had gone when all were listed: they have been credited by now, or never will be."""
        known = self._known
        missed = sum(spent.ticks for pid, spent in known.items() if pid not in listed)
        leaving = {pid: known[pid] for pid in listed if pid in known and pid not in seen}
        same = [(known[pid], now) for pid, now in seen.items() if pid in known and known[pid].began == now.began]
        credited = self._early + sum(now.credited - before.credited for before, now in same)
        self._lost += max(0, missed - credited)
        self._early = min(max(0, credited - missed), sum(spent.ticks for spent in leaving.values()))
        self._known = seen | leaving


def _spent(pid: int) -> _Spent:
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return _Spent(int(words[19]), int(words[11]) + int(words[12]), int(words[13]) + int(words[14]))


def _lives(pid: int, spent: _Spent) -> bool:
    with suppress(*_GONE):
        return _spent(pid).began == spent.began
    return False


def memory_bytes(root: int) -> int:
    """The memory that the tree would give back: shared memory in part, and no memory of files. Takes a while."""
    return sum(map(_own_memory_bytes, [root, *descendants(root)]))


def sockets(pid: int) -> int:
    """How many sockets there are in a process's network namespace."""
    with suppress(*_GONE), open(f"/proc/{pid}/net/unix", "rb") as file:
        return sum(1 for _ in file) - 1
    return 0


def _own_memory_bytes(pid: int) -> int:
    with suppress(*_GONE):
        try:
            lines = (line.split() for line in _read(f"/proc/{pid}/smaps_rollup").splitlines())
            kib = [int(words[1]) for words in lines if words[0] in (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")]
            return 1024 * sum(kib) + _told_bytes(pid, b"VmPTE")
        except PermissionError:  # if this process may not look, all that is held counts
            return _held_bytes(pid)
    return 0


def _held_bytes(pid: int) -> int:
    """What a process keeps of the machine's memory, the kernel's tables and what it has had swapped out with it."""
    return _told_bytes(pid, b"VmRSS", b"VmSwap", b"VmPTE")


def _told_bytes(pid: int, *names: bytes) -> int:
    """What the kernel says of a process's memory. Page tables are the kernel's, and not part of what is resident: a
    process that reads a page here and there in a wide space has nothing else, and perhaps many times its limit of them.
    """
    text = _read(f"/proc/{pid}/status")
    lines = [b"\n%b:" % name for name in names]  # a process may have such a name, but only on the name's own line
    places = [at + len(line) for line in lines if (at := text.find(line)) >= 0]
    return 1024 * sum(int(text[at : text.index(b"kB", at)]) for at in places)


def descendants(root: int, most: int | None = None, spared: Collection[int] = ()) -> list[int]:
    """All processes below one, or the first somewhat more than `most`; without `spared` ones and what is below them."""
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
    """Kills all below a process. All are stopped first, so that none can start another while they are killed."""
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
        return b"".join(iter(partial(os.read, descriptor, 65536), b""))  # a long list comes in parts
    finally:
        os.close(descriptor)
