"""A small process that keeps the processes of one attempt: starts them, hears them, reaps them, says how they ended.

A keeper outlives the controller, and no process of the attempt outlives the keeper unseen: orphans become its children,
so once it has no child, nothing of the attempt runs. Where the system gives orphans to another process, the keeper
looks for them by their session and the marker in their environment. Only when nothing runs, it removes the memory that
the processes shared, writes how the attempt has ended, and ends itself. SIGTERM asks all processes to end, SIGUSR1
kills them. A keeper imports little: many of them have to be up at once.
"""

import json
import os
import resource
import select
import signal
import subprocess
import time
from contextlib import suppress
from math import inf

from rollmux.service.local import memory
from rollmux.service.local.attempt_log import CHUNK, AttemptLog
from rollmux.service.local.durable import reserve, write
from rollmux.service.local.kinship import adopt_orphans, hear_of_parents_end
from rollmux.service.local.process_tree import Identity, Process, boot_id, descendants, leftovers, look, send, ticks
from rollmux.service.local.rank import Plan, how_ended, pin, start_rank, why_not
from rollmux.system import all_files

# How long what is left of an attempt that failed or is over has to end by itself: nothing can come of it any more.
LEFT_S = 1.0
# Processes that are being killed may start others meanwhile: the time until the next look. It doubles each time, from
# the first of these to the last.
ROUNDS_S = (0.02, 1.0)
# How often to look for orphans that are not the keeper's children: the system does not tell it when they end.
STRAYS_S = 0.2


