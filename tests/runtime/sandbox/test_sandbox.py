"""What a well-behaved program sees of the sandbox, and what its owner does."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.sandbox import (
    Cause,
    Concern,
    Ended,
    Mechanism,
    Program,
    RunLimits,
    Sandbox,
    SandboxError,
    frames,
    kernel,
    tree,
)
from rollmux.runtime.sandbox.probe import become_somebody
from rollmux.runtime.sandbox.protections import Protections, Unprotected
from rollmux.runtime.sandbox.sandbox import _BOOT
from rollmux.runtime.sandbox.tree import descendants
from rollmux.runtime.sandbox.zygote import _remove
from tests.runtime.sandbox.world import (
    NAMESPACES,
    NEIGHBOUR,
    NEIGHBOUR_SAYS,
    SMALL,
    World,
    busy,
    keepers,
    living,
    state,
)
from tests.waiting import eventually, until

ROOT = Path(__file__).resolve().parents[3]


def test_a_program_reads_its_input_and_its_output_is_kept_apart(world: World) -> None:
    text = ("grüße " * 40_000).encode()
    ended = world.run(Program("import sys; print(len(sys.stdin.read())); print('oh', file=sys.stderr)", stdin=text))
    assert (ended.cause, ended.status) == (Cause.EXITED, 0)
    assert (ended.stdout, ended.stderr) == (b"240000\n", b"oh\n")


def test_a_program_finds_its_files_and_a_clean_environment(world: World) -> None:
    source = "import os; print(open('data/in.txt').read(), sorted(os.environ), os.getcwd() == os.environ['HOME'])"
    ended = world.run(Program(source, files={"data/in.txt": b"hello"}))
    threads = "'MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'"
    assert ended.stdout.decode() == f"hello ['HOME', 'LANG', {threads}, 'PATH', 'PYTHONHASHSEED'] True\n"


def test_a_program_ends_as_it_would_by_itself(world: World) -> None:
    ended = world.run("""
