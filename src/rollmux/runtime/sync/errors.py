"""What can go wrong while weights cross.

RollmuxError
└── SyncFailed        this attempt is over and nothing has become visible: try again with a higher epoch
    ├── HalfServed    all receivers have the version, and who serves it is unknown: the next attempt settles that first
    ├── Refused       the other side said no: a wrong token, an old epoch, another plan
    ├── Broken        the other side went away, was silent for too long, or said something out of place
    │   ├── Corrupt   bytes arrived that are not those that were sent
    │   └── Silent    nothing came for as long as this side waits
    └── StillRead     the copy that would be overwritten is still being read
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollmux.errors import RollmuxError


class SyncFailed(RollmuxError):
    """The receivers serve what they served before, unless it is `HalfServed`."""


class HalfServed(SyncFailed):
    """All receivers have the version, and some may serve it while others serve what they served before."""


class Refused(SyncFailed):
    """The same call would be refused again."""


class Broken(SyncFailed):
    """A connection is of no more use. What has landed over it stays landed."""


class Corrupt(Broken):
    """The digest of what has arrived is not the one that was announced."""


class Silent(Broken):
    """The other side may be gone, or wait for somebody who is."""


class StillRead(SyncFailed):
    """Somebody reads the older version: close it, or wait longer."""


@contextmanager
def at_receiver(rank: int) -> Iterator[None]:
    """Adds to an error within which receiver it happened at."""
    try:
        yield
    except SyncFailed as trouble:
        raise type(trouble)(f"receiver {rank}: {trouble}") from trouble
