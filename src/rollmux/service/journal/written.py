"""How the values of a journal are written: as rows, each with a checksum of itself."""

import json
import time
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from rollmux.mux.codec import decode, encode
from rollmux.mux.commands import Command
from rollmux.mux.events import Event
from rollmux.service.journal.values import (
    ANOTHER_VERSION,
    UNREADABLE,
    Batch,
    Image,
    JournalDamaged,
    Owned,
    Packed,
    Record,
)

RecordRow = tuple[int, float, float, str, int, int]
OwnedRow = tuple[str, str, str, int]
ImageRow = tuple[int, float, bytes, int]
_CAME = "came"  # no job's file has this key


def checksum(commands: Sequence[Command]) -> int:
    """The checksum of the commands that an event led to."""
    return zlib.crc32(repr(commands).encode()) if commands else 0


def packed(state: Any) -> bytes:
    """A state as an image holds it."""
    return zlib.compress(msgspec.json.encode(state), 1)


def as_text(event: Event) -> str:
    return msgspec.json.encode(encode(Event, event)).decode()


def as_event(text: str) -> Event:
    event: Event = decode(Event, json.loads(text))  # type: ignore[arg-type]
    return event


def record_rows(batch: Batch) -> list[RecordRow]:
    """`seq, at, wall_s, event, told, sum` of each record."""
    wall_s, rows = time.time(), []
    for each in batch.records:
        text = as_text(each.event)
        rows.append((each.seq, each.at, wall_s, text, each.told, _sum(each.seq, each.at, text, each.told)))
    return rows


def record_from(expected: int, seq: int, at: float, text: str, told: int, total: int) -> Record:
    """The record of a row. Raises JournalDamaged unless it is the expected one, and as it was written.

    A time before 0 counts as 0: earlier versions, whose clock could stand at -inf, have written such times.
    """
    if seq != expected:
        raise JournalDamaged(f"record {expected} is missing, the next is {seq}")
    if _sum(seq, at, text, told) != total:
        raise JournalDamaged(f"record {seq} is not as it was written")
    try:
        event = as_event(text)
    except UNREADABLE as error:
        raise JournalDamaged(f"record {seq} can't be read ({error}): {ANOTHER_VERSION}") from error
    return Record(seq, max(at, 0.0), event, told)


def owned_rows(batch: Batch) -> list[OwnedRow]:
    """`job_id, tenant, data, sum` of each submission."""
    rows = []
    for each in batch.owned:
        data = json.dumps(each.data | {_CAME: True} if each.came else each.data)
        rows.append((each.job_id, each.tenant, data, _sum(each.job_id, each.tenant, data)))
    return rows


def owned_from(job_id: str, tenant: str, data: str, total: int) -> Owned:
    if _sum(job_id, tenant, data) != total:
        raise JournalDamaged(f"job {job_id!r} is not as it was submitted")
    read = json.loads(data)
    came = read.pop(_CAME, False)
    return Owned(job_id, tenant, read, came)


def image_row(image: Image | Packed) -> ImageRow:
    """`seq, at, state, sum`."""
    state = image.content if isinstance(image, Packed) else packed(image.state)
    return image.seq, image.at, state, _sum(image.seq, image.at, state)


def image_from(seq: int, at: float, state: bytes, total: int) -> Image | None:
    """The image of a row; None if it is not as it was written, or was made while no clock went (see `record_from`)."""
    if _sum(seq, at, state) != total or at < 0:
        return None
    return Image(seq, at, msgspec.json.decode(zlib.decompress(state)))


def _sum(*parts: object) -> int:
    """The checksum of values as they are written: a number that has become a text is another value."""
    return zlib.crc32(repr(parts).encode())