import atexit, threading, time
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
class Answer: pass
print("main", Answer.__module__)
raise ValueError("no")
""")
    assert (ended.cause, ended.status) == (Cause.EXITED, 1)
    assert ended.stdout == b"main __main__\nthread\nat exit\n"
    assert b"ValueError: no" in ended.stderr


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nprint(42)\nsys.stdout.close()",
        "import sys\nwith sys.stdout as out: out.write('42\\n')",
        "import sys\nsys.stderr.close()\nprint(42)",
        "import sys\nsys.stderr = None\nprint(42)",
        "import sys\nprint(42)\nsys.stdout.flush()\nsys.stdout = None",
        "import sys\nprint(42)\ndel sys.stdout",
        "out = open(1, 'w')\nout.write('42\\n')",
        "import io, sys\nprint(42)\nsys.stdout = io.StringIO()\nprint('debug')",
        "import io, sys\nprint(42)\nsys.stdout = sys.__stdout__ = io.StringIO()\nprint('debug')",
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint(42)",
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(42)",
        "def said(): return 42\nclass Last:\n    def __del__(self): print(said())\nlast = Last()",
        "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\nprint(42)",
        "import inspect\ndef f():\n    return 42\nassert 'return 42' in inspect.getsource(f)\nprint(f())",
        "print(open('/dev/stdin').read())",
        "with open('/dev/stdout', 'w') as out: out.write('42\\n')",
        "import os\nr, w = os.pipe()\nos.close(r)\ntry: os.write(w, b'x')\nexcept BrokenPipeError: print(42)",
        "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt: print(42)",
        "\ufeffprint(42)",
        "__builtins__.shout = print\nshout(42)",
        "print(len(open(__file__).read()))".ljust(42),
        "import os, sys\nif len(sys.argv) > 1: print(42)\nelse: os.execv(sys.executable, ['python', *sys.argv, '2'])",
        "import multiprocessing\ndef six(n): return 6 * n\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(*pool.map(six, [7]))",
        "open('made.py', 'w').write('N = 42')\nimport made\nprint(made.N)",
        "import ctypes\nctypes.CDLL(None).puts(b'42')",
        "import os, sys\ndef hook(kind, error, trace): print(42, flush=trace.tb_lineno == 3); os._exit(0)\n"
        "sys.excepthook = hook; int('no')",
        "import sys\ndef hook(*_): print(42); sys.exit()\nsys.excepthook = hook; int('no')",
    ],
)
def test_a_program_is_run_and_ended_as_python_does(full: World, source: str) -> None:
    ended = full.run(Program(source, stdin=b"42"))
    assert (ended.cause, ended.status, ended.stdout) == (Cause.EXITED, 0, b"42\n"), ended


@pytest.mark.parametrize("hook", ["= None", "= lambda *_: int('hook')", "= lambda *_: exit('told')"])
def test_an_error_that_a_hook_does_not_take_is_told_and_stays_one(full: World, hook: str) -> None:
    ended = full.run(f"import sys\nprint(42)\nsys.excepthook {hook}\nint('program')")
    assert (ended.cause, ended.status, ended.stdout) == (Cause.EXITED, 1, b"42\n"), ended
    assert (b"told" if "told" in hook else b"'program'") in ended.stderr


def test_a_program_recurses_as_deep_as_python_goes(world: World) -> None:
    source = "def deep(n):\n    try: return deep(n + 1)\n    except RecursionError: return n\nprint(deep(1))"
    by_itself = int(subprocess.check_output([sys.executable, "-c", source]))
    assert by_itself <= int(world.run(source).stdout) <= by_itself + 10


def test_carriage_returns_of_the_input_are_read_as_they_are(full: World) -> None:
    source = "import sys\nprint([input(), sys.stdin.readline(), sys.stdin.read()])"
    ended = full.run(Program(source, stdin=b"a\r\nb\rc\r\nd\r"))
    assert ended.stdout == b"['a\\r', 'b\\rc\\r\\n', 'd\\r']\n"


@pytest.mark.skipif(os.getuid() != 0, reason="nobody else can keep a run's user from having processes")
def test_a_program_that_can_not_be_forked_has_not_failed() -> None:
    async def story() -> Ended:
        async with Sandbox(list(Concern), spares=0) as sandbox:
            resource.prlimit(sandbox.pid, resource.RLIMIT_NPROC, (1, 1))
            return await sandbox.run(Program("print(42)"), SMALL)

    ended = asyncio.run(story())
    assert ended.cause is Cause.BROKEN
    assert ended.detail == "broken BlockingIOError(11, 'Resource temporarily unavailable')"


@pytest.mark.parametrize(
    "script", ["cat /dev/stdin", "cat > /dev/stdout", "cat; echo log > /dev/stderr", "yes 42 | head -n 1"]
)
def test_a_command_opens_its_streams_by_name_and_is_ended_by_a_pipe_that_nobody_reads(full: World, script: str) -> None:
    ended = full.run(Program(command=("/bin/sh", "-c", script), stdin=b"42\n"))
    assert (ended.cause, ended.status, ended.stdout) == (Cause.EXITED, 0, b"42\n"), ended


def test_as_many_threads_as_are_allowed_have_room_for_their_memory(full: World) -> None:
    source = """
from threading import Barrier, Thread
barrier = Barrier(29)
def work():
    made = [bytearray(1000) for _ in range(10)]
    barrier.wait()
for _ in range(28): Thread(target=work).start()
barrier.wait()
print("all of them")
"""
    assert full.run(Program(source), RunLimits()).stdout == b"all of them\n"


def test_a_library_takes_no_thread_for_each_core(full: World) -> None:
    source = "import numpy; print(*(line for line in open('/proc/self/status') if line.startswith('Threads')))"
    assert full.run(Program(source), RunLimits()).stdout.split() == [b"Threads:", b"1"]


def test_a_process_that_the_owner_has_forked_holds_up_no_end() -> None:
    async def story() -> None:
        sandbox = await Sandbox(list(Concern), spares=0).start()
        run = asyncio.create_task(sandbox.run(Program("import time; time.sleep(1000)"), SMALL))
        await eventually(lambda: len(busy(sandbox.pid, 0)) >= 3)
        forked = os.fork()
        if forked == 0:
            signal.pause()
        try:
            run.cancel()
            await eventually(lambda: not busy(sandbox.pid, 0))
            await asyncio.wait_for(sandbox.close(), 60)
            assert state(sandbox.pid) == "gone"
        finally:
            os.kill(forked, signal.SIGKILL)
            os.waitpid(forked, 0)

    asyncio.run(story())


def test_processes_of_a_program_work_together(full: World) -> None:
    source = """
