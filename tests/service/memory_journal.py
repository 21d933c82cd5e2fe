"""A journal in memory that keeps what the real one would keep, and fails as a disk does.

Records pass through their text, as on disk. An append is all or nothing; while `full`, it is nothing, and says so.
"""

import json
from collections.abc import Iterator
from typing import Any

from rollmux.service.journal import KEEP_RECORDS, Batch, Image, Owned, Packed, Record, as_event, as_text
from rollmux.service.journal.history import history


class DiskFull(OSError):
    """No space left on device."""


class MemoryJournal:
    """What is durable of one simulated controller, over all its lives."""

    def __init__(self, keep_records: int = KEEP_RECORDS) -> None:
        self.full = False
        self.keep_records = keep_records
        self._begins = 0
        self._head: dict[str, Any] = {}
        self._records: list[tuple[int, float, str, int]] = []
        self._images: dict[int, tuple[float, str]] = {}
        self._owned: dict[str, Owned] = {}

    def head(self) -> dict[str, Any]:
        return dict(self._head)

    def begin(self, head: dict[str, Any], after: int = 0) -> None:
        self._head |= json.loads(json.dumps(head, allow_nan=False))
        self._begins = after

    def begins(self) -> int:
        return self._begins

    def append(self, batch: Batch) -> None:
        if self.full:
            raise DiskFull("no space left")
        for record in batch.records:
            expected = self._last + 1
            assert record.seq == expected, f"record {record.seq} follows {expected - 1}"
            self._records.append((record.seq, record.at, as_text(record.event), record.told))
        for job_id in batch.forgotten:
            self._owned.pop(job_id, None)
        self._owned |= {each.job_id: each for each in batch.owned}

    def keep(self, image: Image | Packed) -> None:
        assert isinstance(image, Image)
        assert image.seq <= self._last, "an image holds more than is durable"
        self._images[image.seq] = image.at, json.dumps(image.state, allow_nan=False)
        self._begins, kept = history(sorted(self._images), self._begins, self.keep_records)
        self._images = {seq: self._images[seq] for seq in kept}

    def trim(self) -> bool:
        self._records = [record for record in self._records if record[0] > self._begins]
        return False

    def image(self, seq: int | None = None) -> Image | None:
        found = max(self._images, default=0) if seq is None else seq
        if found not in self._images:
            return None
        at, state = self._images[found]
        return Image(found, at, json.loads(state))

    def records(self, after: int = 0) -> Iterator[Record]:
        assert after >= self._begins, f"records after {after} are wanted, and the history begins after {self._begins}"
        for seq, at, text, told in self._records[max(0, after - (self._last - len(self._records))) :]:
            yield Record(seq, at, as_event(text), told)

    @property
    def _last(self) -> int:
        return self._records[-1][0] if self._records else self._begins

    def owned(self) -> Iterator[Owned]:
        yield from self._owned.values()

    def close(self) -> None:
        """There is nothing to let go of."""
