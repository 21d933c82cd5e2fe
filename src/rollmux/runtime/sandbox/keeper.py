"""The outer half of a run: a process that starts the tree, watches it, ends it, and says how it ended.

Invariant: when the answer leaves, or when nobody waits for it any more, no process of the tree is left. Once the
program has started, no end counts as the sandbox's fault: a program can't turn its failure into somebody else's.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rollmux.runtime.sandbox import inside, kernel, tree
from rollmux.runtime.sandbox.inside import Ends, Job, Place
from rollmux.runtime.sandbox.outcome import Cause, Ended
from rollmux.runtime.sandbox.probe import NOBODY, become_somebody
from rollmux.runtime.sandbox.protections import Mechanism

# Memory grows by at most some GB/s for each core: within the longer interval by less than matters for a limit.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.05
# A full socket's memory in the kernel, for which no process is charged: measured 0.2 to 0.5 MB.
_SOCKET_BYTES = 1 << 19
_AGAIN_S = 0.005  # between two attempts to end a tree that keeps forking
_PART_BYTES = 1 << 16
_SETUP_S = 20.0  # the time that the inner half may take to put the protections on


@dataclass(slots=True)
class _Seen:
    """What has come out of the tree so far."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    told: bytearray = field(default_factory=bytearray)
    processes: int = 0
    cpu_s: float = 0.0
    memory_bytes: int = 0


