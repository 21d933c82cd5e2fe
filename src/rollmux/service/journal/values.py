"""What a journal holds, and what it promises to whoever writes and reads it.

A record is one event with what it led to, as a checksum: a replay that leads to something else is noticed, and not
gone on from. Submissions are kept beside it: what a launcher needs is no business of the machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rollmux.errors import RollmuxError
from rollmux.mux.events import Event

VERSION = 1

ANOTHER_VERSION = "another version of the program wrote it; start that version, and change it once all jobs have ended"
# What data of another version raise where they are read.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


class JournalDamaged(RollmuxError):
    """What is in the journal is not what was written, or not of this journal: nothing is made of it."""


class JournalTaken(RollmuxError):
    """Another controller writes this journal: this one must not."""


class JournalAway(RollmuxError):
    """The journal can't be reached, or does not let us in."""


class NoJournal(JournalAway):
    """Where it should be there is none, or none yet."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event that changed the machine. `told` is the checksum of the commands that it led to."""

    seq: int
    at: float
    event: Event
    told: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A submission as it was sent, and whose it is; whether a script that attaches by itself has come for it yet."""

    job_id: str
    tenant: str
    data: dict[str, Any]
    came: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes durable together. Of the jobs that are forgotten the submissions are removed."""

    records: tuple[Record, ...] = ()
    owned: tuple[Owned, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The whole state of a machine after the record with this number, and when that was."""

    seq: int
    at: float
    state: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """An image as it is written: `packed(state)`."""

    seq: int
    at: float
    content: bytes


class Journal(Protocol):
    """Where records are kept, by one controller at a time. `append` returns when they would survive a power cut.

    Its history begins after a record that `begins` names (0: it is whole), with the image of that state.
    """

    def head(self) -> dict[str, Any]: ...

    def begin(self, head: dict[str, Any], after: int = 0) -> None: ...

    def begins(self) -> int: ...

    def append(self, batch: Batch) -> None: ...

    def keep(self, image: Image | Packed) -> None: ...

    def trim(self) -> bool: ...

    def image(self, seq: int | None = None) -> Image | None: ...

    def records(self, after: int = 0) -> Iterator[Record]: ...

    def owned(self) -> Iterator[Owned]: ...

    def close(self) -> None: ...
