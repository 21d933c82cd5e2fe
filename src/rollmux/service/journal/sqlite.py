"""A journal in one SQLite file, written by one process at a time."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from rollmux.service.journal.history import KEEP_RECORDS
from rollmux.service.journal.tables import TableJournal
from rollmux.service.journal.values import Batch, JournalAway, JournalDamaged
from rollmux.service.journal.written import owned_rows, record_rows

# The copy that a killed controller has made of itself (`Forked`) may hold the file for a moment.
LOCK_S = 1.0
# A backup copies so many pages at a time: a write waits for one such portion at most.
COPIED_PAGES, COPY_PAUSE_S = 64, 0.002
_TABLES = """
CREATE TABLE IF NOT EXISTS head (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, wall_s REAL NOT NULL, event TEXT NOT NULL, told INTEGER NOT NULL,
    sum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS images (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, state BLOB NOT NULL, sum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS owned (
    job_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, data TEXT NOT NULL, sum INTEGER NOT NULL
);
"""
T = TypeVar("T")


class SqliteJournal(TableJournal):
    """The lock of the file keeps a second controller away.

    `reads_only` changes nothing of the file, and reads it as it was when it was opened.
    """

    def __init__(self, path: str | Path, keep_records: int = KEEP_RECORDS, *, reads_only: bool = False) -> None:
        super().__init__(keep_records)
        self.path = Path(path)
        self.name = f"journal {self.path}"
        self._copies = Lock()
        self._opened = _last_write(self.path) if reads_only else None  # before any look at it
        if not reads_only:
            _make_private(self.path)
        with ExitStack() as undone:
            try:
                name = _to_read(self.path) if reads_only else self.path
                self._db = sqlite3.connect(
                    name, uri=reads_only, isolation_level=None, check_same_thread=False, timeout=LOCK_S
                )
                undone.callback(self._db.close)
                if reads_only:
                    self._look()
                else:
                    self._take()
            except sqlite3.DatabaseError as error:
                raise JournalDamaged(f"{self.name}: {error}{_help(error, reads_only)}") from error
            undone.pop_all()

    def append(self, batch: Batch) -> None:
        rows, owned = record_rows(batch), owned_rows(batch)
        with self._writing() as writes:
            writes.executemany("DELETE FROM owned WHERE job_id = ?", [(job_id,) for job_id in batch.forgotten])
            writes.executemany("INSERT OR REPLACE INTO owned VALUES (?, ?, ?, ?)", owned)
            writes.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)

    def copy(self, to: Path) -> None:
        """Copies all that is durable, from any thread beside the writer's: nobody else can read a locked file."""
        part = to.with_name(f"{to.name}.part")
        with self._copies:
            part.unlink(missing_ok=True)
            _make_private(part)
            try:
                with closing(sqlite3.connect(part)) as copied:
                    copied.execute("PRAGMA synchronous=OFF")  # it is synced below, where no write waits for that
                    copied.execute("PRAGMA journal_mode=OFF")
                    # SQLite copies nothing while a write is open, and what is written later is in the copy too.
                    self._db.backup(copied, pages=COPIED_PAGES, progress=self._give_way, sleep=COPY_PAUSE_S)
                with part.open("rb") as file:
                    os.fsync(file.fileno())
                part.replace(to)
            except (sqlite3.Error, OSError) as error:
                part.unlink(missing_ok=True)
                raise JournalAway(f"{self.name} can't be copied to {to}: {error}") from error

    def _give_way(self, *_: int) -> None:
        time.sleep(COPY_PAUSE_S)
        self._db.cursor().close()  # raises once the journal is closed

    def close(self) -> None:
        self._db.close()

    def _take(self) -> None:
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")  # a second controller is told so at once
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_TABLES)
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("COMMIT")

    def _look(self) -> None:
        if not self._db.execute("SELECT name FROM sqlite_schema WHERE name = 'records'").fetchall():
            raise JournalAway(f"{self.name}: there is no journal in it")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Cursor]:
        with closing(self._db.cursor()) as cursor:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except sqlite3.OperationalError as error:
                self._undo(cursor)
                raise JournalAway(f"{self.name}: {error}") from error
            except BaseException:
                self._undo(cursor)
                raise

    def _undo(self, cursor: sqlite3.Cursor) -> None:
        """Undoes a transaction, if it still goes on: on a full disk SQLite may have undone it already."""
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                cursor.execute("ROLLBACK")

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        rows = self._read(lambda: self._db.execute(query, values))
        while row := self._read(rows.fetchone):
            yield row

    def _read(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except sqlite3.DatabaseError as error:
            raise JournalDamaged(f"{self.name}: {error}; go on from a copy of it") from error
        finally:
            self._require_unwritten()

    def _require_unwritten(self) -> None:
        """Raises if a controller has written meanwhile: pages from before and after fit together by chance only."""
        if self._opened and _last_write(self.path) != self._opened:
            raise JournalAway(f"{self.name} was written as it was read; read it again")


def _last_write(path: Path) -> tuple[int, int]:
    now = path.stat()
    return now.st_size, now.st_mtime_ns


def _help(error: sqlite3.DatabaseError, reads_only: bool) -> str:
    """What may help if a file can't be opened."""
    kind = error.sqlite_errorcode & 0xFF  # the bits above only give details
    if kind == sqlite3.SQLITE_BUSY:
        if reads_only:
            return (
                ": a controller is at work on it. `rollmux story JOB` asks that one, and `rollmux journal backup` "
                "makes a copy that can be read"
            )
        return "; is another controller using it?"
    if kind == sqlite3.SQLITE_CANTOPEN and reads_only:
        return "; copy it, with what lies beside it, to where files can be made"
    return ""


def _make_private(path: Path) -> None:
    """Makes a new file that is its owner's alone: in it are the environments that jobs were submitted with.

    A file that is there already is not opened: closing it would lose its lock, if this process holds that.
    """
    with suppress(OSError):  # SQLite says why, in its own words
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _to_read(path: Path) -> str:
    """The URI to read a journal. With no log of writes beside it nobody writes it: then no file is made to read it."""
    found = path.resolve()
    return f"{found.as_uri()}?mode=ro{'' if Path(f'{found}-wal').exists() else '&immutable=1'}"
