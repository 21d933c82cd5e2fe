"""What a tree takes, seen from outside while its processes come and go."""

import os
import subprocess
import sys
import time

import pytest

from rollmux.runtime.sandbox import tree
from rollmux.runtime.sandbox.tree import Ledger, Usage

SPEND = """
import os, signal, time
def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""
FORGOTTEN = (
    SPEND
    + """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        spend(0.1)
        time.sleep(0.1)
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
"""
)
# All are waited for: by their parent, by its parent with what it was credited, or as orphans by the first.
WAITED_FOR = (
    SPEND
    + """
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for number in range(24):
    if os.fork() == 0:
        if os.fork() == 0:
            spend(0.012)
        elif number % 3:
            os.wait()
        os._exit(0)
    os.wait()
try:
    while True: os.wait()
except ChildProcessError:
    pass
"""
)
# The child ends when it is told to; its parent says so once it has waited for it.
ENDS_WHEN_TOLD = (
    SPEND
    + """
pid = os.fork()
if pid == 0:
    spend(0.2)
    print("spent", flush=True)
    input()
    os._exit(0)
os.wait()
print("ended", flush=True)
time.sleep(100)
"""
)


def watched(source: str, between_s: float = 0.0) -> tuple[Usage, float]:
    """The most that a ledger has seen of a program's tree, and what the kernel says at its end."""
    with subprocess.Popen([sys.executable, "-S", "-c", source]) as process:
        ledger, most = Ledger(process.pid), Usage(0, 0.0, 0)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            most = max(most, ledger.look(100), key=lambda usage: usage.cpu_s)
            time.sleep(between_s)
        most = max(most, ledger.look(100), key=lambda usage: usage.cpu_s)
        _, status, rusage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return most, rusage.ru_utime + rusage.ru_stime


def test_the_dead_whom_nobody_waited_for_count_with_what_they_were_last_seen_with() -> None:
    usage, credited = watched(FORGOTTEN, 0.01)
    assert credited < 4 * 0.1
    assert usage.cpu_s > 4 * 0.075


def test_no_cpu_time_counts_twice() -> None:
    usage, spent = watched(WAITED_FOR)
    assert spent >= 24 * 0.012
    assert spent / 2 < usage.cpu_s <= spent + 0.011


@pytest.mark.parametrize("moment", ["descendants", "_spent"], ids=["once it is listed", "once it is read"])
def test_who_dies_while_it_is_looked_at_counts_once(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-S", "-c", ENDS_WHEN_TOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"spent\n"
        ledger, stdin, stdout = Ledger(parent.pid), parent.stdin, parent.stdout
        (child,) = tree.descendants(parent.pid)
        looked = [ledger.look(100)]
        observed = getattr(tree, moment)

        def ending(pid: int, *more: int) -> object:
            found = observed(pid, *more)
            if moment == "descendants" or pid == child:
                stdin.write(b"\n")
                stdin.flush()
                assert stdout.readline() == b"ended\n"
            return found

        with monkeypatch.context() as patch:
            patch.setattr(tree, moment, ending)
            looked.append(ledger.look(100))
        looked += [ledger.look(100) for _ in range(3)]
        parent.kill()
    assert looked[-1].cpu_s >= 0.18
    assert max(usage.cpu_s for usage in looked) < 0.36
    assert ledger.lost_s == 0


def test_who_can_not_be_looked_into_and_dies_then_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> bytes:
        raise PermissionError if path.endswith("smaps_rollup") else FileNotFoundError

    monkeypatch.setattr(tree, "_read", gone)
    assert tree.memory_bytes(os.getpid()) == 0


MANY = 800  # their numbers are more than the kernel tells of at once


def test_all_children_of_one_parent_are_listed() -> None:
    source = f"""
import os, signal
for _ in range({MANY}):
    if os.fork() == 0: signal.pause()
print("all", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-S", "-c", source], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"all\n"
        listed = len(tree.descendants(parent.pid))
        tree.kill_below(parent.pid)
        parent.kill()
    assert listed == MANY


def test_what_is_swapped_out_is_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have its own memory swapped out (MADV_PAGEOUT), and take as much again."""
    told = {
        "status": b"Name:\tpython\nVmRSS:\t    8 kB\nVmPTE:\t    4 kB\nVmSwap:\t   40 kB\n",
        "smaps_rollup": b"Rss:   8 kB\nPss_Anon:   5 kB\nPss_Shmem:   1 kB\nSwap:   40 kB\nSwapPss:   40 kB\n",
    }
    read = tree._read
    monkeypatch.setattr(tree, "_read", lambda path: told.get(os.path.basename(path)) or read(path))
    with subprocess.Popen(["sleep", "100"]) as alone:
        counted = tree.memory_bytes(alone.pid), Ledger(alone.pid).look(1).held_bytes
        alone.kill()
    assert counted == (50 * 1024, 52 * 1024)
