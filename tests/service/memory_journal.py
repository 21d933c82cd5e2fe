"""A journal in memory that keeps what the real one would keep, and fails as a disk does.

Records pass through their text, as on disk. An append is all or nothing; while `full`, it is nothing, and says so.
"""

import json
from collections.abc import Iterator
from typing import Any

from rollmux.service.journal import Batch, Image, Owned, Packed, Record, as_event, as_text


class DiskFull(OSError):
    """No space left on device."""


class MemoryJournal:
    """What is durable of one simulated controller, over all its lives."""

    def __init__(self) -> None:
        self.full = False
        self._head: dict[str, Any] = {}
        self._records: list[tuple[int, float, str, int]] = []
        self._images: list[tuple[int, float, str]] = []
        self._owned: dict[str, Owned] = {}

    def head(self) -> dict[str, Any]:
        return dict(self._head)

    def begin(self, head: dict[str, Any]) -> None:
        self._head |= json.loads(json.dumps(head, allow_nan=False))

    def append(self, batch: Batch) -> None:
        if self.full:
            raise DiskFull("no space left")
        for record in batch.records:
            expected = self._records[-1][0] + 1 if self._records else 1
            assert record.seq == expected, f"record {record.seq} follows {expected - 1}"
            self._records.append((record.seq, record.at, as_text(record.event), record.told))
        self._owned |= {each.job_id: each for each in batch.owned}

    def keep(self, image: Image | Packed) -> None:
        assert isinstance(image, Image)
        assert image.seq <= len(self._records), "an image holds more than is durable"
        self._images.append((image.seq, image.at, json.dumps(image.state, allow_nan=False)))

    def image(self) -> Image | None:
        if not self._images:
            return None
        seq, at, state = self._images[-1]
        return Image(seq, at, json.loads(state))

    def records(self, after: int = 0) -> Iterator[Record]:
        for seq, at, text, told in self._records[after:]:
            yield Record(seq, at, as_event(text), told)

    def owned(self) -> Iterator[Owned]:
        yield from self._owned.values()

    def close(self) -> None:
        """There is nothing to let go of."""
