"""`rollmux serve`: one controller on this machine, from its folder's journal to its socket and back.

The folder holds everything that outlives the controller: journal, tokens, secret, logs. It is for one controller at a
time.
"""

import asyncio
import errno
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import uvicorn
import uvloop

from rollmux.errors import RollmuxError
from rollmux.mux.cluster_state import ClusterState, Rules
from rollmux.mux.hardware import Cluster
from rollmux.mux.policies import Policy
from rollmux.protocol.node_means import Means
from rollmux.service import heads
from rollmux.service.app import App
from rollmux.service.door import Door
from rollmux.service.errands import Errands
from rollmux.service.garbage import collect_forever
from rollmux.service.gate import Gate
from rollmux.service.held_means import keep, require_kept
from rollmux.service.host import Host
from rollmux.service.journal import Journal, SqliteJournal
from rollmux.service.launcher import Launcher
from rollmux.service.recovery import errands_after, recover
from rollmux.service.tokens import Role, Tokens, write_private
from rollmux.system import took_lock

log = logging.getLogger("rollmux.service")

# Hosts that stand for all addresses of the machine: nobody can reach the controller by such a name.
EVERYWHERE = ("", "0.0.0.0", "::")
ENDING = (signal.SIGTERM, signal.SIGINT)
# How long open calls may take to end when the controller goes.
DRAIN_S = 5
# The copy that a killed controller has made of itself (`Forked`) may hold the folder's lock for a moment.
LOCK_S, LOCK_AGAIN_S = 1.0, 0.02
# How long a thread beside the event loop may keep the interpreter to itself.
SWITCH_S = 0.0005
# About this much of a connection is read at a time. If it were as much as the system likes, one stranger who sends call
# upon call, or a body in parts of a byte, would keep the event loop for seconds before others have their turn.
RECEIVED_BYTES = 16 * 1024
# How long an idle connection is kept: for whole phases a job sends nothing but its parked call.
KEEP_S = 120


class CantServe(RollmuxError):
    """The controller can't start here, for a reason that somebody can mend."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a controller is started with."""

    cluster: Cluster
    policy: Policy
    folder: Path
    rules: Rules = field(default_factory=Rules)
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    advertise: str = ""  # the URL that jobs are given, if it is not the one that follows from the host
    certificate: Path | None = None
    key: Path | None = None
    means: Mapping[str, Means] = field(default_factory=dict)


class _Server(uvicorn.Server):
    """Lets callers in by a gate, and leaves signals to whoever runs the service."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        known = self.server_state.connections
        self.servers = [Gate(each, self._meet, lambda: len(known)) for each in sockets]  # type: ignore[misc]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self.servers:
            each.close()
            await each.wait_closed()  # who does not speak yet would hold the end up
        await super().shutdown(sockets)

    async def _meet(self, guest: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = partial(heads.BoundedHttp, self.config, self.server_state, {}, loop)
        limit_s = heads.HEAD_S if self._tls else None
        with suppress(OSError):  # a stranger who does not speak TLS, or is silent
            await loop.connect_accepted_socket(connection, guest, ssl=self._tls, ssl_handshake_timeout=limit_s)


class Service:
    """A controller that can be started and stopped within a running event loop."""

    def __init__(self, wanted: Wanted, launcher: Launcher, journal: Callable[[Path], Journal] = SqliteJournal) -> None:
        self._tls = _tls(wanted)
        self.wanted = wanted
        with ExitStack() as undone:
            self._alone = undone.enter_context(_alone_in(wanted.folder))
            self.tokens = Tokens(wanted.folder, time.time)
            self.tokens.names()  # raises if their file is damaged, before anything else is open
            self.journal = undone.enter_context(closing(journal(wanted.folder / "journal.db")))
            _require_known(wanted)
            self._socket = undone.enter_context(_bound(wanted.host, wanted.port))
            self._door = undone.enter_context(closing(Door(self._socket, self._tls)))
            began = time.perf_counter()
            self.controller, begins_at = recover(
                self.journal,
                wanted.cluster,
                wanted.policy,
                wanted.rules,
                partial(_require_fit, wanted, launcher),
            )
            keep(wanted.folder, wanted.means, self.controller.machine.state)
            errands = Errands(self.controller.machine, self.controller.jobs, launcher, self._env_of)
            self.host = Host(self.controller, self.journal, errands, begins_at, time.perf_counter() - began)
            undone.pop_all()
        self._server: uvicorn.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_to_end = False

    @property
    def url(self) -> str:
        """Where jobs find the controller, on whatever machine they run."""
        everywhere = self.wanted.host in EVERYWHERE
        return self.wanted.advertise or self._url(socket.gethostname() if everywhere else self.wanted.host)

    @property
    def local_url(self) -> str:
        """Where commands on this machine find the controller. A certificate holds for the advertised name only."""
        if self.wanted.certificate or self.wanted.host not in EVERYWHERE:
            return self.url
        return self._url("::1" if ":" in self.wanted.host else "127.0.0.1")

    def _url(self, host: str) -> str:
        scheme = "https" if self.wanted.certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serves until somebody calls `end`."""
        with self._alone:
            await self._run(ready)

    async def _run(self, ready: asyncio.Event | None) -> None:
        app = App(self.host, self.tokens)  # made before the start, for its metrics count what happens at the start too
        self._starting = asyncio.create_task(self.host.start(errands_after(self.controller)))
        try:
            await self._starting
        except asyncio.CancelledError:
            if not self._is_to_end:
                raise
        if self._is_to_end:  # `end` may also be called in the moment in which the start is done
            self._door.close()
            self._socket.close()
            await self.host.stop()
            return
        config = uvicorn.Config(
            app,
            http=heads.BoundedHttp,
            ws="none",  # if a library for WebSockets is installed, strangers could leave `BoundedHttp` by it
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_S,
        )
        self._server = _Server(config, self._tls)
        self._door.close()
        log.info("ready at %s", self.url)
        if ready is not None:
            ready.set()
        await self._server.serve([self._socket])
        await self.host.stop()

    def end(self) -> None:
        """Takes no more calls, and ends once the open ones are answered; if called again, it does not wait for these.
        Jobs run on, and find the next controller."""
        self._is_to_end = True
        if self._server is None and self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True
            self.host.hurry()

    def _env_of(self, job_id: str, attempt: int) -> Mapping[str, str]:
        """What a launched job needs to find this controller."""
        tenant = self.controller.jobs[job_id].tenant
        return {
            "ROLLMUX_URL": self.url,
            "ROLLMUX_TOKEN": self.tokens.of_job(job_id, tenant),
            "ROLLMUX_JOB": job_id,
            "ROLLMUX_ATTEMPT": str(attempt),
        }


