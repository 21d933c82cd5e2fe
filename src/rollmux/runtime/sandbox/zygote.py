"""The process from which runs are forked: Python is warm in it, and it never sees a program, an answer or a secret.

Invariant: it runs as long as its owner and no longer, and when it is gone so are its runs. Programs go past it, from
the owner straight to each run's keeper, so that no run finds another's in its memory.
"""

import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NoReturn

from rollmux.runtime.sandbox import frames, kernel, probe, root
from rollmux.runtime.sandbox.inside import Job
from rollmux.runtime.sandbox.keeper import Keeper
from rollmux.runtime.sandbox.limits import RunLimits
from rollmux.runtime.sandbox.outcome import Cause, Ended
from rollmux.runtime.sandbox.protections import Mechanism, Protections

MOST_PROGRAM_BYTES = 1 << 28
_LOOK_S = 0.5  # how often the dead are buried and the owner is looked for
# What most programs import: whatever is loaded here need not be loaded, or even be there, in a run.
_WARM = (
    "abc", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "copy", "ctypes",
    "dataclasses", "datetime", "decimal", "encodings.ascii", "encodings.idna", "encodings.latin_1", "enum",
    "fractions", "functools", "glob", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "mmap",
    "multiprocessing", "numbers", "operator", "pickle", "pprint", "queue", "random", "re", "secrets", "socket",
    "statistics", "string", "struct", "subprocess", "textwrap", "threading", "time", "traceback", "types", "typing",
    "unittest", "uuid",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """What a zygote is told when it is started."""

    without: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    folder: str | None = None  # where runs start; None: an empty folder of their own


class Zygote:
    """Serves one owner, over one socket."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control, self._setup = control, setup
        self._pid, self._owner_pid = os.getpid(), os.getppid()
        self._runs: dict[int, int] = {}
        self._protections = Protections(frozenset(), {})
        self._without = [Mechanism[name] for name in setup.without]
        self._covered: tuple[str, ...] = ()

    def serve(self) -> None:
        """Until the owner closes its end, or is gone."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        kernel.adopt_orphans()
        os.environ.update(self._setup.environment)
        for name in (*_WARM, *self._setup.warm):
            module, _, function = name.partition(":")
            loaded = import_module(module)
            if function:
                getattr(loaded, function)()
        self._leave_root()
        self._protections = probe.probe(self._without)
        self._enter()
        gc.collect()
        gc.freeze()
        self._control.sendall(frames.packed(_told(self._protections)))
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while os.getppid() == self._owner_pid:
            if poll.poll(_LOOK_S * 1000) and not self._begin():
                break
            self._bury()
        self._end()

    def _leave_root(self) -> None:
        """Root in a user namespace is still root to the kernel's limit of processes: it must be somebody else first."""
        if os.getuid() == 0 and Mechanism.OWN_USER in self._without and Mechanism.USER_NAMESPACE not in self._without:
            with suppress(PermissionError):
                probe.become_somebody(self._user(0))
                kernel.hide_from_peers(hidden=False)  # or its own /proc/self is closed to it

    def _user(self, slot: int) -> int:
        """A user that no other run has, of this zygote or of another."""
        return probe.FIRST_USER + self._pid % (1 << 16) * probe.USERS_EACH + slot % probe.USERS_EACH

    def _enter(self) -> None:
        active = self._protections.active
        if Mechanism.MOUNT_NAMESPACE not in active:
            return
        uid, gid = os.getuid(), os.getgid()
        inner = Mechanism.USER_NAMESPACE in active
        kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if inner else 0))
        if inner:
            kernel.map_ids(probe.NOBODY, uid, gid)
        self._covered = tuple(root.enter_fresh_root(self._setup.readable))

    def _begin(self) -> bool:
        """Forks the keeper of a run; False: the owner is done."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            return False
        slot = min(set(range(len(self._runs) + 1)) - set(self._runs.values()))
        try:
            pid = os.fork()
        except OSError:  # no process is to be had now: the owner sees its connection closed
            pid = -1
        if pid == 0:
            self._control.close()
            self._keep(descriptors, slot)
        if pid > 0:
            self._runs[pid] = slot
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _keep(self, descriptors: list[int], slot: int) -> NoReturn:
        status = 1
        try:
            kernel.die_with_parent()
            owner = socket.socket(fileno=descriptors[0])
            head, blobs = frames.receive(owner, MOST_PROGRAM_BYTES)
            channel = descriptors[1] if len(descriptors) > 1 else None
            ended = _kept(self._job(head, blobs, slot), blobs[1], owner, channel)
            if ended is not None:
                owner.sendall(_answer(ended))
            status = 0
        except (frames.BrokenFrame, BrokenPipeError, ConnectionResetError):
            status = 0  # the owner has gone away
        finally:
            os._exit(status)

    def _job(self, head: dict[str, Any], blobs: list[bytes], slot: int) -> Job:
        setup = self._setup
        fresh = Mechanism.MOUNT_NAMESPACE in self._protections.active
        uid = self._user(slot)
        folder = setup.folder or (root.SCRATCH if fresh else _empty_folder(uid))
        return Job(
            source=blobs[0].decode(errors="surrogatepass"),
            command=tuple(head["command"]),
            files=dict(zip(head["files"], blobs[2:], strict=True)),
            environment={"HOME": folder, **dict(setup.environment)},
            folder=folder,
            limits=RunLimits(**head["limits"]),
            uid=uid,
            protections=self._protections,
            covered=self._covered,
        )

    def _bury(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._runs.pop(pid, None)

    def _end(self) -> None:
        """Keepers take their trees with them; what they leave is adopted here, and waited for."""
        for pid in self._runs:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _kept(job: Job, stdin: bytes, owner: socket.socket, channel: int | None) -> Ended | None:
    try:
        return Keeper(job, stdin, owner, channel).run()
    except OSError as error:
        return Ended(Cause.BROKEN, 0, b"", b"", 0.0, 0.0, 0, f"its keeper failed: {error}")
    finally:
        if Mechanism.MOUNT_NAMESPACE not in job.protections.active and job.folder.startswith(_FOLDERS):
            shutil.rmtree(job.folder, ignore_errors=True)


_FOLDERS = os.path.join(tempfile.gettempdir(), "rollmux-run-")


def _empty_folder(uid: int) -> str:
    folder = tempfile.mkdtemp(prefix=os.path.basename(_FOLDERS))
    with suppress(PermissionError):
        os.chown(folder, uid, uid)
    return folder


def _told(protections: Protections) -> dict[str, Any]:
    return {
        "active": [mechanism.name for mechanism in protections.active],
        "missing": {mechanism.name: why for mechanism, why in protections.missing.items()},
        "landlock_version": protections.landlock_version,
    }


def _answer(ended: Ended) -> bytes:
    head = asdict(ended)
    blobs = [head.pop("stdout"), head.pop("stderr")]
    return frames.packed({**head, "cause": ended.cause.name}, blobs)


def main() -> None:
    """`python -c ... DESCRIPTOR`, as the owner starts it. The setup has secrets, and arguments are for all to see."""
    control = socket.socket(fileno=int(sys.argv[1]))
    setup, _ = frames.receive(control, 0)
    environment = tuple((str(name), str(value)) for name, value in setup.pop("environment"))
    Zygote(control, Setup(environment=environment, **setup)).serve()
