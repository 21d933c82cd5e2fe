"""Code that takes all it can get: each ends at its limit, with that limit named, and a neighbour notices nothing."""

import platform
import resource
from dataclasses import replace

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.sandbox import Cause, Concern, Mechanism, Program, RunLimits
from rollmux.runtime.sandbox.inside import Job
from rollmux.runtime.sandbox.keeper import Keeper, _Seen
from tests.runtime.sandbox.world import SMALL, World

BRIEF = replace(SMALL, cpu_s=0.4)

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
SHELL_FORK_BOMB = Program(command=("/bin/sh", "-c", "b() { b | b & }; b & while :; do :; done"))
REGEX = "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')"
DEAF = """
import signal
for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, lambda *_: None)
while True:
    pass
"""
MANY_SPINNERS = """
import os
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
while True:
    os.wait()
"""


@pytest.mark.parametrize(
    "source",
    [FORK_BOMB, SHELL_FORK_BOMB, REGEX, DEAF, "while True: pass", MANY_SPINNERS],
    ids=["fork bomb", "shell fork bomb", "endless regex", "deaf to signals", "endless loop", "many spinners"],
)
def test_what_never_stops_computing_ends_at_its_cpu_limit(world: World, source: str | Program) -> None:
    limits = replace(SMALL, cpu_s=0.2)
    ended = world.run(source, limits)
    assert ended.cause is Cause.CPU_LIMIT
    assert ended.cpu_s >= limits.cpu_s


UNCREDITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        end = time.process_time() + {each_s}
        while time.process_time() < end:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
"""


@pytest.mark.parametrize("each_s", [0.15, 0.003], ids=["seen", "gone before a look"])
def test_children_that_are_credited_to_nobody_do_not_evade_the_cpu_limit(world: World, each_s: float) -> None:
    if Mechanism.CPU_COUNTER not in world.sandbox.protections.active:
        pytest.skip("this kernel counts for nobody")
    ended = world.run(UNCREDITED.format(each_s=each_s), replace(BRIEF, wall_s=6.0))
    assert ended.cause is Cause.CPU_LIMIT
    assert BRIEF.cpu_s <= ended.cpu_s < BRIEF.cpu_s + 0.3


def test_without_a_counter_those_that_are_seen_still_count() -> None:
    with World((Mechanism.CPU_COUNTER,)) as uncounted:
        ended = uncounted.run(UNCREDITED.format(each_s=0.15), replace(BRIEF, wall_s=6.0))
        assert "missing: counter of CPU time (left out as asked)" in uncounted.sandbox.protections.lines()
    assert ended.cause is Cause.CPU_LIMIT
    assert ended.cpu_s >= BRIEF.cpu_s


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(1e9)",
        "import os, time; os.close(1); os.close(2); time.sleep(1e9)",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)); signal.pause()",
        "import os; os.kill(os.getpid(), 19)",
        "import time\nwhile True: print('still here', flush=True); time.sleep(0.02)",
    ],
    ids=["asleep", "asleep with its output closed", "all signals blocked", "stopped", "telling"],
)
def test_what_waits_for_ever_ends_at_its_wall_limit(world: World, source: str) -> None:
    ended = world.run(source, replace(SMALL, wall_s=0.3))
    assert ended.cause is Cause.WALL_LIMIT


EATER = "kept = []\nwhile True:\n    kept.append(bytearray(b'x') * 4_000_000)\n"
MANY_EATERS = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        kept = bytearray(b"x") * 40_000_000
        time.sleep(100)
time.sleep(100)
"""
SHARER = """
import mmap, os
for path in (None, "/dev/zero"):
    try:
        mmap.mmap(-1 if path is None else os.open(path, os.O_RDWR), 4096)
        print("mapped", path)
    except OSError:
        pass
with open("shared", "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
if os.fork() == 0:
    shared[0] = 42
    os._exit(0)
os.wait()
print(shared[0])
"""