from multiprocessing import get_context
def square(n): return n * n
with get_context("fork").Pool(2) as pool:
    print(sum(pool.map(square, range(10))))
"""
    assert full.run(source).stdout == b"285\n"


def test_a_command_runs_in_any_language(world: World) -> None:
    ended = world.run(Program(command=("/bin/sh", "-c", "read name; echo hello $name; exit 3"), stdin=b"you\n"))
    assert (ended.cause, ended.status, ended.stdout) == (Cause.EXITED, 3, b"hello you\n")


def test_settings_without_which_programs_of_this_machine_do_not_run_are_read(world: World) -> None:
    """Debian's Java has its own in /etc, and compiles nothing without them; node ends if it may not read OpenSSL's."""
    names = ("ld.so.cache", "localtime", "ssl/openssl.cnf", "java*/security/java.security")
    paths = [path for name in names for path in Path("/etc").glob(name)]
    sizes = {str(path): path.stat().st_size for path in paths}
    ended = world.run(f"print({{path: len(open(path, 'rb').read()) for path in {list(sizes)}}})")
    assert ended.stdout.decode() == f"{sizes}\n", ended


def test_a_command_that_is_not_there_says_so(world: World) -> None:
    ended = world.run(Program(command=("/usr/bin/no-such-command",)))
    assert ended.status == 127
    assert b"no-such-command" in ended.stderr


FORKED = """
import os, signal, time
def spend():
    end = time.process_time() + 0.1
    while time.process_time() < end: pass
signal.signal(signal.SIGCHLD, signal.{handler})
reading, writing = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        spend()
        os._exit(0)
os.close(writing)
spend()
os.read(reading, 1)
time.sleep(0.05)
for _ in range({waited}):
    os.wait()
print("all have ended")
"""


@pytest.mark.parametrize(
    ("handler", "waited"), [("SIG_DFL", 3), ("SIG_DFL", 1), ("SIG_IGN", 0)], ids=["all", "one", "none is kept"]
)
def test_cpu_time_counts_the_whole_tree_whether_it_was_waited_for_or_not(
    full: World, handler: str, waited: int
) -> None:
    if handler == "SIG_IGN" and Mechanism.CPU_COUNTER not in full.sandbox.protections.active:
        pytest.skip("this kernel counts for nobody")
    ended = full.run(FORKED.format(handler=handler, waited=waited), replace(SMALL, cpu_s=20.0))
    assert (ended.cause, ended.stdout) == (Cause.EXITED, b"all have ended\n"), ended
    assert 4 * 0.08 < ended.cpu_s < 4 * 0.1 + 0.3


def test_processes_that_come_while_others_go_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(root: int, most: int | None) -> list[int]:
        """As /proc may show it: some of those that were listed first are gone when the last is."""
        gone = []
        for _ in range(40):
            with subprocess.Popen(["true"]) as brief:
                gone.append(brief.pid)
        return [*gone, *descendants(root, most)]

    with subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); time.sleep(100)"]) as parent:
        while not descendants(parent.pid):
            pass
        with monkeypatch.context() as patch:
            patch.setattr(tree, "descendants", listed)
            assert tree.Ledger(parent.pid).look(32).processes == 1
        tree.kill_below(parent.pid)
        parent.kill()


def test_a_cancelled_run_is_killed_with_all_that_it_started(world: World) -> None:
    async def cancelled() -> None:
        source = "import os, time\nos.fork()\nos.fork()\nprint('up', flush=True)\ntime.sleep(1000)"
        run = asyncio.create_task(world.sandbox.run(Program(source), SMALL))
        await eventually(lambda: len(busy(world.sandbox.pid)) >= 6)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await eventually(lambda: not busy(world.sandbox.pid))

    world.do(cancelled())


@pytest.mark.parametrize("without", [(), tuple(Mechanism)], ids=["protected", "without protections"])
def test_closing_leaves_no_process_behind(without: tuple[Mechanism, ...]) -> None:
    async def closed() -> list[int]:
        sandbox = await Sandbox(list(Concern), without).start()
        run = asyncio.create_task(sandbox.run(Program("import os, time\nos.fork()\ntime.sleep(1000)"), SMALL))
        await eventually(lambda: len(busy(sandbox.pid)) >= 4)
        below = [sandbox.pid, *descendants(sandbox.pid)]
        async with asyncio.timeout(20):
            await sandbox.close()
        assert (await run).cause is Cause.BROKEN
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.run(Program("pass"), SMALL)
        return below

    assert [pid for pid in asyncio.run(closed()) if state(pid) not in ("gone", "Z")] == []


def test_closing_leaves_no_folder_behind() -> None:
    async def closed() -> int:
        async with Sandbox(list(Concern), tuple(Mechanism)) as sandbox:
            source = "import os, time\nprint(os.getcwd(), file=open('here', 'w'))\ntime.sleep(1000)"
            run = asyncio.create_task(sandbox.run(Program(source), SMALL))
            await eventually(lambda: any((folder / "here").exists() for folder in _folders_of(sandbox.pid)))
            zygote = sandbox.pid
        assert (await run).cause is Cause.BROKEN
        return zygote

    assert _folders_of(asyncio.run(closed())) == []


def test_a_program_whose_keeper_was_killed_is_ended_while_others_go_on() -> None:
    async def ended() -> Ended:
        async with Sandbox(list(Concern), tuple(Mechanism)) as sandbox:
            run = asyncio.create_task(sandbox.run(Program("import os, time\nos.fork()\ntime.sleep(1000)"), SMALL))
            await eventually(lambda: len(busy(sandbox.pid)) >= 4)
            (keeper,), below = keepers(sandbox.pid), descendants(sandbox.pid)
            another = asyncio.create_task(sandbox.run(NEIGHBOUR, SMALL))
            await eventually(lambda: len(keepers(sandbox.pid)) == 2)
            os.kill(keeper, signal.SIGKILL)
            await eventually(lambda: all(state(pid) in ("gone", "Z") for pid in below))
            assert (await run).cause is Cause.BROKEN
            return await another

    assert asyncio.run(ended()).stdout == NEIGHBOUR_SAYS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_killed(number: signal.Signals) -> None:
    source = """
