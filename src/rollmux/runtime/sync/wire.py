"""Frames and messages: a fixed header, then either JSON of a known type or the bytes of a piece. Nothing is unpickled.

Invariant: no length that the other side names is believed beyond a limit that this side knows.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.generation import NO_DIGEST
from rollmux.runtime.sync.shelf import Mark

MAGIC = b"RMW1"
_HEADER = struct.Struct("<4sBxxxIQ16s")
HEADER_BYTES = _HEADER.size
# Messages between strangers are short; the addresses of all receivers may be many.
MAX_GREETING_BYTES, MAX_MESSAGE_BYTES = 4096, 2**20


class Kind(IntEnum):
    """What follows a header."""

    MESSAGE = 1  # JSON
    HELD = 2  # the digests of what the taker has, for each piece of this connection
    PLAIN = 3  # the bytes of a piece
    DELTA = 4  # what changed in a piece
    KEPT = 5  # nothing: the taker has the piece
    TAKEN = 6  # nothing: all pieces of this connection are whole


@dataclass(frozen=True, slots=True)
class Header:
    """`index` is the number of a piece, `digest` that of its whole content, `size` the bytes that follow."""

    kind: Kind
    index: int = 0
    size: int = 0
    digest: bytes = NO_DIGEST

    def pack(self) -> bytes:
        return _HEADER.pack(MAGIC, self.kind, self.index, self.size, self.digest)

    @classmethod
    def unpack(cls, raw: bytes) -> "Header":
        magic, kind, index, size, digest = _HEADER.unpack(raw)
        if magic != MAGIC or kind not in Kind.__members__.values():
            raise Broken(f"a frame begins with {raw[:5]!r}: the other side speaks something else")
        return cls(Kind(kind), index, size, digest)


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Root of all messages, which are JSON."""


class Challenge(Message, frozen=True):
    """The listener's first message."""

    nonce: str


class Hello(Message, frozen=True):
    """Who calls, and what for: `lead` an attempt, or `give` pieces as a `sender` or as a `receiver`."""

    purpose: str
    role: str
    rank: int
    epoch: int
    version: int
    plan: str
    nonce: str


class Proof(Message, frozen=True):
    """Shows that the caller knows the token, for this challenge and this hello alone."""

    mac: str


class Welcome(Message, frozen=True):
    """Shows that the listener knows it too. `done`: the attempt was committed already, and nothing need be given."""

    mac: str
    done: bool = False


class Refusal(Message, frozen=True):
    """Why the listener says no."""

    reason: str


class Status(Message, frozen=True):
    """What a receiver serves, and what it could serve at once."""

    held: Mark | None
    ready: Mark | None


class Begin(Message, frozen=True):
    """The attempt begins: these are the addresses of all receivers."""

    addresses: tuple[tuple[str, ...], ...]


class Begun(Message, frozen=True):
    """Pieces may come."""


class Landing(Message, frozen=True):
    """Some pieces have not landed yet: sent now and then, as a sign of life."""


class Whole(Message, frozen=True):
    """Every piece has landed."""


class Flip(Message, frozen=True):
    """Every receiver has every piece: serve it."""

    version: int
    epoch: int


class Flipped(Message, frozen=True):
    """The version is served."""


DECODER = msgspec.json.Decoder(
    Challenge | Hello | Proof | Welcome | Refusal | Status | Begin | Begun | Landing | Whole | Flip | Flipped
)
