"""One version of a state: which slot holds each chunk, and what its checksum is. Small enough to be written at once.

A record counts only if the digest behind it fits, so that one that was broken off in the middle was never there.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

from rollmux.runtime.residency.checksum import SUM_BYTES

HEAD = struct.Struct("<8sQQII")
MARK = b"rlmxver1"
NOTES_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """`slots` has a byte for each chunk, `sums` 16; `notes` are the owner's words. `stamp` names the layout."""

    version: int
    stamp: int
    slots: bytes
    sums: bytes
    notes: bytes = b""

    def sum_of(self, chunk: int) -> bytes:
        return self.sums[chunk * SUM_BYTES : (chunk + 1) * SUM_BYTES]

    def packed(self) -> bytes:
        head = HEAD.pack(MARK, self.version, self.stamp, len(self.slots), len(self.notes))
        body = head + self.slots + self.sums + self.notes
        return body + blake2b(body, digest_size=SUM_BYTES).digest()


def space(chunks: int) -> int:
    """The bytes that a record of so many chunks may take."""
    return HEAD.size + chunks * (1 + SUM_BYTES) + NOTES_BYTES + SUM_BYTES


def unpacked(data: bytes, stamp: int) -> Record | None:
    """The record that stands here, if it is whole and of this layout."""
    mark, version, written, chunks, notes = HEAD.unpack_from(data)
    end = HEAD.size + chunks * (1 + SUM_BYTES) + notes
    if mark != MARK or written != stamp or end + SUM_BYTES > len(data):
        return None
    if blake2b(data[:end], digest_size=SUM_BYTES).digest() != data[end : end + SUM_BYTES]:
        return None
    middle = HEAD.size + chunks
    return Record(version, stamp, data[HEAD.size : middle], data[middle : end - notes], data[end - notes : end])