import asyncio, sys
from rollmux.runtime.sandbox import *
async def main():
    async with Sandbox(allow=list(Concern)) as sandbox:
        print(sandbox.pid, flush=True)
        await sandbox.run(Program("import os, time; os.fork(); time.sleep(1000)"), RunLimits(wall_s=1000))
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    owner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, env=environment, text=True)
    assert owner.stdout is not None
    with owner.stdout as told:
        zygote = int(told.readline())
        until(lambda: len(busy(zygote)) >= 4)
        below = [zygote, *descendants(zygote)]
        owner.send_signal(number)
        owner.wait()
    until(lambda: all(state(pid) in ("gone", "Z") for pid in below))


@pytest.mark.parametrize("gone", ["at once", "before it is ready", "before it was heard"])
def test_a_zygote_whose_owner_is_gone_before_its_first_run_says_nothing(gone: str) -> None:
    ours, theirs = socket.socketpair()
    boot = _BOOT.format(path=[str(ROOT / "src")])
    with ours, theirs:
        zygote = subprocess.Popen(
            [sys.executable, "-c", boot, str(theirs.fileno())], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
        )
        if gone != "at once":
            ours.sendall(frames.packed(Sandbox(list(Concern), tuple(Mechanism))._setup))
        if gone == "before it was heard":
            assert ours.recv(1, socket.MSG_PEEK)
    said = zygote.communicate(timeout=60)[1]
    assert (said, zygote.returncode) == (b"", 0)


def test_a_spare_keeper_serves_one_run_and_is_gone_with_it() -> None:
    async def served() -> tuple[list[list[int]], list[Ended]]:
        async with Sandbox(list(Concern), spares=1) as sandbox:
            waiting, ends = [await _spare(sandbox, [])], []
            for _ in range(3):
                ends.append(await sandbox.run(Program("print('served')"), SMALL))
                waiting.append(await _spare(sandbox, waiting[-1]))
            return waiting, ends

    waiting, ends = asyncio.run(served())
    assert [ended.stdout for ended in ends] == [b"served\n"] * 3
    assert len({pid for pids in waiting for pid in pids}) == 8