# A page of its own in each GiB of a wide space, only read: nothing is resident but the kernel's tables to find them by.
READER = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"VmPTE: 0 kB", 0, 0, 0)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
for number in range(40_000):
    place = libc.mmap((1 << 44) + (number << 30), 4096, 1, 0x4022, -1, 0)
    ctypes.c_char.from_address(place).value
time.sleep(100)
"""


@pytest.mark.parametrize(
    "source", [EATER, MANY_EATERS, READER], ids=["one process", "many small ones", "tables of pages"]
)
def test_a_memory_bomb_ends_at_the_limit_of_its_whole_tree(world: World, source: str) -> None:
    ended = world.run(source, SMALL)
    assert ended.cause is Cause.MEMORY_LIMIT
    assert ended.memory_bytes > SMALL.memory_bytes


def test_memory_is_shared_by_a_file_alone(world: World) -> None:
    """Else what one process has unmapped, or has filled and ended, stays for the others and is told of none of them."""
    world.needs(Concern.FILES, Concern.KERNEL)
    assert world.run(SHARER).stdout == b"42\n"


def test_an_allocation_beyond_the_address_space_fails_and_is_told_as_memory(world: World) -> None:
    ended = world.run("x = bytearray(10**12)", SMALL)
    assert ended.cause is Cause.MEMORY_LIMIT
    assert b"MemoryError" in ended.stderr


@pytest.mark.parametrize("number", [1, 2])
def test_a_gigabyte_of_output_ends_at_the_output_limit(world: World, number: int) -> None:
    ended = world.run(f"import os\nfor _ in range(16_384): os.write({number}, b'x' * 65_536)", SMALL)
    assert ended.cause is Cause.OUTPUT_LIMIT
    assert len(ended.stdout) + len(ended.stderr) == SMALL.output_bytes


def test_output_that_is_read_once_the_program_has_ended_counts_too() -> None:
    keeper, limits = Keeper.__new__(Keeper), replace(SMALL, output_bytes=10)
    keeper.job = Job(b"", ("yes",), {}, limits)
    keeper._seen, keeper._running = _Seen(stdout=bytearray(11), told=bytearray(b"started\nexit 0\n")), True
    ended = keeper._judged(None, 0.0, 0.0)
    assert (ended.cause, len(ended.stdout)) == (Cause.OUTPUT_LIMIT, 10)


SOCKETS = """
import os, socket, time
for _ in range(20):
    if os.fork() == 0:
        break
kept = []
try:
    while len(kept) < 50:
        kept += socket.socketpair()
except PermissionError:
    os._exit(5)
for each in kept:
    each.setblocking(False)
    try:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    except OSError:
        pass
    try:
        while True:
            each.send(b"x" * 4096)
    except OSError:
        pass
time.sleep(100)
"""


def test_what_is_kept_in_sockets_counts_too_or_there_are_none(world: World) -> None:
    ended = world.run(SOCKETS, SMALL)
    if Mechanism.NETWORK_NAMESPACE in world.sandbox.protections.active:
        assert ended.cause is Cause.MEMORY_LIMIT
    elif Mechanism.SECCOMP in world.sandbox.protections.active:
        assert (ended.cause, ended.status) == (Cause.EXITED, 5)


def test_a_program_may_use_asyncio(full: World) -> None:
    ended = full.run("import asyncio\nasync def main(): print(await asyncio.sleep(0, 42))\nasyncio.run(main())")
    assert ended.stdout == b"42\n"


FILLER = """
written = 0
try:
    with open("fill", "wb", buffering=0) as file:
        while True:
            written += file.write(b"x" * 65_536)
except OSError:
    print(written)
