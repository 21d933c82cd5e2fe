"""A PostgreSQL server of the tests' own, from the binaries that are there, and a way to it that can be cut.

It syncs its disk as a server in earnest does. It does not run as root, so root starts it as another user.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

PLACES = Path("/usr/lib/postgresql")
SOON_S = 30.0
INITDB = ("-U", "rollmux", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "autovacuum_naptime": "1h",
}


def binaries() -> Path | None:
    """Where `initdb` and `postgres` lie."""
    found = shutil.which("initdb")
    places = [*([Path(found).parent] if found else []), *sorted(PLACES.glob("*/bin"), reverse=True)]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _as_somebody() -> dict[str, Any]:
    """What makes a child not root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise RuntimeError("root can't run PostgreSQL, and there is no user postgres or nobody")


class Server:
    """One that can be stopped as by a power cut, and started again."""

    def __init__(self, folder: Path, place: Path, **settings: str) -> None:
        self.folder, self.place, self.settings, self._names = folder, place, SETTINGS | settings, count(1)
        self._who = _as_somebody()
        if self._who:
            os.chown(folder, self._who["user"], self._who["group"])
        self._run("initdb", "-D", str(folder / "data"), *INITDB)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        settings = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        place = ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        command = [str(self.place / "postgres"), *place, *settings]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._who)
        until = time.monotonic() + SOON_S
        while True:
            try:
                self.admin("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """SIGQUIT ends it at once, as it stands; SIGINT in good order."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(SOON_S)

    def url(self, schema: str | None = None) -> str:
        """Of a journal in a schema of its own."""
        name = schema or f"j{os.getpid()}_{next(self._names)}"
        return f"postgresql://rollmux@/postgres?host={self.folder}&schema={name}"

    def connect(self, schema: str = "public") -> psycopg.Connection[Any]:
        options = f"-c search_path={schema}"
        return psycopg.connect(
            host=str(self.folder), user="rollmux", dbname="postgres", options=options, autocommit=True
        )

    def admin(self, statement: str, schema: str = "public") -> list[Any]:
        with self.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def url_by(self, port: int, password: str = "") -> str:
        """Of a journal in a schema of its own, by way of a cable."""
        name = f"j{os.getpid()}_{next(self._names)}"
        return f"postgresql://rollmux{password and ':'}{password}@127.0.0.1:{port}/postgres?schema={name}"

    def cut_off(self) -> int:
        """Ends every session of journals; how many there were."""
        statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rollmux'"
        return len(self.admin(statement))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.place / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=self.folder, **self._who)
        assert done.returncode == 0, done.stderr


@contextmanager
def running(**settings: str) -> Iterator[Server]:
    """A server in a short folder: the path of a socket may be no longer than about a hundred bytes."""
    place = binaries()
    assert place is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        server = Server(folder, place, **settings)
        try:
            yield server
        finally:
            with suppress(subprocess.TimeoutExpired):
                server.stop(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Cable:
    """A port of this machine that leads to the server, until it is pulled."""

    def __init__(self, server: Server) -> None:
        self._there = str(server.folder / ".s.PGSQL.5432")
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port = self._listens.getsockname()[1]
        self.to_server: Callable[[], bool] = lambda: False  # whether what is said now is lost, and the cable pulled
        self.to_client: Callable[[], bool] = lambda: False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self._listens.shutdown(socket.SHUT_RDWR)
        self._listens.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listens.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(self._there)
                threading.Thread(target=self._carry, args=(here, there, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(there, here, True), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while (said := one.recv(2**16)) and not (self.to_client if back else self.to_server)():
                other.sendall(said)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