@pytest.mark.parametrize("place", [0, 1], ids=["keeper", "first process"])
def test_a_spare_that_has_died_is_passed_over(place: int) -> None:
    async def passed() -> Ended:
        async with Sandbox(list(Concern), spares=1) as sandbox:
            spare = await _spare(sandbox, [])
            os.kill(spare[place], signal.SIGKILL)
            # Both: a first process that has just begun may hold the line of its keeper open, and would be handed a run.
            await eventually(lambda: all(state(pid) in ("gone", "Z") for pid in spare))
            return await sandbox.run(Program("print('another')"), SMALL)

    assert asyncio.run(passed()).stdout == b"another\n"


def test_no_spares_are_kept_where_others_could_reach_them() -> None:
    async def kept() -> list[int]:
        async with Sandbox(list(Concern), list(Mechanism), spares=2) as sandbox:
            assert (await sandbox.run(Program("print('alone')"), SMALL)).stdout == b"alone\n"
            await eventually(lambda: not living(sandbox.pid))
            await asyncio.sleep(0.1)
            return living(sandbox.pid)

    assert asyncio.run(kept()) == []


def test_a_zygote_that_was_killed_is_replaced_and_its_runs_are_errors() -> None:
    async def killed() -> tuple[Ended, Ended, list[int]]:
        # No spares: one that is just being forked holds the dead zygote's socket open, and takes what it can't keep.
        async with Sandbox(allow=list(Concern), spares=0) as sandbox:
            run = asyncio.create_task(sandbox.run(Program("import time; time.sleep(1000)"), SMALL))
            await eventually(lambda: len(busy(sandbox.pid)) >= 3)
            zygote, below = sandbox.pid, descendants(sandbox.pid)
            os.kill(zygote, signal.SIGKILL)
            first = await run
            # What it is handed while it dies ends as the first.
            await eventually(lambda: state(zygote) in ("gone", "Z"))
            second = await sandbox.run(Program("print('again')"), SMALL)
            await eventually(lambda: all(state(pid) in ("gone", "Z") for pid in below))
            return first, second, below

    first, second, _ = asyncio.run(killed())
    assert first.cause is Cause.BROKEN
    assert second.stdout == b"again\n"


def test_runs_that_come_while_a_zygote_is_replaced_wait_for_the_new_one() -> None:
    async def killed() -> list[Ended]:
        # No spares: one that is just being forked holds the dead zygote's socket open, and takes what it can't keep.
        async with Sandbox(allow=list(Concern), spares=0) as sandbox:
            os.kill(sandbox.pid, signal.SIGKILL)
            await eventually(lambda: state(sandbox.pid) == "Z")
            return await asyncio.gather(*(sandbox.run(Program("pass"), SMALL) for _ in range(4)))

    assert [each.succeeded for each in asyncio.run(killed())] == [True] * 4


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_closing_while_a_zygote_is_replaced_leaves_no_process_behind(after_s: float) -> None:
    async def closed() -> list[Ended | BaseException]:
        async with Sandbox(allow=list(Concern)) as sandbox:
            os.kill(sandbox.pid, signal.SIGKILL)
            await eventually(lambda: state(sandbox.pid) == "Z")
            runs = [asyncio.create_task(sandbox.run(Program("pass"), SMALL)) for _ in range(2)]
            await asyncio.sleep(after_s)
            runs[0].cancel()  # it is the one that replaces it
        return await asyncio.gather(*runs, return_exceptions=True)

    before = set(descendants(os.getpid()))
    asyncio.run(closed())
    # What the killed one had made ready dies with it, of itself, and may come to this process to be buried.
    until(lambda: all(state(pid) in ("gone", "Z") for pid in set(descendants(os.getpid())) - before))


def test_a_zygote_that_comes_back_without_its_protections_runs_nothing() -> None:
    async def story() -> None:
        async with Sandbox(allow=list(Concern)) as open_to_all:
            uncovered = open_to_all.protections.uncovered
        if uncovered == set(Concern):
            pytest.skip("this machine can prevent nothing")
        async with Sandbox(allow=uncovered) as sandbox:
            sandbox._setup["without"] = [each.name for each in Mechanism]
            os.kill(sandbox.pid, signal.SIGKILL)
            await eventually(lambda: state(sandbox.pid) == "Z")
            for _ in range(2):
                with pytest.raises(Unprotected):
                    await until_it_is_refused(sandbox)

    async def until_it_is_refused(sandbox: Sandbox) -> None:
        """What was forked ahead may take a run over, an instant before it dies with the zygote."""
        while (await sandbox.run(Program("pass"), SMALL)).cause is Cause.BROKEN:
            pass

    asyncio.run(story())


