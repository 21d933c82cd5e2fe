"""Running programs of strangers: the owner's side, for asyncio.

Invariant: every run ends in exactly one `Ended`, within its wall limit and a time of grace; a run that is no longer
awaited is killed with all that it started; closing leaves no process behind.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from rollmux import system
from rollmux.runtime.sandbox import frames
from rollmux.runtime.sandbox.limits import Program, RunLimits
from rollmux.runtime.sandbox.outcome import Cause, Ended
from rollmux.runtime.sandbox.protections import Concern, Mechanism, Protections, SandboxError

_SOURCE = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path[:0] = {path!r}; from rollmux.runtime.sandbox.zygote import main; main()"
_START_S = 60.0
_STARTS = 3  # at most, if zygotes are killed from outside before they can say a word
_GRACE_S = 30.0  # for a busy machine to end a run that its limits have stopped, and to report that
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "random",
    # numpy would start a thread for each core: on a large machine more than a run may have
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
_BUSY_S = 0.002
_SPARES = system.cores()


class _Killed(SandboxError):
    """A zygote was killed while it started."""


class Sandbox:
    """Runs programs side by side, each in a process tree of its own.

    `allow` names what hostile code may do if this machine can't prevent it; `without` leaves protections out.
    `warm` names modules to load once for all runs, or `module:function` to call too; `readable` are folders that runs
    may read besides Python's own. `environment`, `path` and `folder` are for trusted code. `spares` keepers
    wait with everything made ready for a run; each serves one run.
    """

    def __init__(
        self,
        allow: Collection[Concern] = (),
        without: Collection[Mechanism] = (),
        warm: Sequence[str] = (),
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        path: Sequence[str] = (),
        folder: str | None = None,
        spares: int = _SPARES,
    ) -> None:
        self._allow = frozenset(allow)
        self._path = [_SOURCE, *path]
        self._setup = {
            "without": [mechanism.name for mechanism in without],
            "warm": list(warm),
            "readable": list(readable),
            "environment": list((_ENVIRONMENT if environment is None else dict(environment)).items()),
            "folder": folder,
            "spares": spares,
        }
        self._closed, self._restarting = True, asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._protections: Protections | None = None

    @property
    def protections(self) -> Protections:
        """Which protections are active; known once the sandbox has started."""
        if self._protections is None:
            raise SandboxError("a sandbox that is not started has tried no protection: use `async with` or start()")
        return self._protections

    @property
    def pid(self) -> int:
        """The zygote's process id: all runs are below it."""
        if self._process is None:
            raise SandboxError("a sandbox that is not started has no process: use `async with` or start()")
        return self._process.pid

    async def start(self) -> Self:
        """Starts the zygote. Refuses if this machine can't prevent what it must."""
        if not system.IS_LINUX:
            raise SandboxError(
                "the sandbox is made of what only Linux has: score maths, code and functions there; judges and awaited "
                "functions need none"
            )
        self._closed = False
        try:
            await self._spawn()
        except BaseException:
            await self.close()
            raise
        return self

    async def _spawn(self) -> None:
        """Starts a zygote, and another one if it is killed from outside while it starts."""
        for _ in range(_STARTS - 1):
            with suppress(_Killed):
                return await self._spawn_once()
        return await self._spawn_once()

    async def _spawn_once(self) -> None:
        """Starts a zygote, and checks that it prevents what it must. If this is broken off, the zygote ends."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-I", "-c", _BOOT.format(path=self._path), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "random"},
                start_new_session=True,
            )
        with ExitStack() as unless_ready:
            unless_ready.callback(self._process.kill)  # it may be in an import that never ends
            unless_ready.enter_context(ours)
            try:
                async with asyncio.timeout(_START_S):
                    await asyncio.get_running_loop().sock_sendall(ours, frames.packed(self._setup))
                    told, _ = await frames.receive_soon(ours, 0)
            except (frames.BrokenFrame, ConnectionError):
                status = await asyncio.to_thread(self._process.wait)
                how = f"the sandbox ended with {status} instead of starting; see its standard error"
                raise (_Killed if status < 0 else SandboxError)(how) from None
            except TimeoutError:
                raise SandboxError(f"the sandbox did not start within {_START_S:g} s: warm it with less") from None
            self._protections = _protections(told)
            self._protections.require(self._allow)
            unless_ready.pop_all()
        self._control = ours

    async def _restart(self, broken: socket.socket | None) -> None:
        """Replaces a zygote that is gone, once for all runs that notice. Runs that come meanwhile wait for it."""
        async with self._restarting:
            if self._control is broken and not self._closed:
                await self._stop()
                await self._spawn()

    async def _stop(self) -> None:
        if self._control is not None:
            with self._control, _ended(self._control):
                self._control = None
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def close(self) -> None:
        """Ends all runs; afterwards no process of the sandbox is left."""
        self._closed = True
        async with self._restarting:
            await self._stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, program: Program, limits: RunLimits, channel: socket.socket | None = None) -> Ended:
        """Runs a program; cancelled, it ends the program. `channel` becomes its descriptor 3, and is closed here."""
        ours, theirs = socket.socketpair()
        with ours, _ended(ours):
            ours.setblocking(False)
            try:
                await self._hand_over([theirs, *([] if channel is None else [channel])])
            finally:  # so that nobody waits in vain at the other end of the channel
                theirs.close()
                if channel is not None:
                    channel.close()
            try:
                async with asyncio.timeout(limits.wall_s + _GRACE_S):
                    return await _exchange(ours, program, limits)
            except (frames.BrokenFrame, OSError) as error:
                return Ended(Cause.BROKEN, 0, b"", b"", 0.0, 0.0, 0, f"its keeper is gone: {error}")
            except TimeoutError:
                return Ended(Cause.BROKEN, 0, b"", b"", 0.0, limits.wall_s + _GRACE_S, 0, "its keeper does not answer")

    async def _hand_over(self, sockets: list[socket.socket]) -> None:
        descriptors = [each.fileno() for each in sockets]
        while not self._closed:
            control = self._control
            try:
                if control is not None:
                    socket.send_fds(control, [b"r"], descriptors)
                    return
                await self._restart(None)
            except BlockingIOError:
                await asyncio.sleep(_BUSY_S)
            except OSError:
                await self._restart(control)
        raise SandboxError("the sandbox is closed, or was never started: use `async with` or start()")


@contextmanager
def _ended(connection: socket.socket) -> Iterator[None]:
    """Ends a connection for the other end too, even if a process that was forked meanwhile has a copy of this end."""
    try:
        yield
    finally:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


async def _exchange(connection: socket.socket, program: Program, limits: RunLimits) -> Ended:
    head = {"command": list(program.command), "files": list(program.files), "limits": asdict(limits)}
    blobs = [program.stdin, program.source.encode(errors="surrogatepass"), *program.files.values()]
    await asyncio.get_running_loop().sock_sendall(connection, frames.packed(head, blobs))
    told, (stdout, stderr) = await frames.receive_soon(connection, 2 * limits.output_bytes)
    return Ended(**{**told, "cause": Cause[told["cause"]], "stdout": stdout, "stderr": stderr})


def _protections(told: dict[str, Any]) -> Protections:
    missing = {Mechanism[name]: str(why) for name, why in told["missing"].items()}
    return Protections(frozenset(Mechanism[name] for name in told["active"]), missing, int(told["landlock_version"]))
