"""A journal in a schema of a PostgreSQL database, written by one controller at a time.

Invariant: the writer holds the session's lock and has the latest generation, and each transaction checks that. So a
controller that lost its connection, and perhaps the lock with it, can't write beside the controller that came after it.
A lost connection is made anew, by the same rules; what the last append may have written is looked for first.
"""

import hashlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
from psycopg.sql import SQL, Identifier

from rollmux.service.journal.address import Address, address
from rollmux.service.journal.history import KEEP_RECORDS
from rollmux.service.journal.session import STATEMENT_S, Session
from rollmux.service.journal.tables import TableJournal
from rollmux.service.journal.values import Batch, JournalAway, JournalDamaged, JournalTaken, NoJournal
from rollmux.service.journal.written import OwnedRow, RecordRow, owned_rows, record_rows

log = logging.getLogger("rollmux.service")

# How long a lost connection is tried anew: servers start again or fail over, and running phases need no controller.
AGAIN_S = 30.0
# At the start the lock of a controller that has just been killed may still be there for a moment.
LOCK_WAIT_S = 5.0
PAUSE_S = 0.1
_TABLES = """
CREATE TABLE head (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE records (
    seq bigint PRIMARY KEY, at float8 NOT NULL, wall_s float8 NOT NULL, event text NOT NULL, told bigint NOT NULL,
    sum bigint NOT NULL
);
CREATE TABLE images (seq bigint PRIMARY KEY, at float8 NOT NULL, state bytea NOT NULL, sum bigint NOT NULL);
CREATE TABLE owned (
    job_id text PRIMARY KEY, tenant text NOT NULL, data text NOT NULL, sum bigint NOT NULL,
    rowid bigint GENERATED ALWAYS AS IDENTITY
);
CREATE TABLE writer (generation bigint NOT NULL, token text NOT NULL, who text NOT NULL, since timestamptz NOT NULL);
ALTER TABLE images ALTER state SET STORAGE EXTERNAL;
INSERT INTO writer VALUES (0, '', '', now());
"""
_FENCE = "SELECT FROM writer WHERE generation = %s AND token = %s FOR SHARE"
# One statement, so one way to the server and back and one wait for its disk. Without the fence's row nothing is done:
# where another controller writes, or where the last record is another one than was durable, as when somebody has
# restored an older state meanwhile.
# Rows come as JSON: as arrays, which psycopg makes value by value, a hundred of them take four times as long.
_APPEND = f"""
WITH fence AS ({_FENCE.replace("FOR", "AND coalesce((SELECT max(seq) FROM records), %s) = %s FOR")}),
gone AS (DELETE FROM owned USING fence WHERE job_id = ANY(%s::text[])),
submitted AS (
    INSERT INTO owned (job_id, tenant, data, sum)
    SELECT row.* FROM fence, json_to_recordset(%s) AS row (job_id text, tenant text, data text, sum bigint)
    ON CONFLICT (job_id) DO UPDATE SET tenant = excluded.tenant, data = excluded.data, sum = excluded.sum
),
happened AS (
    INSERT INTO records SELECT row.* FROM fence, json_to_recordset(%s)
        AS row (seq bigint, at float8, wall_s float8, event text, told bigint, sum bigint)
)
SELECT count(*) FROM fence
"""
_OWNED = ("job_id", "tenant", "data", "sum")
_RECORDS = ("seq", "at", "wall_s", "event", "told", "sum")
_TAKE = """
UPDATE writer SET generation = generation + 1, token = %(token)s, who = %(who)s, since = now()
WHERE token = %(token)s OR %(first)s RETURNING generation
"""