"""


def test_a_disk_is_filled_no_further_than_the_limit(world: World) -> None:
    world.needs(Concern.DISK)
    ended = world.run("import signal; signal.signal(25, signal.SIG_IGN)\n" + FILLER, SMALL)
    assert 0 < int(ended.stdout) <= SMALL.disk_bytes


def test_many_files_fill_no_more_than_their_number(world: World) -> None:
    world.needs(Concern.DISK)
    source = "made = 0\ntry:\n    while True:\n        open(f'f{made}', 'w').close()\n        made += 1\n"
    ended = world.run(source + "except OSError:\n    print(made)", replace(SMALL, disk_files=100))
    assert 0 < int(ended.stdout) <= 100


def test_what_takes_memory_of_the_kernels_that_nobody_counts_is_refused(full: World) -> None:
    """Events and requests that wait, of which a machine has only so many; rules of Landlock, tables of waiters."""
    source = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.inotify_init(), libc.inotify_init1(0), libc.syscall({number}, 1000, ctypes.byref(ctypes.c_ulong())))
print(libc.syscall(444, None, 0, 1), libc.prctl(78, 1, 1 << 10, 0, 0))
""".format(number=206 if platform.machine() == "x86_64" else 0)
    if Mechanism.SECCOMP not in full.sandbox.protections.active:
        pytest.skip("no filter here")
    assert full.run(Program(source)).stdout == b"-1 -1 -1\n-1 -1\n"


def test_files_have_no_attributes_beside_them_and_are_copied_all_the_same(full: World) -> None:
    """A list of rights takes 64 KiB of the kernel's memory, which counts as nobody's."""
    full.needs(Concern.KERNEL)
    ended = full.run("""
import errno, os, shutil, subprocess
open("one", "w").close()
for name in ("system.posix_acl_access", "user.note"):
    try:
        os.setxattr("one", name, b"")
        print("set", name)
    except OSError as error:
        print(error.errno == errno.ENOTSUP)
shutil.copy2("one", "two")
subprocess.run(["cp", "-p", "one", "three"], check=True)
""")
    assert (ended.status, ended.stdout) == (0, b"True\nTrue\n"), ended


def test_a_crash_has_the_machine_dump_no_core(world: World) -> None:
    """Where the machine hands dumps to a program of its own, as most do, a limit of 0 does not keep it from that."""
    world.needs(Concern.KERNEL)
    ended = world.run("""
import resource
print(resource.getrlimit(resource.RLIMIT_CORE))
for limit in ((0, 0), (0, 1)):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
        print("set")
    except (OSError, ValueError):
        pass
""")
    most = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1] % (1 << 64))  # where the tests may have none, so may runs
    assert ended.stdout == f"({most}, {most})\n".encode()


def test_files_run_out_for_the_program_alone(world: World) -> None:
    source = "import os\nkept = []\ntry:\n    while True: kept.append(os.dup(1))\nexcept OSError: print(len(kept))"
    ended = world.run(source, replace(SMALL, open_files=40))
    assert 0 < int(ended.stdout) < 40


ZOMBIES = """
import os
made = 0
for _ in range(2000):
    try:
        if os.fork() == 0:
            os._exit(0)
        made += 1
    except OSError:
        pass
print(made)
"""
THREADS = """
import threading, time
made = 0
try:
    while made < 2000:
        threading.Thread(target=time.sleep, args=(1e9,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
print(made, flush=True)
"""


@pytest.mark.parametrize("source", [ZOMBIES, THREADS], ids=["zombies", "threads"])
def test_a_flood_of_processes_stops_at_their_number(full: World, source: str) -> None:
    full.needs(Concern.PROCESSES)
    ended = full.run(source, replace(SMALL, processes=20))
    assert ended.cause is Cause.EXITED
    assert 0 < int(ended.stdout) <= 20


def test_limits_that_limit_nothing_are_refused_all_at_once() -> None:
    with pytest.raises(InvalidSpec) as refused:
        RunLimits(wall_s=0.0, memory_bytes=0)
    assert [problem.path for problem in refused.value.problems] == ["limits.wall_s", "limits.memory_bytes"]
