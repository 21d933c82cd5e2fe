"""Two places where a journal may be, in the same words: a file, and a server."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from rollmux.mux import events as ev
from rollmux.service.journal import KEEP_RECORDS, Batch, Journal, Record
from rollmux.service.journal.place import FILE, opened
from tests.service.postgres_server import Server


class Place(Protocol):
    """`url` and `folder` are what `rollmux serve` is told."""

    url: str
    folder: Path

    def ask(self, statement: str) -> list[Any]:
        """Somebody else looks or writes into it. A file must not be open then."""


class InFile:
    def __init__(self, folder: Path) -> None:
        self.url, self.folder = "", folder

    def ask(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / FILE)) as other, other:
            return other.execute(statement).fetchall()


class OnServer:
    def __init__(self, folder: Path, server: Server) -> None:
        self.url, self.folder, self.server = server.url(), folder, server
        self.schema = self.url.rpartition("=")[2]

    def ask(self, statement: str) -> list[Any]:
        return self.server.admin(statement, self.schema)


def begun(place: Place, keep_records: int = KEEP_RECORDS) -> Journal:
    """The journal of this place, to be written."""
    return opened(place.url, keep_records)(place.folder / FILE)


def durable(place: Place) -> list[Record]:
    """What a controller would find that begins now."""
    with closing(begun(place)) as again:
        return list(again.records(again.begins()))


def record(seq: int, event: ev.Event | None = None) -> Record:
    return Record(seq, seq / 3, event or ev.Heartbeat("A", seq), 2**32 - seq)


def batch(first: int, last: int) -> Batch:
    return Batch(tuple(record(seq) for seq in range(first, last + 1)))
