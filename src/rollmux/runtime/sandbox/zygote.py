"""The process from which runs are forked: Python is warm in it, and it never sees a program, an answer or a secret.

Invariant: the zygote runs as long as its owner and no longer, and when it is gone so are its runs. Programs don't pass
through it, but go from the owner straight to each run's keeper, so no run finds another's program in its memory. A
keeper serves one run; spare keepers wait for theirs, with all made ready that does not depend on the run.
"""

import gc
import glob
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NoReturn

from rollmux.runtime.sandbox import exits, frames, kernel, probe, root, tree
from rollmux.runtime.sandbox.inside import MOST_PROGRAM_BYTES, Place, job_of
from rollmux.runtime.sandbox.keeper import Keeper
from rollmux.runtime.sandbox.outcome import Cause, Ended
from rollmux.runtime.sandbox.protections import Mechanism, Protections

_NO_PROCESS_S = 0.05  # between attempts to make a spare keeper when no process can be forked
_AGAIN_S = 0.005  # between two attempts to end what is left of runs
_WARM_S = 90  # for all imports; the owner stops waiting before that
_SPREAD = 40_503  # namespaces have numbers in a row
_LOOK_S = 0.5  # how often the dead are buried and the owner is looked for
# What most programs import: a run need not load it, nor even have its files.
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
    spares: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A keeper that has no run yet."""

    pid: int
    link: socket.socket


class Zygote:
    """Serves one owner, over one socket."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control, self._setup = control, setup
        self._pid, self._owner_pid = os.getpid(), os.getppid()
        self._runs: dict[int, int] = {}  # keepers, spare ones too, and the slot of each
        self._spares: deque[_Waiting] = deque()
        self._protections = Protections(frozenset(), {})
        self._without = [Mechanism[name] for name in setup.without]
        # Containers number their processes alike, and share the users: so the number of a namespace counts, too.
        self._block = (self._pid + _SPREAD * os.stat("/proc/self/ns/pid").st_ino) % probe.USER_BLOCKS
        self._covered: tuple[str, ...] = ()
        self._folders = ""  # how paths of runs' own folders begin, if these are on a disk

    def serve(self) -> None:
        """Serves until the owner closes its end, or is gone."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        kernel.adopt_orphans()
        os.environ.update(self._setup.environment)
        signal.alarm(_WARM_S)  # else an import that never ends would go on when nobody waits any more
        for name in _WARM:
            import_module(name)
        with exits.noted():
            for name in self._setup.warm:
                module, _, function = name.partition(":")
                loaded = import_module(module)
                if function:
                    getattr(loaded, function)()
        kernel.flush_output()  # else each run would print what C has printed here
        signal.alarm(0)
        self._leave_root()
        self._protections = probe.probe(self._without)
        if Mechanism.CPU_COUNTER in self._protections.active:
            kernel.count_cpu(self._pid, below=False)  # held open: the first counter on a machine takes up to 0.1 s
        self._enter()
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in a fork would copy shared memory; runs switch it on again
        with suppress(ConnectionError):  # the owner may be gone: the loop below notices
            self._control.sendall(frames.packed(_told(self._protections)))
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while os.getppid() == self._owner_pid:
            if poll.poll(0 if self._wants_spare() else _LOOK_S * 1000):
                if not self._begin():
                    break
            elif self._wants_spare():
                self._make_spare()
            self._bury()
        self._end()

    def _leave_root(self) -> None:
        """Becomes another user first: in a user namespace root is still root to the kernel's limit of processes."""
        if os.getuid() == 0 and Mechanism.OWN_USER in self._without and Mechanism.USER_NAMESPACE not in self._without:
            with suppress(PermissionError):
                probe.become_somebody(self._user(0))
                kernel.hide_from_peers(hidden=False)  # else its own /proc/self is closed to it

    def _user(self, slot: int) -> int:
        """A user id that no other run has, of this zygote or of another."""
        return probe.FIRST_USER + self._block * probe.USERS_EACH + slot % probe.USERS_EACH

    def _enter(self) -> None:
        active = self._protections.active
        if Mechanism.MOUNT_NAMESPACE not in active:
            if self._setup.folder is None:  # not the owner's TMPDIR: the users of runs may have no access there
                self._folders = os.path.join(tempfile.gettempdir(), f"rollmux-run-{self._pid}-")
            return
        uid, gid = os.getuid(), os.getgid()
        inner = Mechanism.USER_NAMESPACE in active
        kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if inner else 0))
        if inner:
            kernel.map_ids(probe.NOBODY, uid, gid)
        self._covered = tuple(root.enter_fresh_root(self._setup.readable))

    def _begin(self) -> bool:
        """Hands a run to a spare keeper, or to a new one. False: the owner is done."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        except ConnectionResetError:  # the owner is gone, without having read all
            return False
        if not message:
            return False
        # If no process can be forked the owner sees its connection closed.
        while (keeper := self._spares.popleft() if self._spares else self._fork(spare=False)) is not None:
            with keeper.link, suppress(BrokenPipeError, ConnectionResetError):  # if a spare is gone: the next
                socket.send_fds(keeper.link, [b"r"], descriptors)
                break
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _wants_spare(self) -> bool:
        """Whether to make a spare: spares must be out of reach of hostile runs, and leave nothing to clean up."""
        apart = {Mechanism.MOUNT_NAMESPACE, Mechanism.PID_NAMESPACE} <= self._protections.active
        return apart and len(self._spares) < self._setup.spares

    def _make_spare(self) -> None:
        keeper = self._fork(spare=True)
        if keeper is None:
            time.sleep(_NO_PROCESS_S)
        else:
            self._spares.append(keeper)

    def _fork(self, spare: bool) -> _Waiting | None:
        slot = min(set(range(len(self._runs) + 1)) - set(self._runs.values()))
        link, kept = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            link.close()
            kept.close()
            return None
        if pid == 0:
            link.close()
            self._control.close()
            for other in self._spares:
                other.link.close()
            self._keep(kept, slot, spare)
        kept.close()
        self._runs[pid] = slot
        return _Waiting(pid, link)

    def _keep(self, link: socket.socket, slot: int, spare: bool) -> NoReturn:
        status = 1
        try:
            kernel.die_with_parent()
            place = self._place(slot)
            try:
                _keep_one(place, link, spare)
            finally:
                if self._folders:
                    _remove(place.folder)
            status = 0
        except (frames.BrokenFrame, BrokenPipeError, ConnectionResetError):
            status = 0  # the owner has gone away
        finally:
            os._exit(status)

    def _place(self, slot: int) -> Place:
        setup, uid = self._setup, self._user(slot)
        folder = self._empty_folder(uid) if self._folders else setup.folder or root.SCRATCH
        environment = {"HOME": folder, **dict(setup.environment)}
        own = setup.folder is None
        return Place(environment, folder, uid, self._protections, setup.readable, self._covered, own)

    def _empty_folder(self, uid: int) -> str:
        folder = tempfile.mkdtemp(prefix=os.path.basename(self._folders), dir=os.path.dirname(self._folders))
        if Mechanism.OWN_USER in self._protections.active:
            with suppress(PermissionError):
                os.chown(folder, uid, uid)
        return folder

    def _bury(self) -> None:
        """Buries the dead, and kills processes that lost their keeper: without a pid namespace they come here."""
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._runs.pop(pid, None)
        tree.kill_below(self._pid, self._runs.keys())

    def _end(self) -> None:
        """Ends all runs, and deletes their folders."""
        with suppress(ChildProcessError):
            while True:
                tree.kill_below(self._pid)
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(_AGAIN_S)
        for folder in glob.glob(f"{self._folders}*") if self._folders else ():
            _remove(folder)


def _keep_one(place: Place, link: socket.socket, spare: bool) -> None:
    """Makes the place, waits for its run, and answers the run's owner."""
    keeper, failure = None, ""
    try:
        keeper = Keeper(place)
    except OSError as error:
        failure = f"its keeper failed: {error}"
    if spare and (keeper is None or not keeper.waits_for(link)):
        return  # the run goes to another keeper
    with link:
        descriptors = socket.recv_fds(link, 1, 2)[1]
    if not descriptors:
        return
    owner = socket.socket(fileno=descriptors[0])
    head, (stdin, *blobs) = frames.receive(owner, MOST_PROGRAM_BYTES)
    channel = descriptors[1] if len(descriptors) > 1 else None
    ended: Ended | None = Ended(Cause.BROKEN, 0, b"", b"", 0.0, 0.0, 0, failure)
    if keeper is not None:
        try:
            ended = keeper.run(job_of(head, blobs), stdin, owner, channel)
        except OSError as error:
            ended = Ended(Cause.BROKEN, 0, b"", b"", 0.0, 0.0, 0, f"its keeper failed: {error}")
    if ended is not None:
        owner.sendall(_answer(ended))


def _remove(folder: str) -> None:
    """Removes a folder, which may be deeper than Python's own function goes, and closed to users other than root."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        os.spawnlp(os.P_WAIT, "chmod", "chmod", "-Rf", "u+rwx", folder)  # follows no links
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", folder)


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
    """`python -c ... DESCRIPTOR`, as the owner starts it. The setup has secrets, which arguments would show to all."""
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        setup, _ = frames.receive(control, 0)
    except frames.BrokenFrame:  # the owner is gone already
        return
    environment = tuple((str(name), str(value)) for name, value in setup.pop("environment"))
    Zygote(control, Setup(environment=environment, **setup)).serve()
