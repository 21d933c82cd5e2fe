"""Everything that has happened, on disk before anything follows from it (I11).

A record is one event with what it led to, as a checksum: a replay that leads to something else is noticed, and not
gone on from. Submissions are kept beside it: what a launcher needs is no business of the machine.
"""

import json
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollmux.errors import RollmuxError
from rollmux.mux.codec import decode, encode
from rollmux.mux.commands import Command
from rollmux.mux.events import Event

VERSION = 1


class JournalDamaged(RollmuxError):
    """What is in the journal is not what was written, or not of this journal: nothing is made of it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event that changed the machine. `told` is the checksum of the commands that it led to."""

    seq: int
    at: float
    event: Event
    told: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A submission as it was sent, and whose it is."""

    job_id: str
    tenant: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes durable together."""

    records: tuple[Record, ...] = ()
    owned: tuple[Owned, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The whole state of a machine after the record with this number, and when that was."""

    seq: int
    at: float
    state: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """An image as it is written: `packed(state)`."""

    seq: int
    at: float
    content: bytes


class Journal(Protocol):
    """Where records are kept. `append` returns when they would survive a power cut."""

    def head(self) -> dict[str, Any]: ...

    def begin(self, head: dict[str, Any]) -> None: ...

    def append(self, batch: Batch) -> None: ...

    def keep(self, image: Image | Packed) -> None: ...

    def image(self) -> Image | None: ...

    def records(self, after: int = 0) -> Iterator[Record]: ...

    def owned(self) -> Iterator[Owned]: ...

    def close(self) -> None: ...


def checksum(commands: Sequence[Command]) -> int:
    """Of what an event led to."""
    return zlib.crc32(repr(commands).encode()) if commands else 0


def packed(state: Any) -> bytes:
    """A state as an image holds it."""
    return zlib.compress(msgspec.json.encode(state), 1)


def as_text(event: Event) -> str:
    return msgspec.json.encode(encode(Event, event)).decode()


def as_event(text: str) -> Event:
    event: Event = decode(Event, json.loads(text))  # type: ignore[arg-type]
    return event


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
# Images that are kept: the one before the last, too, should the last one turn out to be damaged.
KEPT_IMAGES = 2


class SqliteJournal:
    """A journal in one SQLite file, written by one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")  # a second controller is told so at once
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise JournalDamaged(f"journal {self.path}: {error}; is another controller using it?") from error

    def head(self) -> dict[str, Any]:
        """What was said of the journal when it was begun; nothing where it is new."""
        return {name: json.loads(value) for name, value in self._rows("SELECT name, value FROM head")}

    def begin(self, head: dict[str, Any]) -> None:
        rows = [(name, json.dumps(value)) for name, value in head.items()]
        with closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany("INSERT OR REPLACE INTO head VALUES (?, ?)", rows)
            cursor.execute("COMMIT")

    def append(self, batch: Batch) -> None:
        wall_s = time.time()
        rows = []
        for record in batch.records:
            text = as_text(record.event)
            total = _sum(record.seq, record.at, text, record.told)
            rows.append((record.seq, record.at, wall_s, text, record.told, total))
        owned = []
        for each in batch.owned:
            data = json.dumps(each.data)
            owned.append((each.job_id, each.tenant, data, _sum(each.job_id, each.tenant, data)))
        with closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                cursor.executemany("INSERT OR REPLACE INTO owned VALUES (?, ?, ?, ?)", owned)
                cursor.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)
                cursor.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    cursor.execute("ROLLBACK")
                raise

    def keep(self, image: Image | Packed) -> None:
        state = image.content if isinstance(image, Packed) else packed(image.state)
        with closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            total = _sum(image.seq, image.at, state)
            cursor.execute("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?)", (image.seq, image.at, state, total))
            cursor.execute(
                "DELETE FROM images WHERE seq NOT IN (SELECT seq FROM images ORDER BY seq DESC LIMIT ?)", (KEPT_IMAGES,)
            )
            cursor.execute("COMMIT")

    def image(self) -> Image | None:
        """The latest image that is as it was written."""
        for seq, at, state, total in self._rows("SELECT seq, at, state, sum FROM images ORDER BY seq DESC"):
            if _sum(seq, at, state) == total:
                return Image(seq, at, msgspec.json.decode(zlib.decompress(state)))
        return None

    def records(self, after: int = 0) -> Iterator[Record]:
        """All records after this one, without a gap; JournalDamaged where one is missing or not as it was written."""
        expected = after + 1
        query = "SELECT seq, at, event, told, sum FROM records WHERE seq > ? ORDER BY seq"
        for seq, at, text, told, total in self._rows(query, after):
            if seq != expected:
                raise JournalDamaged(f"journal {self.path}: record {expected} is missing, the next is {seq}")
            if _sum(seq, at, text, told) != total:
                raise JournalDamaged(f"journal {self.path}: record {seq} is not as it was written")
            expected += 1
            yield Record(seq, at, as_event(text), told)

    def owned(self) -> Iterator[Owned]:
        for job_id, tenant, data, total in self._rows("SELECT job_id, tenant, data, sum FROM owned ORDER BY rowid"):
            if _sum(job_id, tenant, data) != total:
                raise JournalDamaged(f"journal {self.path}: job {job_id!r} is not as it was submitted")
            yield Owned(job_id, tenant, json.loads(data))

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(query, values)
        except sqlite3.DatabaseError as error:
            raise JournalDamaged(f"journal {self.path}: {error}; go on from a copy of it") from error

    def close(self) -> None:
        self._db.close()


def _sum(*parts: object) -> int:
    """Of the values as they are written: a number that has become a text is another value."""
    return zlib.crc32(repr(parts).encode())
