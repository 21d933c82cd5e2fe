"""The state of a job in one file in the node's memory, mapped: it outlives the process.

A version becomes visible only by its record, which is written after all chunks that it names. With two slots for each
chunk, a version is written beside the last one, which stays whole until the next is begun. With one slot, there is no
version while one is written. Readers take no lock, but look at the record before and after they read: barriers keep
records and chunks in this order.
"""

import mmap
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Self

import msgspec
import torch
from torch import Tensor

from rollmux.runtime.host.errors import NoRoom, shown
from rollmux.runtime.residency import record as records
from rollmux.runtime.residency.barrier import barrier
from rollmux.runtime.residency.errors import BadCopy
from rollmux.runtime.residency.layout import BEGINNING_BYTES, CHUNK_BYTES, Layout
from rollmux.runtime.residency.pages import HUGE_BYTES
from rollmux.runtime.residency.record import Record
from rollmux.system import take_room

FORMAT = 5
HEAD_BYTES = 4096  # whatever the size of pages: a file may outlive its kernel
MADV_POPULATE_WRITE = 23  # of Linux; Python 3.11 does not name it


class Head(msgspec.Struct, frozen=True):
    """What the file begins with."""

    format: int
    catalogue_bytes: int
    catalogue_digest: str
    record_bytes: int
    chunk_bytes: int
    slots: int
    stamp: int

    @property
    def data_at(self) -> int:
        before = HEAD_BYTES + self.catalogue_bytes + 2 * self.record_bytes
        return -(-before // HUGE_BYTES) * HUGE_BYTES


class HostCopy:
    """A mapped file. Its creator writes versions; whoever opens it sees the newest whole one."""

    def __init__(self, path: Path, head: Head, layout: Layout, mapped: mmap.mmap) -> None:
        self.path, self.layout, self.slots = path, layout, head.slots
        self.stamp = head.stamp  # names the layout
        self._head, self._mapped = head, mapped
        self._under_way: Path | None = None  # the file's name until it has a version
        self.data = torch.frombuffer(mapped, dtype=torch.uint8, offset=head.data_at, count=head.slots * layout.nbytes)
        self._slots = self.data.view(head.slots, -1).unbind()

    @classmethod
    def create(cls, path: Path, layout: Layout, slots: int) -> Self:
        """Takes all of the file's memory, so that no later write can fail for lack of it. Nobody sees the file yet."""
        head, catalogue = _head(layout, slots)
        under_way = path.with_suffix(".new")
        under_way.unlink(missing_ok=True)
        mapped = _taken(under_way, head.data_at + slots * layout.nbytes)
        mapped[HEAD_BYTES : HEAD_BYTES + len(catalogue)] = catalogue
        first = msgspec.json.encode(head)
        mapped[: len(first)] = first
        copy = cls(path, head, layout, mapped)
        copy._under_way = under_way
        return copy

    @classmethod
    def open(cls, path: Path) -> Self:
        """What another process, dead or alive, has left under this name."""
        try:
            mapped = _mapped(path)
        except FileNotFoundError as error:
            raise BadCopy(f"no state is kept as {path.stem!r} in {path.parent}; start cold") from error
        try:
            head = msgspec.json.decode(mapped[:HEAD_BYTES].rstrip(b"\0"), type=Head)
            catalogue = mapped[HEAD_BYTES : HEAD_BYTES + head.catalogue_bytes]
            if head.format != FORMAT or head.chunk_bytes != CHUNK_BYTES or _digest(catalogue) != head.catalogue_digest:
                raise BadCopy(f"{path} is damaged, or of another release; remove it and start cold")
            layout = msgspec.json.decode(catalogue, type=Layout)
        except msgspec.DecodeError as error:
            raise BadCopy(f"{path} is no state of ours ({error}); remove it and start cold") from error
        if len(mapped) != head.data_at + head.slots * layout.nbytes:
            raise BadCopy(f"{path} was cut off at {shown(len(mapped))}; remove it and start cold")
        return cls(path, head, layout, mapped)

    @staticmethod
    def size(layout: Layout, slots: int) -> int:
        """The bytes that such a file takes."""
        return _head(layout, slots)[0].data_at + slots * layout.nbytes

    @property
    def nbytes(self) -> int:
        return len(self._mapped)

    @property
    def is_visible(self) -> bool:
        """Whether the file has had a version: only then others see it."""
        return self._under_way is None

    def discard(self) -> None:
        """Deletes the file if it has had no version yet, so that it never becomes visible."""
        if self._under_way is not None:
            self._under_way.unlink(missing_ok=True)

    def newest(self, known: Record | None = None) -> Record | None:
        """The newest whole version. With two slots a `known` record is not read again if nothing newer stands here.

        With one slot it always is: a version written after one that was broken off may have the same number.
        """
        barrier()  # the record is read after the chunks that the caller has read
        found = self._read(known)
        barrier()  # and before those that it will read
        return found

    def _read(self, known: Record | None) -> Record | None:
        areas = [self._area(number) for number in (0, 1)]
        said = max(records.version_at(area, self.stamp) for area in areas)
        if known is not None and self.slots == 2 and (known.stamp, known.version) == (self.stamp, said):
            return known
        both = [records.unpacked(bytes(area), self.stamp) for area in areas]  # copies, which nobody changes meanwhile
        return max((each for each in both if each is not None), key=lambda each: each.version, default=None)

    def view(self, chunk: int, slot: int, count: int = 1) -> Tensor:
        """So many chunks of this slot, from `chunk` on."""
        return self._slots[slot][chunk * CHUNK_BYTES : (chunk + count) * CHUNK_BYTES]

    def beginning(self, chunk: int, slot: int) -> bytes:
        """The first bytes of a chunk in this slot."""
        at = self._head.data_at + slot * self.layout.nbytes + chunk * CHUNK_BYTES
        return self._mapped[at : at + BEGINNING_BYTES]

    def spoil(self) -> None:
        """With one slot: from here to the next commit there is no version."""
        for number in (0, 1):
            at = self._area_at(number)
            self._mapped[at : at + records.HEAD.size] = bytes(records.HEAD.size)
        barrier()  # before the first chunk is written over

    def commit(self, record: Record) -> None:
        """Makes this version visible: the last one holds until then, this one from then on."""
        packed = record.packed()
        at = self._area_at(record.version % 2)
        barrier()  # after the chunks of this version
        self._mapped[at : at + len(packed)] = packed
        barrier()  # before the chunks of the next
        if self._under_way is not None:
            self._under_way.rename(self.path)
            self._under_way = None

    def _area_at(self, number: int) -> int:
        return HEAD_BYTES + self._head.catalogue_bytes + number * self._head.record_bytes

    def _area(self, number: int) -> memoryview:
        at = self._area_at(number)
        return memoryview(self._mapped)[at : at + self._head.record_bytes]


def _head(layout: Layout, slots: int) -> tuple[Head, bytes]:
    catalogue = msgspec.json.encode(layout)
    name = _digest(catalogue)
    space = records.space(layout.chunks, layout.aside_bytes)
    return Head(FORMAT, len(catalogue), name, space, CHUNK_BYTES, slots, int(name[:12], 16)), catalogue


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _mapped(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _touched(mmap.mmap(file, os.fstat(file).st_size))
    except ValueError as error:
        raise BadCopy(f"{path} is empty; remove it and start cold") from error
    finally:
        os.close(file)


def _taken(path: Path, size: int) -> mmap.mmap:
    """A new file with all of its memory."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        take_room(file, size)
        return _touched(mmap.mmap(file, size))
    except OSError as error:
        path.unlink()
        raise NoRoom(f"{path.parent} has no {shown(size)} left ({error.strerror}); hold less, or enlarge it") from error
    finally:
        os.close(file)


def _touched(mapped: mmap.mmap) -> mmap.mmap:
    """Page tables are made now and not by the first copies; a kernel that can't (before 5.14) makes them then."""
    with suppress(OSError):
        mapped.madvise(MADV_POPULATE_WRITE)
    return mapped
