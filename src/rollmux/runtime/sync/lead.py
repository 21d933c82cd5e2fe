"""The first sender leads an attempt: it begins it at every receiver, and has them flip once each of them is whole.

Invariant: no receiver is told to flip before each has said that it is whole. So if one receiver serves a
version, all others have it, and the next leader first has those flip that were not told.
"""

import time
from collections.abc import Sequence

from rollmux.runtime.sync import door
from rollmux.runtime.sync.channel import Channel, M
from rollmux.runtime.sync.errors import HalfServed, Refused, Silent, SyncFailed, at_receiver
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.shelf import Mark
from rollmux.runtime.sync.transports.sockets import call
from rollmux.runtime.sync.wire import Begin, Begun, Flip, Flipped, Hello, Landing, Status, Whole

# To hear why an attempt failed: a receiver that knows has said so already.
_REASON_S = 1.0
# Longer than receivers wait themselves, so that they have time to say what they waited for.
_ANSWER_S = 5.0


class Lead:
    """The connections of a leader, one to each receiver."""

    def __init__(self, plan: Plan, epoch: int, version: int, token: bytes, patience_s: float) -> None:
        self._plan, self._epoch, self._version, self._token = plan, epoch, version, token
        self._patience_s = patience_s
        self._channels: list[Channel] = []

    def begin(self, addresses: Sequence[Sequence[str]]) -> bool:
        """False: this very attempt was committed already, and all serve its version."""
        statuses = [self._call(each) for each in addresses]
        self._complete(statuses)
        committed = [status.held is not None and self._is_this(status.held) for status in statuses]
        if all(committed):
            return False
        if any(committed):  # receivers that serve a version take no piece of it again
            lost = f"receiver {committed.index(False)} has lost it"
            raise Refused(f"epoch {self._epoch} was committed, and {lost}: take a new one")
        order = Begin(tuple(tuple(each) for each in addresses))
        for channel in self._channels:
            channel.say(order)
        for place in range(len(self._channels)):
            self._hear(place, Begun)
        return True

    def _call(self, addresses: Sequence[str]) -> Status:
        place = len(self._channels)
        nodes = [self._plan.exchange.senders.places[0].node, self._plan.exchange.receivers.places[place].node]
        with at_receiver(place):
            channel = call(addresses, nodes[0] == nodes[1], self._patience_s)
            channel.patience(self._patience_s + _ANSWER_S)
            self._channels.append(channel)
            hello = Hello("lead", "sender", 0, self._epoch, self._version, self._plan.fingerprint, door.nonce())
            door.knock(channel, self._token, hello)
            return channel.hear(Status)

    def _hear(self, place: int, *kinds: type[M]) -> M:
        with at_receiver(place):
            return self._channels[place].hear(*kinds)

    def _is_this(self, mark: Mark) -> bool:
        return (mark.version, mark.epoch) == (self._version, self._epoch)

    def _complete(self, statuses: list[Status]) -> None:
        """Completes an earlier attempt whose leader was lost while it told the receivers to flip."""
        newest = max((status.held for status in statuses if status.held), key=lambda mark: mark.epoch, default=None)
        for place, status in enumerate(statuses):
            ready = status.ready
            if newest and ready and (ready.version, ready.epoch) == (newest.version, newest.epoch) != _key(status.held):
                self._channels[place].say(Flip(ready.version, ready.epoch))
                self._hear(place, Flipped)
                statuses[place] = Status(ready, None)

    def finish(self) -> None:
        """Waits until every receiver is whole, then has all of them serve the version."""
        for place in range(len(self._channels)):
            while isinstance(self._hear(place, Landing, Whole), Landing):
                pass
        try:
            for place, channel in enumerate(self._channels):
                with at_receiver(place):
                    channel.say(Flip(self._version, self._epoch))
            for place, channel in enumerate(self._channels):
                channel.patience(self._patience_s)
                self._hear(place, Flipped)
        except SyncFailed as trouble:
            raise HalfServed(
                f"{trouble}; version {self._version} may be served by some: the next attempt has the others serve it"
            ) from trouble

    def why(self, place: int) -> SyncFailed | None:
        """The reason that this receiver gives for an attempt that failed there; None if it gives none."""
        channel, until = self._channels[place], time.monotonic() + _REASON_S
        try:
            while (left_s := until - time.monotonic()) > 0:
                channel.patience(left_s)
                if isinstance(channel.hear(Landing, Whole), Whole):
                    break
        except Silent:
            pass
        except SyncFailed as reason:
            return reason
        return None

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def _key(mark: Mark | None) -> tuple[int, int] | None:
    return (mark.version, mark.epoch) if mark is not None else None