class PostgresJournal(TableJournal):
    """`reads_only` sees one state of the journal, also beside the controller that writes it; `tries_only` does what a
    controller would do first, and nothing of it stays."""

    def __init__(
        self,
        url: str,
        keep_records: int = KEEP_RECORDS,
        *,
        reads_only: bool = False,
        tries_only: bool = False,
        again_s: float = AGAIN_S,
        statement_s: float = STATEMENT_S,
    ) -> None:
        super().__init__(keep_records)
        self._address: Address = address(url)
        self._again_s, self._statement_s = again_s, statement_s
        self._token = secrets.token_hex()  # ours, over all connections
        self._generation: int | None = None
        self._last = 0  # the last record that is known to be durable
        self.name = self._address.shown
        try:
            self._db = self._connected("any" if reads_only else "read-write")
        except (psycopg.Error, UnicodeError) as error:  # UnicodeError: a name that no host can have
            raise JournalAway(f"{self.name}: {_line(error)}") from error
        try:
            if reads_only:
                self._look()
            elif tries_only:
                self._try()
            else:
                self._take(time.monotonic() + LOCK_WAIT_S)
                self._last = self._end()
        except psycopg.Error as error:
            self._db.close()
            raise JournalAway(f"{self.name}: {_line(error)}") from error
        except BaseException:
            self._db.close()
            raise

    def append(self, batch: Batch) -> None:
        records, owned = record_rows(batch), owned_rows(batch)
        try:
            self._append(batch, records, owned)
        except psycopg.Error as error:
            if not self._db.closed:
                raise
            log.warning("%s: the connection is lost (%s)", self.name, _line(error))
            self._append_again(batch, records, owned)
        self._last = records[-1][0] if records else self._last

    def close(self) -> None:
        self._db.close()

    # -- the writer --------------------------------------------------------------------------------------------------

    def _append(self, batch: Batch, records: list[RecordRow], owned: list[OwnedRow]) -> None:
        mine = {row[0]: row for row in owned}
        gone = [job_id for job_id in batch.forgotten if job_id not in mine]
        rows = _as_json(_OWNED, mine.values()), _as_json(_RECORDS, records)
        fence = (self._generation, self._token, self._last, self._last)
        found = self._db.execute(_APPEND, (*fence, gone, *rows)).fetchone()
        if found != (1,):
            raise self._taken() if self._holder() != self._token else self._behind()

    def _append_again(self, batch: Batch, records: list[RecordRow], owned: list[OwnedRow]) -> None:
        """Appends on a new connection, unless the last attempt has written the batch."""
        until = time.monotonic() + self._again_s
        while True:
            try:
                self._db = self._connected("read-write")
                self._take(until)
                if not self._is_there(records):
                    self._append(batch, records, owned)
            except (psycopg.Error, JournalAway) as error:
                if not self._db.closed:
                    self._db.close()  # this session may not have the lock
                    raise
                if time.monotonic() > until:
                    raise JournalAway(f"{self.name}: lost for {self._again_s:g} s ({_line(error)})") from error
                time.sleep(PAUSE_S)
            except BaseException:
                self._db.close()
                raise
            else:
                log.warning("%s: there again", self.name)
                return

    def _is_there(self, records: list[RecordRow]) -> bool:
        """Whether an append that got no answer is durable. We have the lock, so the append's session has ended."""
        end = self._end()
        if end == self._last:
            return False
        if records and end == records[-1][0]:
            query = "SELECT seq, sum FROM records WHERE seq > %s ORDER BY seq"
            if self._db.execute(query, (self._last,)).fetchall() == [(row[0], row[5]) for row in records]:
                return True
        raise self._behind()

    def _behind(self) -> JournalDamaged:
        return JournalDamaged(
            f"{self.name}: it ends with record {self._end()}, though {self._last} was durable: the server has lost "
            "what it had promised to keep, or somebody else has written to it"
        )

    def _end(self) -> int:
        ((last,),) = self._rows("SELECT coalesce(max(seq), 0) FROM records")
        return max(int(last), self.begins())

    def _take(self, until: float) -> None:
        """Makes this the one session that may write. Raises JournalTaken if another controller writes, or has since."""
        while self._db.execute("SELECT pg_try_advisory_lock(%s)", (self._key(),)).fetchone() != (True,):
            if self._generation is not None and self._holder() != self._token:
                raise self._taken()
            if time.monotonic() > until and self._generation is not None:
                why = "as while its last commit waits for a standby"
                raise JournalAway(f"{self.name}: the server still holds the lock of the lost connection, {why}")
            if time.monotonic() > until:
                raise self._taken()
            time.sleep(PAUSE_S)
        self._create()
        who, first = f"{socket.gethostname()}, process {os.getpid()}", self._generation is None
        found = self._db.execute(_TAKE, {"token": self._token, "who": who, "first": first}).fetchone()
        if found is None:
            raise self._taken()
        self._generation = found[0]

    def _taken(self) -> JournalTaken:
        who = ""
        if self._exists():
            ((who,),) = self._db.execute("SELECT who FROM writer").fetchall()
        self._db.close()
        return JournalTaken(f"{self.name}: another controller writes it{f' ({who})' if who else ''}")

    def _holder(self) -> str:
        ((token,),) = self._db.execute("SELECT token FROM writer").fetchall()
        return str(token)

    def _key(self) -> int:
        digest = hashlib.sha256(f"rollmux journal {self._address.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    # -- the database ------------------------------------------------------------------------------------------------

    def _connected(self, wants: str) -> Session:
        return Session.to(self._address, wants, self._statement_s)

    def _create(self) -> None:
        """Makes what is not there yet, for a controller that starts. Refuses a server that promises nothing."""
        encoding = self._db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            remedy = "take one that was made with ENCODING 'UTF8'"
            raise JournalAway(f"{self.name}: the database is in {encoding}, which not every name fits into: {remedy}")
        if self._db.execute("SHOW fsync").fetchone() != ("on",):
            raise JournalAway(f"{self.name}: the server runs with fsync off, so nothing that it has is durable")
        if not self._exists():
            if self._generation is not None:
                raise JournalDamaged(f"{self.name}: its journal is gone, as from a server that took over without it")
            with self._db.transaction():
                if self._db.execute("SELECT to_regnamespace(%s)", (self._address.schema,)).fetchone() == (None,):
                    self._db.execute(SQL("CREATE SCHEMA {}").format(Identifier(self._address.schema)))
                self._db.execute(_TABLES)

    def _exists(self) -> bool:
        return self._db.execute("SELECT to_regclass(%s)", (f"{self._address.schema}.writer",)).fetchone() != (None,)

    def _look(self) -> None:
        if not self._exists():
            raise NoJournal(f"{self.name}: there is no journal")
        self._db.set_autocommit(False)
        self._db.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        self._db.set_read_only(True)

    def _try(self) -> None:
        """Does what a start would do, beside a controller at work: no row is written, and none is locked."""
        is_there = self._exists()
        with self._db.transaction(force_rollback=True):
            self._create()
            self._db.execute(_TAKE, {"token": self._token, "who": "", "first": False})
            self._db.execute(_APPEND, (0, self._token, 0, 0, [], "[]", "[]"))
        if not is_there:
            raise NoJournal(f"{self.name}: there is no journal")

    @contextmanager
    def _writing(self) -> Iterator["_Writes"]:
        with self._db.transaction(), self._db.cursor() as cursor:
            if cursor.execute(_FENCE.encode(), (self._generation, self._token)).rowcount != 1:
                raise JournalTaken(f"{self.name}: another controller writes it")
            yield _Writes(cursor)

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(_translated(query), values).fetchall()
        except psycopg.Error as error:
            kind = JournalDamaged if (error.sqlstate or "").startswith("XX") else JournalAway
            raise kind(f"{self.name}: {_line(error)}") from error


class _Writes:
    """Statements as `TableJournal` writes them."""

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[object] = (), /) -> object:
        return self._cursor.execute(_translated(statement), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]], /) -> None:
        self._cursor.executemany(_translated(statement), rows)


def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _as_json(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return msgspec.json.encode([dict(zip(columns, row, strict=True)) for row in rows]).decode()


def _line(error: Exception) -> str:
    """In one line what libpq says in several."""
    return " ".join(str(error).split())
