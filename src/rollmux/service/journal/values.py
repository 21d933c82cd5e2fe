"""What a journal holds, and what it promises to those who write and read it.

A record is one event with a checksum of what it led to: if a replay leads to something else, this is noticed, and the
controller does not go on. Submissions are kept beside the records: the machine needs nothing of what a launcher needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rollmux.errors import RollmuxError
from rollmux.mux.events import Event

VERSION = 1

ANOTHER_VERSION = "another version of the program wrote it; start that version, and change it once all jobs have ended"
# The errors that data of another version may raise when they are read.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


class JournalDamaged(RollmuxError):
    """What is in the journal is not what was written, or is not of this journal: it is not used."""


class JournalTaken(RollmuxError):
    """Another controller writes this journal: this one must not."""


class JournalAway(RollmuxError):
    """The journal can't be reached, or does not let us in."""


class NoJournal(JournalAway):
    """There is no journal, or none yet, where it should be."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event that changed the machine. `told` is the checksum of the commands that it led to."""

    seq: int
    at: float
    event: Event
    told: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A submission as it was sent, and its tenant; `came`: a script that no launcher starts has attached for it."""

    job_id: str
    tenant: str
    data: dict[str, Any]
    came: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes durable together. The submissions of `forgotten` jobs are removed."""

    records: tuple[Record, ...] = ()
    owned: tuple[Owned, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The whole state of a machine after the record `seq`, and the machine time of that."""

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

    Its history begins after the record that `begins` names (0: all records are there), with the image of that state.
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
