"""A journal as tables of a database: what a file and a server have in common.

Statements are written with `?` for each value, and both databases understand them.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rollmux.service.journal.history import KEEP_RECORDS, PORTION, history
from rollmux.service.journal.values import Batch, Image, JournalDamaged, Owned, Packed, Record
from rollmux.service.journal.written import image_from, image_row, owned_from, record_from

# How many records are read at once.
PAGE = 5_000
_BEGINS = "begins"  # in the head: the record after which the history begins
_HEAD = "INSERT INTO head VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class Writes(Protocol):
    """One transaction."""

    def execute(self, statement: str, values: Sequence[object] = (), /) -> object: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[object]], /) -> object: ...


class TableJournal(ABC):
    """All of a journal, except how its database is reached and its most frequent write."""

    name: str  # what messages call it; without secrets

    def __init__(self, keep_records: int = KEEP_RECORDS) -> None:
        self.keep_records = keep_records
        self._removed = -1  # records up to this one are gone; -1: unknown

    @abstractmethod
    def append(self, batch: Batch) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]: ...

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Writes]:
        """A transaction, durable at the end of the block; undone if the block raises."""

    def head(self) -> dict[str, Any]:
        """What the journal was begun with; nothing if it is new."""
        return {name: value for name, value in self._head().items() if name != _BEGINS}

    def begin(self, head: dict[str, Any], after: int = 0) -> None:
        rows = [(name, json.dumps(value)) for name, value in head.items()]
        with self._writing() as writes:
            writes.executemany(_HEAD, [*rows, (_BEGINS, json.dumps(after))])

    def begins(self) -> int:
        return int(self._head().get(_BEGINS, 0))

    def keep(self, image: Image | Packed) -> None:
        """Writes an image, and removes images that are of no use any more."""
        begins = self.begins()
        images = {seq for (seq,) in self._rows("SELECT seq FROM images")} | {image.seq}
        after, kept = history(sorted(images), begins, self.keep_records)
        with self._writing() as writes:
            writes.execute("DELETE FROM images WHERE seq = ?", (image.seq,))
            writes.execute("INSERT INTO images VALUES (?, ?, ?, ?)", image_row(image))
            writes.executemany("DELETE FROM images WHERE seq = ?", [(seq,) for seq in sorted(images.difference(kept))])
            if after != begins:
                writes.execute(_HEAD, (_BEGINS, json.dumps(after)))

    def trim(self) -> bool:
        """Removes a portion of the records that the history no longer has; returns whether there are more of them."""
        begins = self.begins()
        if self._removed < 0:
            ((first,),) = self._rows("SELECT min(seq) FROM records")
            self._removed = begins if first is None else first - 1
        upto = min(begins, self._removed + PORTION)
        if upto > self._removed:
            with self._writing() as writes:
                writes.execute("DELETE FROM records WHERE seq > ? AND seq <= ?", (self._removed, upto))
            self._removed = upto
        return upto < begins

    def image(self, seq: int | None = None) -> Image | None:
        """The latest image that is as it was written; with `seq`, the image after this very record."""
        first, last = (self.begins(), 2**62) if seq is None else (seq, seq)
        query = "SELECT seq, at, state, sum FROM images WHERE seq >= ? AND seq <= ? ORDER BY seq DESC"
        return next((found for row in self._rows(query, first, last) if (found := image_from(*row))), None)

    def records(self, after: int = 0) -> Iterator[Record]:
        """All records after this one. Raises JournalDamaged if one is missing or is not as it was written."""
        if after < (begins := self.begins()):
            raise JournalDamaged(
                f"{self.name}: its history begins after record {begins}, and no image of the state then can be read"
            )
        query = "SELECT seq, at, event, told, sum FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
        while page := list(self._rows(query, after, PAGE)):
            for row in page:
                try:
                    yield record_from(after + 1, *row)
                except JournalDamaged as error:
                    raise JournalDamaged(f"{self.name}: {error}") from error
                after += 1

    def owned(self) -> Iterator[Owned]:
        for row in self._rows("SELECT job_id, tenant, data, sum FROM owned ORDER BY rowid"):
            try:
                yield owned_from(*row)
            except JournalDamaged as error:
                raise JournalDamaged(f"{self.name}: {error}") from error

    def _head(self) -> dict[str, Any]:
        rows = list(self._rows("SELECT name, value FROM head"))
        try:
            return {name: json.loads(value) for name, value in rows}
        except ValueError as error:
            raise JournalDamaged(f"{self.name}: what it was begun with is not as it was written") from error