def admin_token(folder: Path, tokens: Tokens) -> str:
    """The token for commands on this machine, in a file that its owner alone can read; made on first use, and again
    where it was revoked."""
    path = folder / "admin.token"
    found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    named = [each["role"] for each in tokens.names() if each["name"] == "admin"]
    if found and (named or tokens.caller(found) is not None):
        return found
    if Role.ADMIN.value in named:
        tokens.revoke("admin")  # nobody has that token: a start broke off before it was in the file
    path.unlink(missing_ok=True)
    from_scratch = tokens.create("admin", Role.ADMIN)
    write_private(path, from_scratch.encode())
    return from_scratch


def run(service: Service) -> None:
    """Runs until SIGTERM, Ctrl-C or its terminal's end (not with `nohup`). A second signal waits for no open call."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        heard = ENDING if is_kept else (*ENDING, signal.SIGHUP)
        for number in heard:
            loop.add_signal_handler(number, service.end)
        collecting = loop.create_task(collect_forever())
        await service.run()
        collecting.cancel()
        await loop.shutdown_default_executor()  # its threads would take the signals that this thread blocks
        signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # one more would kill the process as it ends
        for number in heard:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _alone_in(folder: Path) -> BinaryIO:
    """Makes the folder, and takes its lock until the file is closed or the process is gone: two may not share it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise CantServe(f"{error.filename}: {error.strerror}; give another --folder") from error
    try:
        if not took_lock(lock.fileno(), LOCK_S, LOCK_AGAIN_S):
            raise CantServe(f"another controller uses {folder}: give --folder")
    except BaseException:
        lock.close()
        raise
    return lock


def _require_known(wanted: Wanted) -> None:
    """Raises CantServe if jobs would be sent to a name that not even this machine knows."""
    name = socket.gethostname()
    if wanted.host in EVERYWHERE and not wanted.advertise:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            raise CantServe(
                f"jobs would look for this machine by its name, {name}, which is not known here ({error.strerror}): "
                "say where they find it by --advertise"
            ) from error


def _require_fit(wanted: Wanted, launcher: Launcher, state: ClusterState) -> None:
    """Raises RollmuxError if jobs of before could not go on, before the journal hears of this start."""
    require_kept(wanted.folder, wanted.means, state)
    _require_theirs(launcher.at_work(), state, wanted.folder)


def _require_theirs(at_work: Collection[str], state: ClusterState, folder: Path) -> None:
    """Raises CantServe if jobs at work are not of this journal: the controller would end them, for it wants none."""
    strange = sorted(job for job in at_work if job not in state.jobs and job not in state.ended)
    if strange:
        some = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        remedy = (
            "start with theirs (--journal, ROLLMUX_JOURNAL), or give another --folder, or end their processes before; "
            f"of jobs on Ray then remove what {folder / 'ray'} has of them"
        )
        raise CantServe(f"jobs of {folder} are at work of which this journal knows nothing ({some}): {remedy}")


def _tls(wanted: Wanted) -> ssl.SSLContext | None:
    if wanted.certificate is None:
        return None
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        found.load_cert_chain(wanted.certificate, wanted.key)
    except OSError as error:
        raise CantServe(
            f"can't speak TLS by {wanted.certificate} and {wanted.key}: {error.strerror or error}"
        ) from error
    return found


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP is named, so that event loops turn Nagle's algorithm off: with it each answer would take 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)  # connections inherit it from this socket
    try:
        bound.bind((host, port))
    except (UnicodeError, TypeError) as error:  # a name that no host can have
        bound.close()
        raise CantServe(f"can't listen at {host}: {error}; give another --host") from error
    except OSError as error:
        bound.close()
        other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise CantServe(f"can't listen at {host}:{port}: {error.strerror}; choose another {other}") from error
    return bound
