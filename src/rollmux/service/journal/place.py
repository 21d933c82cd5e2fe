"""The journal that is meant: a file in the controller's folder, or on a server by URL."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rollmux.service.journal.history import KEEP_RECORDS
from rollmux.service.journal.sqlite import SqliteJournal
from rollmux.service.journal.values import Journal, JournalAway, NoJournal

if TYPE_CHECKING:
    from rollmux.service.journal.postgres import PostgresJournal

FILE = "journal.db"
SCHEMES = ("postgresql://", "postgres://")


def opened(url: str, keep_records: int = KEEP_RECORDS) -> Callable[[Path], Journal]:
    """Opens a journal to write, given the path that it would have as a file."""
    if not url:
        return lambda path: SqliteJournal(path, keep_records)
    kind = _of_server(url)
    return lambda _: kind(url, keep_records)


def to_read(url: str, path: Path) -> Journal:
    """A journal as it stands; on a server, also beside the controller that writes it."""
    if url:
        return _of_server(url)(url, reads_only=True)
    if not path.is_file():
        raise NoJournal(f"there is no journal {path}; say --folder, or --journal URL")
    return SqliteJournal(path, reads_only=True)


def tried(url: str) -> None:
    """Raises NoJournal if a controller would be the first on this server, JournalAway if it could not begin."""
    _of_server(url)(url, tries_only=True).close()


def _of_server(url: str) -> "type[PostgresJournal]":
    """The kind of journal for this URL. No error quotes the URL, which may hold a password."""
    if not url.startswith(SCHEMES):
        raise JournalAway("a journal's URL begins with postgresql://; without one it is a file in the folder")
    try:
        from rollmux.service.journal.postgres import PostgresJournal  # noqa: PLC0415
    except ImportError as error:
        raise JournalAway("a journal in PostgreSQL needs psycopg: pip install 'rollmux[postgres]'") from error
    return PostgresJournal
