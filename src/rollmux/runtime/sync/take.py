"""The other side of a connection: takes pieces to where they belong, and marks those that are whole.

Invariant: a piece is marked only when the digest of what lies in its place is the announced one. A piece that
comes twice, or was not due on this connection, ends the connection and changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rollmux.runtime.sync import delta
from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken, Corrupt
from rollmux.runtime.sync.generation import NO_DIGEST, Generation, bytes_of, digest_of
from rollmux.runtime.sync.plan import Piece
from rollmux.runtime.sync.wire import Header, Kind


@dataclass(frozen=True, slots=True)
class Landing:
    """Where pieces land, what is served meanwhile, and whom to tell."""

    target: Generation
    base: Generation | None
    landed: Callable[[int], None]

    def held(self, piece: Piece) -> bytes:
        """The digests of what there is of a piece: in its place already, and in the version that is served."""
        return self.target.digest(piece.index) + (self.base.digest(piece.index) if self.base else NO_DIGEST)

    def doubt(self, piece: Piece) -> None:
        """A piece made from the served version came out wrong. If it is damaged there, its digest is taken away."""
        base = self.base
        if base is not None and digest_of(bytes_of(base.words(piece))) != base.digest(piece.index):
            base.clear(piece.index)


def take(channel: Channel, pieces: Sequence[Piece], landing: Landing) -> None:
    """Takes all of these pieces, in any order."""
    channel.open_taker()
    channel.send(Kind.HELD, b"".join(landing.held(piece) for piece in pieces))
    due = {piece.index: piece for piece in pieces}
    while due:
        header = channel.header()
        piece = due.pop(header.index, None)
        if piece is None or header.digest == NO_DIGEST:
            raise Broken(f"{header.kind.name} of piece {header.index}, which is not due here: it came twice, or astray")
        _take(channel, piece, header, landing)
        landing.landed(piece.index)
    channel.send(Kind.TAKEN)


def _take(channel: Channel, piece: Piece, header: Header, landing: Landing) -> None:
    target = landing.target
    if target.digest(piece.index) == header.digest and header.kind is Kind.KEPT:
        return
    target.clear(piece.index)
    if header.kind is Kind.KEPT:
        _keep(piece, header.digest, landing)
    elif header.kind is Kind.PLAIN and header.size == piece.nbytes:
        _plain(channel, piece, target)
    elif header.kind is Kind.DELTA and header.size <= piece.nbytes:
        _delta(channel, piece, header.size, landing)
    else:
        raise Broken(f"{header.kind.name} of {header.size} bytes for piece {piece.index} of {piece.nbytes} bytes")
    if digest_of(bytes_of(target.words(piece))) != header.digest:
        if header.kind is not Kind.PLAIN:
            landing.doubt(piece)
        raise Corrupt(f"piece {piece.index} ({piece.tensor.name}) is not what was sent: it will be sent again")
    target.mark(piece.index, header.digest)


def _keep(piece: Piece, digest: bytes, landing: Landing) -> None:
    if landing.base is None or landing.base.digest(piece.index) != digest:
        raise Broken(f"piece {piece.index} was to be kept, but is not here: the giver is of another version")
    landing.target.words(piece)[...] = landing.base.words(piece)


def _plain(channel: Channel, piece: Piece, target: Generation) -> None:
    """Takes a piece straight to its place if that is one run, else through a buffer."""
    words = target.words(piece)
    if words.flags.c_contiguous:
        channel.take(bytes_of(words))
        return
    whole = np.empty(words.shape, words.dtype)
    channel.take(bytes_of(whole))
    words[...] = whole


def _delta(channel: Channel, piece: Piece, size: int, landing: Landing) -> None:
    if landing.base is None:
        raise Broken(f"a delta of piece {piece.index}, whose older content is not here")
    changed = bytearray(size)
    channel.take(memoryview(changed))
    words = np.ascontiguousarray(landing.base.words(piece)).reshape(-1).copy()
    delta.apply(memoryview(changed), words)
    target = landing.target.words(piece)
    target[...] = words.reshape(target.shape)