class Keeper:
    """The ranks of one attempt, and everything below them."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.failed = plan, ""
        process = look(os.getpid())
        assert process is not None
        self.identity = Identity(process.pid, process.start, boot_id(), plan.marker)
        self._memory = memory.path_of(plan.marker, os.getpid())
        self._ranks: dict[int, int] = {}  # by the number of the process
        self._logs: dict[int, AttemptLog] = {}
        self._pipes: dict[int, AttemptLog] = {}
        self._poll = select.poll()
        self._heard: set[int] = set()
        self._ending = False
        self._asked: set[tuple[int, int]] = set()
        self._asked_at = 0
        self._kill_at: float | None = None
        self._round_s = ROUNDS_S[0]
        self._adopts = adopt_orphans()
        self._has_strays = False
        self._wake = self._listen()

    def start(self) -> None:
        """Starts all ranks, or none that lives on."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            # For the pipe and the log of each rank.
            resource.setrlimit(resource.RLIMIT_NOFILE, (all_files(files[1]), files[1]))
            if self.plan.cores:
                pin(self.plan.cores)
            self.plan.env.update(memory.make(self._memory))
            for rank in self.plan.ranks:
                log = AttemptLog(f"{self.plan.log}.{rank}.log", self.plan.log_bytes)
                self._logs[rank] = log
                self._ranks[start_rank(self.plan, rank, log.end, files)] = rank
                log.started()
                self._pipes[log.pipe] = log
                self._poll.register(log.pipe, select.POLLIN)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.failed = why_not(error, self.plan)
            self._end(0.0)

    def run(self) -> None:
        """Serves the ranks until nothing is left."""
        while self._reap():
            for descriptor, _ in self._poll.poll(self._wait_ms()):
                self._hear(descriptor)
            if signal.SIGCHLD in self._heard:
                self._heard.discard(signal.SIGCHLD)
                self._ask_orphans()
            if signal.SIGTERM in self._heard:
                self.failed = self.failed or "it was told to end from outside (SIGTERM)"
                self._end(None)
            if signal.SIGUSR1 in self._heard:
                self._heard.discard(signal.SIGUSR1)
                self._kill_at = time.monotonic()
            if self._wait_ms() == 0:
                self._signal(signal.SIGKILL)
                self._kill_at = time.monotonic() + self._round_s
                self._round_s = min(2 * self._round_s, ROUNDS_S[1])
        memory.remove(self._memory)
        for log in self._pipes.values():
            log.drain()

    def _listen(self) -> int:
        """A descriptor that becomes readable with every signal."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        # Handlers, since the ranks would ignore each signal that is ignored here.
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._heard.add(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._poll.register(wake, select.POLLIN)
        return wake

    def _hear(self, descriptor: int) -> None:
        if descriptor == self._wake:
            os.read(descriptor, CHUNK)
        elif self._pipes[descriptor].read() is None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._pipes[descriptor]

    def _reap(self) -> bool:
        """Reaps children that have ended; whether anything is left."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid in self._ranks:
                    self._ended(self._ranks.pop(pid), os.waitstatus_to_exitcode(status))
        self._has_strays = not self._adopts and bool(self._kept())
        return self._has_strays

    def _ended(self, rank: int, code: int) -> None:
        log = self._logs[rank]
        if log.pipe in self._pipes:
            log.drain()
        if code != 0 and not self.failed:
            last = log.last_words()
            self.failed = f"rank {rank} {how_ended(code)}; " + (
                f"its last line: {last}" if last else "it printed nothing"
            )
        if self.failed or not self._ranks:
            self._end(LEFT_S)

    def _end(self, grace_s: float | None) -> None:
        """Asks all processes to end, once. Without a grace (None) the launcher says by SIGUSR1 when to kill them."""
        if not self._ending:
            self._ending = True
            self._kill_at = None if grace_s is None else time.monotonic() + grace_s
            self._asked = set(self._signal(signal.SIGTERM))
            self._asked_at = ticks()

    def _ask_orphans(self) -> None:
        """Asks orphans to end that were not seen when all were asked: they were just being started then.

        A process that starts later is left to those that started it, as they save their work.
        """
        if self._ending:
            kept = self._kept()
            parents = {process.pid for process in kept}
            for process in kept:
                known = (process.pid, process.start) in self._asked
                if process.parent not in parents and process.start <= self._asked_at and not known:
                    self._asked.add((process.pid, process.start))
                    send(process, signal.SIGTERM)

    def _signal(self, number: int) -> list[tuple[int, int]]:
        """Sends a signal to all processes below; returns the number and the start of each."""
        found = self._kept()
        for process in found:
            send(process, number)
        return [(process.pid, process.start) for process in found]

    def _kept(self) -> list[Process]:
        """All processes that live below the keeper, and orphans that the system has given to another parent."""
        below = descendants(os.getpid())
        if self._adopts:
            return below
        return list(dict.fromkeys([*below, *leftovers([self.identity]).get(self.identity, [])]))

    def _wait_ms(self) -> int | None:
        look_s = STRAYS_S if self._has_strays else inf
        left_s = min(look_s, inf if self._kill_at is None else self._kill_at - time.monotonic())
        if left_s == inf:
            return None
        return 0 if left_s <= 0 else int(left_s * 1e3) + 1


def main() -> None:
    """Reads the plan from the standard input; writes to the standard output that all is up, or why not."""
    with open(0, encoding="utf-8", closefd=False) as file:
        plan = Plan(**json.load(file))
    _close(0)
    if plan.mortal:
        hear_of_parents_end(signal.SIGUSR1)
    started, ended = f"{plan.record}.started", f"{plan.record}.ended"
    keeper = Keeper(plan)
    write(started, {"job": plan.job, "attempt": plan.attempt, "keeper": keeper.identity})
    reserve(ended)
    # A new controller that begins only now sees the record; one that has begun before would not know this keeper.
    if os.getppid() != plan.controller:
        os.unlink(started)
        return
    keeper.start()
    if not keeper.failed:
        _reply("")
    failed_at_once = keeper.failed
    keeper.run()
    write(ended, {"failed": keeper.failed})
    if failed_at_once:
        _reply(failed_at_once)


def _reply(failed: str) -> None:
    with suppress(OSError):  # the controller may be gone: its next life finds the record
        os.write(1, json.dumps({"failed": failed}).encode())
    _close(1)


def _close(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)
