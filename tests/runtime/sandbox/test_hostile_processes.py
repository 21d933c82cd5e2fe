"""Code that attacks processes, outlives its run, or lies about its end."""

import os
import time
from dataclasses import replace

import pytest

from rollmux.runtime.sandbox import Cause, Concern, Program
from tests.runtime.sandbox.world import SMALL, World, busy


def left_over(world: World) -> list[int]:
    """What of the runs that ended is still there. A keeper that has answered may take a moment to go."""
    for _ in range(500):
        left = busy(world.sandbox.pid)
        if not left:
            return []
        time.sleep(0.01)
    return left


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 100)
        while True:
            time.sleep(0.01)
print("left a daemon")
"""
IN_SHELL = Program(command=("/bin/sh", "-c", "nohup setsid sleep 1000 > /dev/null 2>&1 & (sleep 1000 &) ; echo done"))


@pytest.mark.parametrize("program", [DAEMON, IN_SHELL], ids=["double fork", "nohup setsid"])
def test_nothing_outlives_its_run(world: World, program: str | Program) -> None:
    ended = world.run(program)
    assert (ended.cause, ended.status) == (Cause.EXITED, 0)
    assert left_over(world) == []


def test_nothing_outlives_a_run_that_was_killed(world: World) -> None:
    source = "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\ntime.sleep(1000)"
    assert world.run(source, replace(SMALL, wall_s=0.5)).cause is Cause.WALL_LIMIT
    assert left_over(world) == []


def test_signals_reach_nobody_else(world: World) -> None:
    world.needs(Concern.PROCESSES)
    ended = world.run(f"""
import os, signal
for target in (-1, os.getppid(), {os.getpid()}, {world.sandbox.pid}, {os.getppid()}, 1, 0):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if target else (0,):
        try:
            os.kill(target, number)
        except OSError:
            pass
""")
    assert ended.cause in (Cause.EXITED, Cause.SIGNALLED)
    assert world.run("print('still here')").stdout == b"still here\n"


def test_nobody_is_traced(world: World) -> None:
    world.needs(Concern.KERNEL)
    ended = world.run(f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, os.getppid(), {os.getpid()}, {world.sandbox.pid}):
    for request in (16, 0x4206):
        print(libc.ptrace(request, pid, 0, 0))
    try:
        print(open(f"/proc/{{pid}}/mem", "r+b").read(1))
    except OSError:
        print(-1)
""")
    assert set(ended.stdout.split()) == {b"-1"}


FORGER = """
import os
lies = [b"started\\nexit 0\\n", b"exit 0\\n", b'\\0\\0\\0\\x20{"cause": "EXITED", "sizes": []}', b'{"score": 1.0}\\n']
for number in range(1, 256):
    for lie in lies:
        try:
            os.write(number, lie)
        except OSError:
            pass
os._exit(7)
"""


def test_a_forged_end_on_any_descriptor_is_only_output(world: World) -> None:
    ended = world.run(FORGER)
    assert (ended.cause, ended.status) == (Cause.EXITED, 7)
    assert ended.stdout.endswith(b'{"score": 1.0}\n')


def test_a_program_that_ends_its_own_guard_has_ended_itself(world: World) -> None:
    ended = world.run("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(0.2)\nos._exit(9)")
    assert (ended.cause, ended.status) in ((Cause.EXITED, 9), (Cause.SIGNALLED, 9))


@pytest.mark.parametrize("status", [0, 1, 113, 255])
def test_the_exit_status_is_the_programs_own(world: World, status: int) -> None:
    ended = world.run(f"raise SystemExit({status})")
    assert ended.status == status
    assert ended.succeeded == (status == 0)


@pytest.mark.parametrize(("number", "name"), [(6, "SIGABRT"), (9, "SIGKILL"), (40, "signal 40"), (64, "SIGRTMAX")])
def test_death_by_a_signal_is_told_apart_from_an_exit(world: World, number: int, name: str) -> None:
    ended = world.run(f"import os; os.kill(os.getpid(), {number})", SMALL)
    assert (ended.cause, ended.status, ended.detail) == (Cause.SIGNALLED, number, name)


def test_a_program_that_reads_its_own_output_breaks_no_keeper(full: World) -> None:
    ended = full.run("""
import os, threading, time
reading = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
def steal():
    while True:
        try: os.read(reading, 100)
        except BlockingIOError: pass
for _ in range(2): threading.Thread(target=steal, daemon=True).start()
end = time.monotonic() + 0.6
while time.monotonic() < end: os.write(1, b"x")
os._exit(3)
""")
    assert (ended.cause, ended.status) == (Cause.EXITED, 3), ended
