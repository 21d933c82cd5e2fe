"""The inner half of a run: the first process of its tree, which puts all protections on and starts the program.

Invariant: the program's first instruction runs after the last protection is on. What happens from then on is the
program's doing, never the sandbox's.
"""

import atexit
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from math import ceil
from types import ModuleType
from typing import NoReturn

from rollmux.runtime.sandbox import kernel, landlock, root, seccomp
from rollmux.runtime.sandbox.limits import RunLimits
from rollmux.runtime.sandbox.probe import NOBODY, become_somebody
from rollmux.runtime.sandbox.protections import Mechanism, Protections

STARTED = b"started\n"
MEMORY_STATUS = 113  # what a run ends with when an allocation failed and nobody caught that
_SIGNALS = 1024  # that wait, or that a timer has set aside
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_UNSHARED = {
    Mechanism.MOUNT_NAMESPACE: kernel.CLONE_NEWNS,
    Mechanism.NETWORK_NAMESPACE: kernel.CLONE_NEWNET,
    Mechanism.IPC_NAMESPACE: kernel.CLONE_NEWIPC,
}
_COUNTED_APART = {Mechanism.OWN_USER, Mechanism.USER_NAMESPACE}


@dataclass(frozen=True, slots=True)
class Job:
    """All that the inner half is told."""

    source: str
    command: tuple[str, ...]
    files: Mapping[str, bytes]
    environment: Mapping[str, str]
    folder: str
    limits: RunLimits
    uid: int
    protections: Protections
    covered: tuple[str, ...] = ()  # what is readable where the scratch folder comes


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors that the inner half keeps."""

    stdin: int
    stdout: int
    stderr: int
    status: int
    go: int
    channel: int | None


def begin(job: Job, ends: Ends) -> NoReturn:
    """In the first process of the tree: protect, start the program, bury its dead, tell how it ended."""
    try:
        _begin(job, ends)
    finally:
        os._exit(1)  # whatever fails here, nothing of it goes on as a second keeper


def _begin(job: Job, ends: Ends) -> None:
    try:
        kernel.die_with_parent()
        if os.read(ends.go, 1) != b"g":
            return  # whoever watches is gone
        _protect(job)
        os.write(ends.status, STARTED)  # fails where the keeper has died meanwhile
        pid = os.fork()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the sandbox's, and its owner must hear of it
        os.write(ends.status, f"broken {error!r}\n".encode())
        return
    if pid == 0:
        _run(job, ends)
    _close_all_but(ends.status)
    os.write(ends.status, _bury_until(pid))


def _bury_until(pid: int) -> bytes:
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}\n".encode() if code >= 0 else f"signal {-code}\n".encode()


def _protect(job: Job) -> None:
    active = job.protections.active
    os.setsid()
    with suppress(OSError):
        kernel.be_killed_first()
    kernel.unshare(sum(flag for each, flag in _UNSHARED.items() if each in active))
    if Mechanism.MOUNT_NAMESPACE in active:
        inner = job.uid if Mechanism.OWN_USER in active else NOBODY
        root.mount_scratch(inner, job.limits.disk_bytes, job.limits.disk_files, job.covered)
        if Mechanism.PID_NAMESPACE in active:
            root.mount_own_proc()
    if active:
        kernel.empty_bounding_set()
    if Mechanism.OWN_USER in active:
        become_somebody(job.uid)
        kernel.die_with_parent()  # becoming somebody else has undone it
    os.chdir(job.folder)
    _write_files(job.files)
    if Mechanism.PID_NAMESPACE not in active:
        kernel.adopt_orphans()
    if active:
        _give_up_rights(job)
    kernel.hide_from_peers(hidden=True)


def _give_up_rights(job: Job) -> None:
    active = job.protections.active
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    if Mechanism.LANDLOCK in active:
        fresh = Mechanism.MOUNT_NAMESPACE in active
        readable = ["/"] if fresh else root.readable()
        writable = [job.folder, *(path for path in _DEVICES if os.path.exists(path))]
        landlock.restrict(job.protections.landlock_version, readable, writable)
    if Mechanism.SECCOMP in active:
        kernel.install_filter(seccomp.filter_program(socket_pairs=Mechanism.NETWORK_NAMESPACE in active))


def _write_files(files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def _run(job: Job, ends: Ends) -> NoReturn:
    """In the program's own process."""
    status = 1
    try:
        _take_descriptors(ends)
        _reset_signals()
        _limit(job.limits, counted=bool(job.protections.active & _COUNTED_APART))
        kernel.hide_from_peers(hidden=False)
        os.setsid()
        status = _execute(job) if job.command else _interpret(job)
    finally:
        os._exit(status)


def _take_descriptors(ends: Ends) -> None:
    for number, wanted in enumerate((ends.stdin, ends.stdout, ends.stderr)):
        os.dup2(wanted, number)
    if ends.channel is not None:
        os.dup2(ends.channel, 3)
    os.closerange(3 if ends.channel is None else 4, 1 << 16)


def _close_all_but(kept: int) -> None:
    os.closerange(0, kept)
    os.closerange(kept + 1, 1 << 16)


def _reset_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _limit(limits: RunLimits, counted: bool) -> None:
    """For each process; what they take together is watched from outside. Processes are counted by user."""
    cpu_s = ceil(limits.cpu_s) + 1
    wanted = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_NOFILE: (limits.open_files,) * 2,
        resource.RLIMIT_FSIZE: (limits.disk_bytes,) * 2,
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (_SIGNALS, _SIGNALS),
    }
    if limits.address_bytes is not None:
        wanted[resource.RLIMIT_AS] = (limits.address_bytes,) * 2
    if counted:
        wanted[resource.RLIMIT_NPROC] = (limits.processes + 1,) * 2
    for kind, (soft, hard) in wanted.items():
        most = resource.getrlimit(kind)[1]
        held = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (min(soft, held), held))


def _execute(job: Job) -> int:
    try:
        os.execvpe(job.command[0], job.command, dict(job.environment))
    except OSError as error:
        os.write(2, f"{job.command[0]}: {error.strerror}\n".encode())
    return 127


def _interpret(job: Job) -> int:
    """As `python program.py` would, in the interpreter that is warm already."""
    os.environ.clear()
    os.environ.update(job.environment)
    sys.argv = ["program.py"]
    stderr = _text(2, "w")
    stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), stderr
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    status = _guarded(lambda: exec(compile(job.source, "program.py", "exec"), module.__dict__))
    return _guarded(_finish) or status


def _text(number: int, mode: str) -> TextIOWrapper:
    stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    assert isinstance(stream, TextIOWrapper)
    return stream


def _finish() -> None:
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does at its end
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def _guarded(call: Callable[[], None]) -> int:
    try:
        call()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except MemoryError:
        traceback.print_exc()
        return MEMORY_STATUS
    except BaseException:  # noqa: BLE001 - whatever a program raises is its own result
        traceback.print_exc()
        return 1
    return 0
