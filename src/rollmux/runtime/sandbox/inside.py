"""The inner half of a run: the first process of its tree, which puts all protections on and starts the program.

Invariant: the program's first instruction runs after the last protection is on. What happens from then on is the
program's doing, never the sandbox's.
"""

import atexit
import builtins
import gc
import linecache
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from itertools import pairwise, takewhile
from math import ceil
from types import ModuleType
from typing import Any, NoReturn, TextIO

from rollmux.runtime.sandbox import exits, frames, kernel, landlock, root, seccomp
from rollmux.runtime.sandbox.limits import BOM, RunLimits
from rollmux.runtime.sandbox.probe import NOBODY, become_somebody
from rollmux.runtime.sandbox.protections import Mechanism, Protections

MOST_PROGRAM_BYTES = 1 << 28
STARTED = b"started\n"
MEMORY_STATUS = 113  # a run's exit status if an allocation failed and the program did not catch that
_PROGRAM = "program.py"
_BETWEEN = 10  # further calls on the stack: those of C, which have no frame, and those that ask a program for asserts
_NO_DUMP = 1  # bytes: the kernel ignores a 0 if dumps go to a program of the machine's (core(5))
_SIGNALS = 1024  # the most that may be pending, or set aside by timers
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_ZEROS = "/dev/zero"  # a shared mapping of it would be memory that nobody counts
_UNSHARED = {
    Mechanism.MOUNT_NAMESPACE: kernel.CLONE_NEWNS,
    Mechanism.NETWORK_NAMESPACE: kernel.CLONE_NEWNET,
    Mechanism.IPC_NAMESPACE: kernel.CLONE_NEWIPC,
}
_COUNTED_APART = {Mechanism.OWN_USER, Mechanism.USER_NAMESPACE}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run will be: all that is known before there is a program."""

    environment: Mapping[str, str]
    folder: str
    uid: int
    protections: Protections
    readable: tuple[str, ...] = ()  # what runs may read besides Python's own files
    covered: tuple[str, ...] = ()  # what of `readable` the scratch folder will cover
    folder_is_own: bool = True  # nobody else has anything in it, no other run either


@dataclass(frozen=True, slots=True)
class Job:
    """What is run in a place."""

    source: bytes
    command: tuple[str, ...]
    files: Mapping[str, bytes]
    limits: RunLimits


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors that the inner half keeps."""

    stdin: int
    stdout: int
    stderr: int
    status: int
    go: int


def begin(place: Place, ends: Ends) -> NoReturn:
    """In the first process of the tree: protects, starts the program, buries its dead, tells how it ended."""
    try:
        _begin(place, ends)
    finally:
        os._exit(1)  # whatever fails, this process must not go on as a second keeper


def _begin(place: Place, ends: Ends) -> None:
    try:
        kernel.die_with_parent()
        _close_all_but(0, 1, 2, ends.stdin, ends.stdout, ends.stderr, ends.status, ends.go)
        _protect_early(place)
        told = _told(ends.go)
        if told is None:
            return  # the keeper is gone
        job, channel = told
        _protect(place, job)
        if channel is None and place.folder_is_own:
            _show_program(job)
        os.write(ends.status, STARTED)  # fails if the keeper has died meanwhile
        pid = os.fork()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the sandbox's, and its owner must hear of it
        os.write(ends.status, f"broken {error!r}\n".encode())
        return
    if pid == 0:
        _run(place, job, ends, channel)
    _close_all_but(ends.status)
    os.write(ends.status, _bury_until(pid))


def tell(go: socket.socket, job: Job, channel: int | None) -> None:
    """In the keeper: gives the first process the job that it waits for."""
    head = {"command": list(job.command), "files": list(job.files), "limits": asdict(job.limits)}
    socket.send_fds(go, [b"g"], [] if channel is None else [channel])
    go.sendall(frames.packed(head, [job.source, *job.files.values()]))


def _told(go: int) -> tuple[Job, int | None] | None:
    with socket.socket(fileno=go) as connection:
        message, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if message != b"g":
            return None
        job = job_of(*frames.receive(connection, MOST_PROGRAM_BYTES))
    return job, descriptors[0] if descriptors else None


