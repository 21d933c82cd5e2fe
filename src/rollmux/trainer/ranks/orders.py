"""The messages between the processes of a job, once they have met: the leader gives orders, and the others obey."""

from typing import TypeVar

import msgspec

from rollmux.runtime.sync.channel import Channel
from rollmux.runtime.sync.errors import Broken

# What a follower calls the leader for (`rollmux.runtime.sync.door`): to hear orders, or to offer its work.
FOLLOW, WORK = "follow", "work"
MOST_BYTES = 2**16


class Order(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The root of all messages."""


class Joined(Order, frozen=True):
    """The follower's first and only message: the addresses to which its weights are to be sent."""

    addresses: tuple[str, ...]


class Enter(Order, frozen=True):
    """The leader asks for this phase: take part in it until it is over."""

    kind: str
    step: int


class Over(Order, frozen=True):
    """The work of the phase is done, under this lease; with 0 it is given up, and the leader asks for it again."""

    epoch: int


class Bye(Order, frozen=True):
    """The job is done."""


class Begin(Order, frozen=True):
    """To a follower with an engine: begin a new engine, over the weights of this version, which have landed."""

    version: int


M = TypeVar("M", bound=Order)
_decoder = msgspec.json.Decoder(Joined | Enter | Over | Bye | Begin)


def say(channel: Channel, order: Order) -> None:
    channel.write(msgspec.json.encode(order))


def hear(channel: Channel, *kinds: type[M]) -> M:
    """The next order, which must be of one of these kinds."""
    try:
        order = _decoder.decode(channel.read(MOST_BYTES))
    except msgspec.DecodeError as wrong:
        raise Broken(f"an order can't be read: {wrong}") from wrong
    if not isinstance(order, kinds):
        raise Broken(f"{type(order).__name__} where {' or '.join(kind.__name__ for kind in kinds)} was due")
    return order