def test_a_channel_is_closed_where_nothing_can_be_run() -> None:
    async def refused() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            with pytest.raises(SandboxError, match="never started"):
                await Sandbox().run(Program("pass"), SMALL, theirs)
            assert ours.recv(1) == b""

    asyncio.run(refused())


def test_what_is_readable_is_still_there_where_it_lies_below_the_folder_of_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "part.py").write_text("told = 42")
    source = f"""
import os, sys
sys.path.append({str(tmp_path)!r})
import part
print(part.told)
for path in ({str(tmp_path)!r}, {str(tmp_path / "part.py")!r}):
    try:
        os.remove(path) if path.endswith("py") else open(path + "/planted", "w")
    except OSError as error:
        print("refused")
open("/tmp/own", "w").write("its own")
"""

    async def read() -> Ended:
        async with Sandbox(allow=list(Concern), readable=[str(tmp_path)]) as sandbox:
            return await sandbox.run(Program(source), SMALL)

    ended = asyncio.run(read())
    if str(tmp_path).startswith("/tmp/"):
        assert (ended.status, ended.stdout) == (0, b"42\nrefused\nrefused\n"), ended
    assert (tmp_path / "part.py").exists()


@pytest.mark.parametrize("without", [(), (Mechanism.MOUNT_NAMESPACE,)], ids=["in a fresh root", "by Landlock"])
def test_what_is_readable_may_lie_in_what_is(without: Sequence[Mechanism]) -> None:
    async def read(*folders: str) -> Ended:
        async with Sandbox(allow=list(Concern), without=without, readable=folders) as sandbox:
            reads = f"for folder in {folders}: print(open(folder + '/told').read())"
            return await sandbox.run(Program(reads), SMALL)

    with TemporaryDirectory(dir="/var/tmp") as outer:  # not below the folder of runs
        inner = f"{outer}/inner"
        os.mkdir(inner)
        os.chmod(outer, 0o755)
        for folder in (inner, outer):
            Path(folder, "told").write_text("42")
        ended = asyncio.run(read(inner, outer))
    assert (ended.status, ended.stdout) == (0, b"42\n42\n"), ended


def test_an_environment_is_for_its_runs_and_shown_to_nobody_else() -> None:
    async def shown() -> tuple[bytes, bytes]:
        async with Sandbox(list(Concern), list(Mechanism), environment={"TOKEN": "secret-of-its-owner"}) as sandbox:
            ended = await sandbox.run(Program("import os; print(os.environ['TOKEN'])"), SMALL)
            return ended.stdout, Path(f"/proc/{sandbox.pid}/cmdline").read_bytes()

    said, command = asyncio.run(shown())
    assert said == b"secret-of-its-owner\n"
    assert b"secret" not in command