def job_of(head: dict[str, Any], blobs: list[bytes]) -> Job:
    """The job out of a message: `blobs` are its source, then its files."""
    files = dict(zip(head["files"], blobs[1:], strict=True))
    return Job(blobs[0], tuple(head["command"]), files, RunLimits(**head["limits"]))


def _bury_until(pid: int) -> bytes:
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}\n".encode() if code >= 0 else f"signal {-code}\n".encode()


def _protect_early(place: Place) -> None:
    """Puts on what takes long and does not depend on limits, while there is no program yet."""
    active = place.protections.active
    os.setsid()
    with suppress(OSError):
        kernel.be_killed_first()
    kernel.unshare(sum(flag for each, flag in _UNSHARED.items() if each in active))
    if Mechanism.MOUNT_NAMESPACE in active:
        if Mechanism.PID_NAMESPACE in active:
            root.mount_own_proc()
        else:
            root.cover_proc()
    if active:
        kernel.empty_bounding_set()


def _protect(place: Place, job: Job) -> None:
    active = place.protections.active
    if Mechanism.MOUNT_NAMESPACE in active:
        inner = place.uid if Mechanism.OWN_USER in active else NOBODY
        root.mount_scratch(inner, job.limits.disk_bytes, job.limits.disk_files, place.covered)
    if Mechanism.OWN_USER in active:
        become_somebody(place.uid)
        kernel.die_with_parent()  # a change of user has undone it
    os.chdir(place.folder)
    _hold(resource.RLIMIT_CORE, _NO_DUMP, _NO_DUMP)  # the filter forbids to set it later
    _write_files(job.files)
    if Mechanism.PID_NAMESPACE not in active:
        kernel.adopt_orphans()
    if active:
        _give_up_rights(place)
    kernel.hide_from_peers(hidden=True)


def _give_up_rights(place: Place) -> None:
    active, version = place.protections.active, place.protections.landlock_version
    fresh = Mechanism.MOUNT_NAMESPACE in active
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    if Mechanism.LANDLOCK in active:
        readable = ["/"] if fresh else [*root.readable(place.readable), _ZEROS]
        writable = [place.folder, *(path for path in _DEVICES if os.path.exists(path))]
        landlock.restrict(version, readable, writable)
    if Mechanism.SECCOMP in active:
        pairs, truncate = Mechanism.NETWORK_NAMESPACE in active, fresh or version >= landlock.SINCE_TRUNCATE
        kernel.install_filter(seccomp.filter_program(socket_pairs=pairs, truncate=truncate))


def _write_files(files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def _show_program(job: Job) -> None:
    """Writes the program where Python would find it, for programs that open or start themselves, if the disk has room.

    Not for a program with a channel: it answers or judges over the channel, and its text may have the tests in it.
    """
    disk = os.statvfs(".")
    if 0 < len(job.source) <= min(job.limits.disk_bytes, disk.f_bavail * disk.f_frsize) // 2:
        with suppress(OSError), open(_PROGRAM, "xb") as file:
            file.write(job.source)


def _run(place: Place, job: Job, ends: Ends, channel: int | None) -> NoReturn:
    """Runs the program, in its own process."""
    status = 1
    try:
        _take_descriptors(ends, channel)
        _limit(job.limits, counted=bool(place.protections.active & _COUNTED_APART))
        kernel.hide_from_peers(hidden=False)
        os.setsid()
        gc.enable()
        if job.command:
            status = _execute(job.command, place.environment)
        else:
            source = job.source.decode(errors="surrogatepass").removeprefix(BOM)
            status = _interpret(source, place.environment, job.files, by_itself=channel is None)
    finally:
        os._exit(status)


def _take_descriptors(ends: Ends, channel: int | None) -> None:
    for number, wanted in enumerate((ends.stdin, ends.stdout, ends.stderr)):
        os.dup2(wanted, number)
    if channel is not None:
        os.dup2(channel, 3)
    os.closerange(3 if channel is None else 4, 1 << 16)


def _close_all_but(*kept: int) -> None:
    for below, above in pairwise([-1, *sorted(kept), 1 << 16]):
        if below + 1 < above:  # an empty range that ends at 0 would close everything
            os.closerange(below + 1, above)


def _limit(limits: RunLimits, counted: bool) -> None:
    """Limits each single process; the keeper watches what they take together. The kernel counts processes by user."""
    cpu_s = ceil(limits.cpu_s) + 1
    wanted = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_NOFILE: (limits.open_files,) * 2,
        resource.RLIMIT_FSIZE: (limits.disk_bytes,) * 2,
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (_SIGNALS, _SIGNALS),
    }
    if limits.address_bytes is not None:
        kernel.share_arenas()
        wanted[resource.RLIMIT_AS] = (limits.address_bytes,) * 2
    if counted:
        wanted[resource.RLIMIT_NPROC] = (limits.processes + 1,) * 2
    for kind, (soft, hard) in wanted.items():
        _hold(kind, soft, hard)


