"""One side of a connection: gives pieces, and sends as little of each as will do.

If the taker has a piece, the piece is only named. If both sides have its older content, only what changed is sent. Else
all of it is sent.
Sender and receivers give in the same way: a receiver passes on what has just landed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollmux.runtime.sync import delta
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken
from rollmux.runtime.sync.generation import DIGEST_BYTES, NO_DIGEST, Generation, bytes_of, digest_of
from rollmux.runtime.sync.plan import Piece
from rollmux.runtime.sync.wire import Header, Kind


@dataclass(slots=True)
class Tally:
    """What was given: how many pieces went in which way, the bytes that crossed, and the bytes that the pieces have."""

    plain: int = 0
    delta: int = 0
    kept: int = 0
    sent_bytes: int = 0
    piece_bytes: int = 0

    def add(self, other: "Tally") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Stock:
    """What a giver gives from: the new weights and, where both sides have them, the older ones."""

    new: Generation
    base: Generation | None

    def digest(self, piece: Piece) -> bytes:
        """The digest of the new content, made here if it has none yet."""
        known = self.new.digest(piece.index)
        if known == NO_DIGEST:
            known = digest_of(bytes_of(self.new.words(piece)))
            self.new.mark(piece.index, known)
        return known

    def changes(self, piece: Piece, held: bytes) -> bytes | None:
        """A delta from what the taker holds, if the giver has that as older content and the delta is worth it."""
        if self.base is None or held == NO_DIGEST or self.base.digest(piece.index) != held:
            return None
        return delta.changes(self.new.words(piece).reshape(-1), self.base.words(piece).reshape(-1))


def give(channel: Channel, pieces: Sequence[Piece], ready: Iterator[int], stock: Stock) -> Tally:
    """Gives these pieces in the order in which they are ready; returns when the taker has them all."""
    channel.open_giver(stock.new.path)
    held = _held(channel, pieces)
    by_index = {piece.index: piece for piece in pieces}
    tally = Tally()
    for index in ready:
        _give(channel, by_index[index], held[index], stock, tally)
    if channel.header().kind is not Kind.TAKEN:
        raise Broken("the taker said something else where it should have taken all")
    tally.sent_bytes = channel.sent_bytes
    return tally


def _held(channel: Channel, pieces: Sequence[Piece]) -> dict[int, tuple[bytes, bytes]]:
    """The digests of what the taker has of each piece, first where it lands, then in the version that it serves."""
    header = channel.header()
    if header.kind is not Kind.HELD or header.size != 2 * DIGEST_BYTES * len(pieces):
        raise Broken(f"{header.kind.name} of {header.size} bytes where {len(pieces)} pairs of digests were due")
    raw = bytes(channel.body(header.size))
    pairs = (raw[at : at + 2 * DIGEST_BYTES] for at in range(0, len(raw), 2 * DIGEST_BYTES))
    return {piece.index: (pair[:DIGEST_BYTES], pair[DIGEST_BYTES:]) for piece, pair in zip(pieces, pairs, strict=True)}


def _give(channel: Channel, piece: Piece, held: tuple[bytes, bytes], stock: Stock, tally: Tally) -> None:
    digest = stock.digest(piece)
    tally.piece_bytes += piece.nbytes
    if digest in held:
        channel.give(Header(Kind.KEPT, piece.index, 0, digest))
        tally.kept += 1
        return
    changed = stock.changes(piece, held[1])
    if changed is not None:
        channel.give(Header(Kind.DELTA, piece.index, len(changed), digest), changed)
        tally.delta += 1
        return
    words = stock.new.words(piece)
    channel.give(Header(Kind.PLAIN, piece.index, piece.nbytes, digest), bytes_of(words), stock.new.offset(words))
    tally.plain += 1
