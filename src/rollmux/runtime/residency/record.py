"""One version of a state: which slot holds each chunk, and what its checksum is. Small enough to be written at once.

A record counts only if the digest behind it fits, so that one that was broken off in the middle was never there.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise

from rollmux.runtime.host.errors import Unfit, shown
from rollmux.runtime.residency.checksum import CHECKSUM_BYTES

HEAD = struct.Struct("<8sQQIII")
MARK = b"rlmxver2"
NOTES_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """`slots` has a byte for each chunk, `sums` 16; `notes` are the owner's words. `stamp` names the layout.

    `aside` has the bytes of those tensors that lie on the host anyway.
    """

    version: int
    stamp: int
    slots: bytes
    sums: bytes
    notes: bytes = b""
    aside: bytes = b""

    def sum_of(self, chunk: int) -> bytes:
        return self.sums[chunk * CHECKSUM_BYTES : (chunk + 1) * CHECKSUM_BYTES]

    def packed(self) -> bytes:
        head = HEAD.pack(MARK, self.version, self.stamp, len(self.slots), len(self.notes), len(self.aside))
        body = head + self.slots + self.sums + self.notes + self.aside
        return body + blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def require_fit(notes: bytes | None) -> None:
    if notes is not None and not isinstance(notes, bytes):
        raise Unfit(f"the notes are a {type(notes).__name__}: give bytes, such as of `encode()`")
    if notes is not None and len(notes) > NOTES_BYTES:
        raise Unfit(f"the notes take {shown(len(notes))}: at most {shown(NOTES_BYTES)}; keep a file, and its name")


def space(chunks: int, aside_bytes: int) -> int:
    """The bytes that a record of so many chunks may take."""
    return HEAD.size + chunks * (1 + CHECKSUM_BYTES) + NOTES_BYTES + aside_bytes + CHECKSUM_BYTES


def version_at(data: memoryview, stamp: int) -> int:
    """The number that the record here has as a version of this layout, whole or not; 0 if it has none."""
    mark, version, written, *_ = HEAD.unpack_from(data)
    return int(version) if (mark, written) == (MARK, stamp) else 0


def unpacked(data: bytes, stamp: int) -> Record | None:
    """The record that stands here, if it is whole and of this layout."""
    mark, version, written, chunks, notes, aside = HEAD.unpack_from(data)
    end = HEAD.size + chunks * (1 + CHECKSUM_BYTES) + notes + aside
    if mark != MARK or written != stamp or end + CHECKSUM_BYTES > len(data):
        return None
    if blake2b(data[:end], digest_size=CHECKSUM_BYTES).digest() != data[end : end + CHECKSUM_BYTES]:
        return None
    ends = accumulate((chunks, chunks * CHECKSUM_BYTES, notes, aside), initial=HEAD.size)
    return Record(version, stamp, *(data[start:stop] for start, stop in pairwise(ends)))