def _hold(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, within the one that this process has already."""
    most = resource.getrlimit(kind)[1]
    held = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(kind, (min(soft, held), held))


def _execute(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, dict(environment))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    return 127


def _interpret(source: str, environment: Mapping[str, str], files: Collection[str], *, by_itself: bool) -> int:
    """Runs the source as `python program.py` would beside these files, in this interpreter, which is warm already."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exits.forget()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [_PROGRAM]
    if files or by_itself:
        sys.path.insert(0, os.getcwd())
        _forget(map(os.path.normpath, files))
    stderr = _text(2, "w")
    stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    streams = sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), stderr
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    if by_itself:  # else a process that it spawns would start it anew
        module.__file__ = os.path.abspath(_PROGRAM)
    linecache.cache[_PROGRAM] = len(source), None, source.splitlines(keepends=True), _PROGRAM
    del module  # only the program itself may refer to what it makes
    status = _guarded(lambda: _run_text(source))
    return _guarded(lambda: _finish(streams)) or status


def _forget(files: Iterable[str]) -> None:
    """Forgets warm modules of which the program brings its own, except those that any new Python has loaded."""
    bare = set(takewhile(lambda name: name != "rollmux", sys.modules))
    modules = {name.removesuffix(".py").removesuffix("/__init__") for name in files if name.endswith(".py")}
    for name in list(sys.modules):
        if name.partition(".")[0] in modules - bare:
            del sys.modules[name]


def _run_text(source: str) -> None:
    """Runs the text with all of Python's recursion limit left to it: calls on the stack by now don't count."""
    below = sum(1 for _ in traceback.walk_stack(sys._getframe()))
    sys.setrecursionlimit(sys.getrecursionlimit() + below + _BETWEEN)
    exec(compile(source, _PROGRAM, "exec"), vars(sys.modules["__main__"]))


def _text(number: int, mode: str) -> TextIOWrapper:
    stream = open(number, mode, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False)  # noqa: SIM115
    assert isinstance(stream, TextIOWrapper)
    return stream


def _finish(streams: tuple[TextIO, TextIO, TextIO]) -> None:
    """Ends as the interpreter does: output that the program has not written yet is written when its objects go."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    _flush(getattr(sys, "stdout", None), getattr(sys, "stderr", None))
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.modules.pop("__main__", None)
    gc.collect()
    _flush(*streams[1:])
    kernel.flush_output()


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        with suppress(ValueError):  # it is closed, or its descriptor is another file's now
            if stream is not None:
                stream.flush()


def _guarded(call: Callable[[], None]) -> int:
    try:
        call()
    except SystemExit as ended:
        return _exit_status(ended)
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its own result
        return _reported(error)
    return 0


def _exit_status(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _reported(error: BaseException) -> int:
    """Reports an error by the program's own hook, if it has one; returns the exit status."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit as ended:
        return _exit_status(ended)
    except BaseException as another:  # noqa: BLE001 - the hook's, which is none too
        for each in (another, error):
            sys.__excepthook__(type(each), each, each.__traceback__)
    return MEMORY_STATUS if isinstance(error, MemoryError) else 1