def test_what_c_prints_while_modules_are_loaded_is_printed_by_no_run(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("import ctypes\nctypes.CDLL(None).puts(b'loaded')\n")

    async def says() -> bytes:
        async with Sandbox(list(Concern), list(Mechanism), warm=["loud"], path=[str(tmp_path)]) as sandbox:
            return (await sandbox.run(Program("print(42)"), SMALL)).stdout

    assert asyncio.run(says()) == b"42\n"


def test_one_whose_imports_never_end_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr("rollmux.runtime.sandbox.sandbox._START_S", 2.0)
    sandbox = Sandbox(list(Concern), list(Mechanism), warm=["endless"], path=[str(tmp_path)])

    async def started() -> None:
        with pytest.raises(SandboxError, match="did not start within 2 s"):
            await sandbox.start()
        assert not Path(f"/proc/{sandbox.pid}").exists()

    asyncio.run(asyncio.wait_for(started(), 30.0))


def test_a_sandbox_that_can_not_start_says_so() -> None:
    with pytest.raises(SandboxError, match="instead of starting"):
        asyncio.run(Sandbox(list(Concern), warm=["no_such_module_at_all"]).start())


def test_containers_whose_processes_have_the_same_numbers_give_their_runs_other_users(full: World) -> None:
    source = """
import os, socket
from rollmux.runtime.sandbox.zygote import Setup, Zygote
print(os.getpid(), Zygote(socket.socketpair()[0], Setup())._user(0), flush=True)
input()
"""
    command = ["unshare", "-pf" if os.getuid() == 0 else "-rpf", sys.executable, "-c", source]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    pipe = subprocess.PIPE
    begun = partial(subprocess.Popen[str], command, stdin=pipe, stdout=pipe, env=environment, text=True)
    with begun() as one, begun() as two:
        told = [each.stdout.readline().split() for each in (one, two) if each.stdout is not None]
    assert told[0][0] == told[1][0] == "1"
    assert told[0][1] != told[1][1]


def test_root_that_can_not_be_another_user_has_its_runs_in_its_own_folders() -> None:
    with World((*NAMESPACES, Mechanism.OWN_USER)) as rooted:
        ended = rooted.run("open('made', 'w').write('42')\nprint(open('made').read())")
    assert ended.stdout == b"42\n", ended


def test_runs_whose_folders_are_in_memory_need_no_folder_that_can_be_written(full: World) -> None:
    if Mechanism.MOUNT_NAMESPACE not in full.sandbox.protections.active:
        pytest.skip("without mount namespaces their folders are on a disk")
    if any(path.startswith(("/tmp/", "/var/tmp/")) for path in (sys.prefix, sys.base_prefix, str(ROOT))):
        pytest.skip("what is run itself lies there")
    source = """
import asyncio
from rollmux.runtime.sandbox import *
async def main():
    async with Sandbox(allow=list(Concern)) as sandbox:
        print((await sandbox.run(Program("print(42)"), RunLimits())).stdout)
asyncio.run(main())
"""
    script = 'mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp && cd /tmp && exec "$@"'
    command = ["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c", script, "sh", sys.executable, "-c", source]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.check_output(command, env=environment, text=True) == "b'42\\n'\n"


@pytest.mark.parametrize("kills", [2, 3])
def test_a_sandbox_that_is_killed_while_it_starts_is_begun_anew_and_given_up_at_last(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[int]()

    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            begun.append(self.pid)
            if len(begun) <= kills:
                self.kill()

    async def says() -> bytes:
        async with Sandbox(list(Concern), list(Mechanism)) as sandbox:
            return (await sandbox.run(Program("print(6 * 7)"), SMALL)).stdout

    monkeypatch.setattr(subprocess, "Popen", Killed)
    if kills == 2:
        assert asyncio.run(says()) == b"42\n"
    else:
        with pytest.raises(SandboxError, match="ended with -9"):
            asyncio.run(says())
    assert len(begun) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)


def test_many_runs_at_once_get_their_own_answers(full: World) -> None:
    async def all_of_them() -> list[Ended]:
        programs = [Program(f"print(input() * {n})", stdin=b"ab\n") for n in range(1, 21)]
        return await asyncio.gather(*(full.sandbox.run(program, RunLimits()) for program in programs))

    assert [len(ended.stdout) for ended in full.do(all_of_them())] == [2 * n + 1 for n in range(1, 21)]


def test_what_is_not_covered_must_be_allowed_by_name() -> None:
    async def without(*allowed: Concern) -> Protections:
        async with Sandbox(allow=allowed, without=list(Mechanism)) as sandbox:
            return sandbox.protections

    with pytest.raises(Unprotected, match="leave processes behind") as refused:
        asyncio.run(without(Concern.FILES))
    assert refused.value.exposed == frozenset(Concern) - {Concern.FILES}
    protections = asyncio.run(without(*Concern))
    assert protections.active == frozenset()
    assert set(protections.missing) == set(Mechanism)
    assert "not prevented: leave processes behind" in protections.lines()


def test_each_concern_is_covered_by_what_can_cover_it_and_nothing_less() -> None:
    nothing = Protections(frozenset(), {})
    assert nothing.uncovered == frozenset(Concern)
    everything = Protections(frozenset(Mechanism), {})
    assert everything.uncovered == frozenset()
    container = frozenset({Mechanism.LANDLOCK, Mechanism.SECCOMP, Mechanism.OWN_USER})
    assert Protections(container, {}).uncovered == {Concern.DISK}
    assert Protections(container - {Mechanism.LANDLOCK}, {}).uncovered == {
        Concern.DISK,
        Concern.FILES,
        Concern.PROCESSES,
    }
    assert Concern.NETWORK in Protections(frozenset({Mechanism.NETWORK_NAMESPACE}), {}).uncovered


def test_a_landlock_that_the_kernel_has_is_used(full: World) -> None:
    """Else tests of what it alone protects would be left out, and nobody would see that it fails."""
    assert (Mechanism.LANDLOCK in full.sandbox.protections.active) == (kernel.landlock_version() > 0)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", "", "nul\0"])
def test_files_outside_of_the_folder_of_a_run_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        Program("pass", files={name: b""})


async def _spare(sandbox: Sandbox, before: list[int]) -> list[int]:
    """The keeper that waits, and its first process, once they are others than before."""
    if not {Mechanism.MOUNT_NAMESPACE, Mechanism.PID_NAMESPACE} <= sandbox.protections.active:
        pytest.skip("without namespaces there are no spares")
    found: list[int] = []

    def made() -> bool:
        found[:] = living(sandbox.pid)
        return len(found) == 2 and not set(found) & set(before)

    await eventually(made)
    return sorted(found, key=lambda pid: pid not in keepers(sandbox.pid))


@pytest.mark.parametrize("source", ["import helper\nprint(helper.NAME)", "from data.more import NAME\nprint(NAME)"])
def test_a_program_imports_what_lies_beside_it(world: World, source: str) -> None:
    files = {"helper.py": b"NAME = 'beside'", "data/more.py": b"NAME = 'beside'"}
    assert world.run(Program(source, files=files)).stdout == b"beside\n"


@pytest.mark.parametrize(
    ("name", "file", "found"),
    [
        ("queue", "queue.py", "own"),
        ("statistics", "./statistics/__init__.py", "own"),
        ("rollmux", "rollmux.py", "own"),
        ("json.decoder", "json/decoder.py", "python's"),
        ("queue", "queue", "python's"),
        ("os", "os.py", "python's"),
        ("encodings", "encodings.py", "python's"),
    ],
)
def test_a_program_brings_modules_in_the_place_of_pythons_where_python_takes_them(
    full: World, name: str, file: str, found: str
) -> None:
    source = f"import sys, {name}\nprint(getattr(sys.modules[{name!r}], 'WHOSE', \"python's\"))"
    assert full.run(Program(source, files={file: b"WHOSE = 'own'"})).stdout.decode() == f"{found}\n"


@pytest.mark.parametrize(
    ("files", "length"), [({}, 2**13), ({"program.py": b"own"}, 2**13), ({"data": bytes(2**16)}, 2**17)]
)
def test_the_text_of_a_program_is_beside_it_if_there_is_room_and_its_files_come_first(
    world: World, files: dict[str, bytes], length: int
) -> None:
    source = "import os; print({each: os.stat(each).st_size for each in os.listdir() if '.' in each})".ljust(length)
    ended = world.run(Program(source, files=files), replace(SMALL, disk_bytes=2**18 - 1))
    seen = {"program.py": len(files.get("program.py", source))} if length < 2**17 else {}
    assert ended.stdout.decode() == f"{seen}\n"


def test_who_ends_itself_by_the_signal_of_a_limit_was_not_ended_by_it(world: World) -> None:
    ended = world.run(Program("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)"))
    assert (ended.cause, ended.status) == (Cause.SIGNALLED, signal.SIGXCPU)


def test_folders_deeper_than_python_goes_are_removed_too() -> None:
    source = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nprint('made')"

    async def story() -> bytes:
        async with Sandbox(list(Concern), NAMESPACES) as sandbox:
            made = (await sandbox.run(Program(source), SMALL)).stdout
            await eventually(lambda: not _folders_of(sandbox.pid))
            return made

    assert asyncio.run(story()) == b"made\n"


def test_folders_that_a_program_has_closed_are_removed_too() -> None:
    """By whoever rights hold for: not by root."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.getuid() == 0:
                become_somebody()
            status = 0 if _is_removed_once_closed() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _is_removed_once_closed() -> bool:
    folder = Path(mkdtemp(dir="/tmp"))
    (folder / "one" / "two").mkdir(parents=True)
    (folder / "one" / "two" / "file").touch()
    for closed in (folder / "one" / "two", folder / "one", folder):
        closed.chmod(0)
    _remove(str(folder))
    return not os.path.lexists(folder)


def _folders_of(zygote: int) -> list[Path]:
    """Where these are on a disk. The zygote has no TMPDIR of whoever started it."""
    return [*Path("/tmp").glob(f"rollmux-run-{zygote}-*")]
