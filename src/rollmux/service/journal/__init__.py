"""The journal: everything that has happened, durable before anything follows from it (I11).

`values` says what a journal holds and promises, `written` how its values are written, `history` which of them are kept;
`tables` is what a file (`sqlite`) and a server (`postgres`) have in common, and `place` opens the one that is meant.
"""

from rollmux.service.journal.history import KEEP_RECORDS, KEPT_IMAGES
from rollmux.service.journal.sqlite import SqliteJournal
from rollmux.service.journal.values import (
    ANOTHER_VERSION,
    UNREADABLE,
    VERSION,
    Batch,
    Image,
    Journal,
    JournalAway,
    JournalDamaged,
    JournalTaken,
    Owned,
    Packed,
    Record,
)
from rollmux.service.journal.written import as_event, as_text, checksum, packed

__all__ = [
    "ANOTHER_VERSION",
    "KEEP_RECORDS",
    "KEPT_IMAGES",
    "UNREADABLE",
    "VERSION",
    "Batch",
    "Image",
    "Journal",
    "JournalAway",
    "JournalDamaged",
    "JournalTaken",
    "Owned",
    "Packed",
    "Record",
    "SqliteJournal",
    "as_event",
    "as_text",
    "checksum",
    "packed",
]
