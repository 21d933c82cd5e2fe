"""Which sender gives which part of which tensor to which receiver, and which receivers that one shares it with.

Pure: the same exchange gives the same plan on every rank, so that ranks need only agree on its fingerprint.
Invariant: every byte of every receiver's part comes to it in exactly one piece, and each byte of the model goes into
each cluster of receivers exactly once: a piece crosses to its `first` receiver, who shares it within the cluster.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256

from rollmux.checks import Checks
from rollmux.runtime.sync.layout import Box, Layout, TensorSpec, common, elements

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 64, 2**30
# A frame takes some 50 µs of Python: with chunks of 1 MiB that allows some 20 GB/s. Only the last frame is not hidden
# behind the slow link, and it is short.
CHUNK_BYTES = 2**20
MAX_TENSORS = 10**6
# The version of the way in which plans are made: ranks of different versions must not work together.
PLANNER = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs. Links within a cluster are fast; ranks of one node share memory."""

    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class Side:
    """All senders, or all receivers: who has which parts, and where each rank runs."""

    layout: Layout
    places: tuple[Place, ...]

    @property
    def ranks(self) -> range:
        return range(len(self.places))


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that a plan depends on. `two_stage=False` sends every receiver its own copy: a flat broadcast."""

    tensors: tuple[TensorSpec, ...]
    senders: Side
    receivers: Side
    chunk_bytes: int = CHUNK_BYTES
    two_stage: bool = True

    def __post_init__(self) -> None:
        checks = Checks("exchange")
        checks.whole("chunk_bytes", self.chunk_bytes, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES, "1 MiB serves most links")
        checks.whole("tensors", len(self.tensors), 1, MAX_TENSORS, "give the tensors of the model")
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        if len(shapes) < len(self.tensors):
            checks.report("tensors", len(self.tensors), f"{len(shapes)} different names", "name each tensor once")
        for name, side in (("senders", self.senders), ("receivers", self.receivers)):
            if side.layout.ranks != len(side.places):
                checks.report(f"{name}.places", len(side.places), f"{side.layout.ranks}, as the layout", "place each")
            for tensor, dim in side.layout.split.items():
                known = len(shapes.get(tensor, ()))
                if dim >= known:
                    checks.report(f"{name}.split[{tensor!r}]", dim, f"less than {known}", "name a dimension it has")
        checks.require()

    @property
    def model_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def fingerprint(self) -> str:
        """The same on two ranks if and only if their plans are."""
        text = json.dumps([PLANNER, asdict(self)], sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that goes from one sender to one receiver, who shares it with others of its cluster."""

    index: int
    tensor: TensorSpec
    box: Box
    sender: int
    first: int
    shared: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return elements(self.box) * self.tensor.item_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces in the order in which they go."""

    exchange: Exchange
    pieces: tuple[Piece, ...]
    fingerprint: str

    def given(self, sender: int) -> dict[int, list[int]]:
        """The pieces that a sender gives, by receiver."""
        found: dict[int, list[int]] = {}
        for piece in self.pieces:
            if piece.sender == sender:
                found.setdefault(piece.first, []).append(piece.index)
        return found

    def shared(self, receiver: int) -> dict[int, list[int]]:
        """The pieces that a receiver passes on, by the receiver that they go to."""
        found: dict[int, list[int]] = {}
        for piece in self.pieces:
            for peer in piece.shared if piece.first == receiver else ():
                found.setdefault(peer, []).append(piece.index)
        return found

    def taken(self, receiver: int) -> list[int]:
        """All pieces that a receiver gets, from senders and from other receivers."""
        return [piece.index for piece in self.pieces if receiver in (piece.first, *piece.shared)]


def make_plan(exchange: Exchange) -> Plan:
    """Each part goes from the owner that has least to give to the receiver, of those that need it, that gets least."""
    gives = [0] * len(exchange.senders.places)
    gets = [0] * len(exchange.receivers.places)
    pieces: list[Piece] = []
    for tensor in exchange.tensors:
        for box, owners, needers in _parts(exchange, tensor):
            for part in chunks(box, max(1, exchange.chunk_bytes // tensor.item_bytes)):
                for group in _groups(exchange, needers):
                    sender = min(owners, key=lambda rank: (gives[rank], rank))
                    first = min(group, key=lambda rank: (gets[rank], rank))
                    shared = tuple(rank for rank in group if rank != first)
                    piece = Piece(len(pieces), tensor, part, sender, first, shared)
                    gives[sender] += piece.nbytes
                    gets[first] += piece.nbytes
                    pieces.append(piece)
    return Plan(exchange, tuple(pieces), exchange.fingerprint())


def _parts(exchange: Exchange, tensor: TensorSpec) -> Iterator[tuple[Box, tuple[int, ...], tuple[int, ...]]]:
    """The parts in which senders' and receivers' boxes overlap, with who owns and who needs each."""
    needed = exchange.receivers.layout.holders(tensor)
    left = {box: elements(box) for box in needed}
    for owned, owners in exchange.senders.layout.holders(tensor).items():
        for box, needers in needed.items():
            part = common(owned, box)
            if part is not None:
                left[box] -= elements(part)
                yield part, owners, needers
    assert not any(left.values()), "the boxes of one layout cover a tensor, each element once"


def _groups(exchange: Exchange, needers: Sequence[int]) -> list[list[int]]:
    """The receivers that share with one another: those of one cluster, or each alone."""
    if not exchange.two_stage:
        return [[rank] for rank in needers]
    found: dict[str, list[int]] = {}
    for rank in needers:
        found.setdefault(exchange.receivers.places[rank].cluster, []).append(rank)
    return list(found.values())


def chunks(box: Box, most: int) -> Iterator[Box]:
    """Cuts a box into parts of at most `most` elements, each with as many rows as that allows."""
    if elements(box) <= most:
        yield box
        return
    dim = next(place for place, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    rows = max(1, most // (elements(box) // (stop - start)))
    for low in range(start, stop, rows):
        yield from chunks((*box[:dim], (low, min(stop, low + rows)), *box[dim + 1 :]), most)
