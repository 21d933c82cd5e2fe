"""One copy of a rank's weights in a mapped file, beside the digest of every piece that is whole in it.

Invariant: where a digest stands, its piece is there. The digest is taken away before the first byte of the piece
changes, and written after the whole piece was checked. Both files are in the page cache, so this holds for
whoever opens them after their writer was killed, at whatever point.
"""

import fcntl
import mmap
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollmux.runtime.host.errors import shown
from rollmux.runtime.sync.errors import StillRead
from rollmux.runtime.sync.layout import Slot, inside, shape_of
from rollmux.runtime.sync.plan import Piece
from rollmux.system import take_room, took_lock

DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
PLAN_BYTES = 32  # of the plan's fingerprint
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LOCK_POLL_S = 0.02

Words = NDArray[np.unsignedinteger]


def digest_of(content: "memoryview | bytes | bytearray") -> bytes:
    """128 bits of SHA-256, which processors have instructions for: a changed piece is never taken for the old one."""
    return sha256(content).digest()[:DIGEST_BYTES]


def whole_of(buffer: NDArray[np.uint8], slot: Slot) -> Words:
    """A rank's part of a tensor, in place: one word for each element."""
    flat = buffer[slot.offset : slot.offset + slot.nbytes].view(_WORDS[slot.tensor.item_bytes])
    return flat.reshape(shape_of(slot.box))


def words_of(buffer: NDArray[np.uint8], slot: Slot, piece: Piece) -> Words:
    """A piece within a rank's part of its tensor, in place."""
    return whole_of(buffer, slot)[inside(slot.box, piece.box)]


def bytes_of(words: Words) -> memoryview:
    """The bytes in the order in which they cross: in place if they lie in one run, else a copy."""
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8).data


class Generation:
    """Files `weights-N` and `digests-N`. They are made anew if they are of another plan."""

    def __init__(self, folder: Path, number: int, slots: dict[str, Slot], nbytes: int, pieces: int, plan: str) -> None:
        self.number, self._slots = number, slots
        self.path, ledger = _paths(folder, number)
        head = bytes.fromhex(plan)
        sizes = _sizes(nbytes, pieces)
        if not self.is_there(folder, number, nbytes, pieces, plan):
            for path in (ledger, self.path):
                path.unlink(missing_ok=True)
            _make(self.path, sizes[0], b"")
            _make(ledger, sizes[1], head)
        self.file = os.open(self.path, os.O_RDWR)
        at_once = getattr(mmap, "MAP_POPULATE", 0)  # without it the first copies make page tables
        self.bytes = np.frombuffer(mmap.mmap(self.file, sizes[0], mmap.MAP_SHARED | at_once), np.uint8)
        with ledger.open("r+b") as file:
            table = np.frombuffer(mmap.mmap(file.fileno(), sizes[1]), np.uint8)
        self._digests = table[len(head) :].reshape(pieces, DIGEST_BYTES)

    @staticmethod
    def size(nbytes: int, pieces: int) -> int:
        """The bytes that both files take."""
        return sum(_sizes(nbytes, pieces))

    @staticmethod
    def found(folder: Path, number: int) -> int:
        """The bytes that both files take now."""
        return sum(path.stat().st_size for path in _paths(folder, number) if path.exists())

    @staticmethod
    def is_there(folder: Path, number: int, nbytes: int, pieces: int, plan: str) -> bool:
        """Whether both files are there, and of this plan."""
        paths, head = _paths(folder, number), bytes.fromhex(plan)
        for path, size in zip(paths, _sizes(nbytes, pieces), strict=True):
            if not path.exists() or path.stat().st_size != size:
                return False
        with paths[1].open("rb") as file:
            return file.read(len(head)) == head

    def whole(self, name: str) -> Words:
        return whole_of(self.bytes, self._slots[name])

    def words(self, piece: Piece) -> Words:
        return words_of(self.bytes, self._slots[piece.tensor.name], piece)

    def offset(self, words: Words) -> int | None:
        """Where in the file a piece begins; None if it does not lie there in one run."""
        if not words.flags.c_contiguous:
            return None
        return int(words.__array_interface__["data"][0] - self.bytes.__array_interface__["data"][0])

    def digest(self, index: int) -> bytes:
        return bytes(self._digests[index].data)

    def clear(self, index: int) -> None:
        """Takes the digest of a piece away, before the piece changes."""
        self._digests[index] = 0

    def clear_all(self) -> None:
        self._digests[:] = 0

    def mark(self, index: int, digest: bytes) -> None:
        """Writes the digest of a piece, after the piece is whole and was checked."""
        self._digests[index] = np.frombuffer(digest, np.uint8)

    def lock(self, patience_s: float) -> None:
        """Waits until nobody reads this generation, and locks it. The lock ends with this process, in any case."""
        if not took_lock(self.file, patience_s, _LOCK_POLL_S):
            raise StillRead(f"{self.path} is still read after {patience_s:g} s: close what reads the older version")

    def unlock(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the lock back by name, as the mapping keeps the file open. Views that others still have stay good."""
        self.unlock()
        os.close(self.file)


def _sizes(nbytes: int, pieces: int) -> tuple[int, int]:
    return max(1, nbytes), PLAN_BYTES + pieces * DIGEST_BYTES


def _paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"weights-{number}", folder / f"digests-{number}"


def _make(path: Path, nbytes: int, head: bytes) -> None:
    """Makes a file and takes all of its room: a full disk is an error here, and no SIGBUS later."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        take_room(file, nbytes)
        os.pwrite(file, head, 0)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {shown(nbytes)} are wanted", str(path)) from error
    finally:
        os.close(file)