class Keeper:
    """Keeps one run, from its place, which is made in advance, to its answer."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._enter()
        self._seen = _Seen()
        self._poll = select.poll()
        self._running = False
        self._start()

    def run(self, job: Job, stdin: bytes, owner: socket.socket, channel: int | None) -> Ended | None:
        """Runs a job and returns how it ended. None: the owner has gone away, and the tree was ended."""
        self.job, self._owner, self._left = job, owner, memoryview(stdin)
        self._begin(channel)
        cause = self._watch()
        wall_s = time.monotonic() - self._started_s
        self._look()
        waited_s = self._end_tree()
        self._drain()
        if cause is Cause.CANCELLED:
            return None
        cpu_s = max(self._seen.cpu_s, waited_s + self._ledger.lost_s, self._counted_s())
        return self._judged(cause, cpu_s, wall_s)

    def waits_for(self, link: socket.socket) -> bool:
        """Waits until `link` can be read. False: the first process has ended before, so this place can't be used."""
        poll = select.poll()
        poll.register(link, select.POLLIN)
        poll.register(self._status, select.POLLIN)
        return link.fileno() in dict(poll.poll())

    def _enter(self) -> None:
        """Prepares the namespaces that begin with this process's child."""
        active = self._place.protections.active
        uid, gid = os.getuid(), os.getgid()
        flags = kernel.CLONE_NEWPID if Mechanism.PID_NAMESPACE in active else 0
        flags |= kernel.CLONE_NEWUSER if Mechanism.USER_NAMESPACE in active else 0
        kernel.unshare(flags)
        if flags & kernel.CLONE_NEWUSER:
            kernel.map_ids(NOBODY, uid, gid)
        kernel.adopt_orphans()

    def _start(self) -> None:
        """Starts the first process of the tree, and makes the pipes to it."""
        (stdin, self._stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        if Mechanism.OWN_USER in self._place.protections.active:
            with suppress(PermissionError):  # a process that may change its user may not always give files away
                for descriptor in (stdin, stdout, stderr):  # else the program can't open /dev/stdin
                    os.fchown(descriptor, self._place.uid, -1)
        self._status, status = os.pipe()
        self._go, go = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._go.close()
            inside.begin(self._place, Ends(stdin, stdout, stderr, status, go.detach()))
        go.close()
        for descriptor in (stdin, stdout, stderr, status):
            os.close(descriptor)
        counts = Mechanism.CPU_COUNTER in self._place.protections.active
        self._counter = kernel.count_cpu(self._pid) if counts else None
        self._ledger = tree.Ledger(self._pid)
        seen = self._seen
        self._streams = {from_stdout: seen.stdout, from_stderr: seen.stderr, self._status: seen.told}
        for descriptor in (self._stdin, *self._streams):
            os.set_blocking(descriptor, False)

    def _begin(self, channel: int | None) -> None:
        self._started_s = time.monotonic()
        with self._go, suppress(BrokenPipeError):  # the first process has said why it is gone
            inside.tell(self._go, self.job, channel)
        if channel is not None:
            os.close(channel)

    def _watch(self) -> Cause | None:
        """Watches until the program ends (None), or until it must be ended for some cause."""
        for descriptor in (*self._streams, self._owner.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        self._poll.register(self._stdin, select.POLLOUT)
        look_s = _FIRST_LOOK_S
        look_at_s = time.monotonic() + look_s
        while True:
            for descriptor, _ in self._poll.poll(max(0.0, look_at_s - time.monotonic()) * 1000):
                if descriptor == self._owner.fileno():
                    return Cause.CANCELLED
                self._serve(descriptor)
            if self._status not in self._streams or self._told_end():
                return None
            now_s = time.monotonic()
            if now_s >= look_at_s:
                self._look()
                look_s = min(look_s * 1.3, _LAST_LOOK_S)
                look_at_s = now_s + look_s
            cause = self._exceeded(now_s)
            if cause is not None:
                return cause

    def _serve(self, descriptor: int) -> None:
        if descriptor == self._stdin:
            return self._feed()
        try:
            part = os.read(descriptor, _PART_BYTES)
        except BlockingIOError:  # the program has opened its own output and read it
            return None
        if not part:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
            os.close(descriptor)
            return None
        self._streams[descriptor] += part
        if not self._running and self._seen.told.startswith(inside.STARTED):
            self._running, self._started_s = True, time.monotonic()
        return None

    def _feed(self) -> None:
        with suppress(BlockingIOError):
            try:
                self._left = self._left[os.write(self._stdin, self._left[:_PART_BYTES]) :]
            except BrokenPipeError:
                self._left = self._left[:0]
        if not self._left:
            self._poll.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _told_end(self) -> bool:
        return self._seen.told.endswith(b"\n") and bytes(self._seen.told) != inside.STARTED

    def _look(self) -> None:
        usage = self._ledger.look(self.job.limits.processes)
        self._seen.processes = max(self._seen.processes, usage.processes)
        self._seen.cpu_s = max(self._seen.cpu_s, usage.cpu_s, self._counted_s())
        sockets_bytes = 0
        if Mechanism.NETWORK_NAMESPACE in self._place.protections.active:
            sockets_bytes = _SOCKET_BYTES * tree.sockets(self._pid)
        if usage.held_bytes + sockets_bytes > max(self._seen.memory_bytes, self.job.limits.memory_bytes):
            self._seen.memory_bytes = max(self._seen.memory_bytes, tree.memory_bytes(self._pid) + sockets_bytes)

    def _counted_s(self) -> float:
        """CPU time by the kernel's counter, the dead included. It loses processes that run a file they can't read."""
        return 0.0 if self._counter is None else kernel.counted_cpu_s(self._counter)

    def _exceeded(self, now_s: float) -> Cause | None:
        seen, limits = self._seen, self.job.limits
        if len(seen.stdout) + len(seen.stderr) > limits.output_bytes:
            return Cause.OUTPUT_LIMIT
        if seen.memory_bytes > limits.memory_bytes:
            return Cause.MEMORY_LIMIT
        # The kernel refuses more processes too, but by user, and not root's: without an own user only this limit holds.
        if seen.processes > limits.processes:
            return Cause.PROCESS_LIMIT
        if seen.cpu_s >= limits.cpu_s:
            return Cause.CPU_LIMIT
        if now_s - self._started_s > (limits.wall_s if self._running else _SETUP_S):
            return Cause.WALL_LIMIT if self._running else Cause.BROKEN
        return None

    def _end_tree(self) -> float:
        """Kills all that is left; returns the CPU seconds of all processes that were waited for."""
        isolated = Mechanism.PID_NAMESPACE in self._place.protections.active
        cpu_s = 0.0
        with suppress(ChildProcessError):
            while True:
                if not isolated:
                    tree.kill_below(os.getpid())
                    self._kill_user()
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)  # the whole pid namespace dies with its first process
                pid, _, rusage = os.wait4(-1, 0 if isolated else os.WNOHANG)
                cpu_s += rusage.ru_utime + rusage.ru_stime
                if pid == 0:
                    time.sleep(_AGAIN_S)
        return cpu_s

    def _kill_user(self) -> None:
        """Kills all processes of the run's own user at once: so none can slip away by forking."""
        if Mechanism.OWN_USER not in self._place.protections.active:
            return
        pid = os.fork()
        if pid == 0:
            try:
                become_somebody(self._place.uid)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def _drain(self) -> None:
        """Reads what was written before the end and not read yet."""
        room = self.job.limits.output_bytes + _PART_BYTES
        for descriptor, taken in self._streams.items():
            with suppress(BlockingIOError):
                while len(taken) < room and (part := os.read(descriptor, _PART_BYTES)):
                    taken.extend(part)

    def _judged(self, cause: Cause | None, cpu_s: float, wall_s: float) -> Ended:
        seen, limits = self._seen, self.job.limits
        words = seen.told.decode(errors="replace").strip().split(None, 3)
        told = words[1:] if words[:1] == [inside.STARTED.decode().strip()] else words
        status, detail = 0, ""
        if cause is None or cause is Cause.BROKEN:
            cause, status, detail = _read_end(told, started=self._running)
        if cause in (Cause.EXITED, Cause.SIGNALLED):
            if len(seen.stdout) + len(seen.stderr) > limits.output_bytes:
                cause = Cause.OUTPUT_LIMIT
            elif cause is Cause.EXITED and status == inside.MEMORY_STATUS:
                cause = Cause.MEMORY_LIMIT
            elif cpu_s >= limits.cpu_s:
                cause = Cause.CPU_LIMIT
        out, err = bytes(seen.stdout[: limits.output_bytes]), bytes(seen.stderr[: limits.output_bytes])
        return Ended(cause, status, out, err, cpu_s, wall_s, seen.memory_bytes, detail)


def _read_end(told: list[str], started: bool) -> tuple[Cause, int, str]:
    match told:
        case ["exit", code]:
            return Cause.EXITED, int(code), ""
        case ["signal", number]:
            return Cause.SIGNALLED, int(number), _named(int(number))
        case ["broken", *_]:  # written before the program was forked: it can't write this
            return Cause.BROKEN, 0, " ".join(told)
        case _ if started:
            return Cause.SIGNALLED, signal.SIGKILL, "its whole tree was ended"
        case _:
            return Cause.BROKEN, 0, "the inner half ended before it began"


def _named(number: int) -> str:
    """The name of a signal. Those for real-time use have only numbers."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
