"""A check of the server that keeps the journal, where one does."""

from contextlib import closing
from pathlib import Path

from rollmux.service.checkup.finding import Finding, fail, ok
from rollmux.service.journal.place import to_read
from rollmux.service.journal.values import JournalAway, NoJournal

CHECK = "journal"


def journal_server(url: str) -> Finding:
    """Whether it answers and lets us in; nothing is written to it."""
    try:
        with closing(to_read(url, Path())):
            return ok(CHECK, "its server answers, and has it")
    except NoJournal:
        return ok(CHECK, "its server answers, and has none yet")
    except JournalAway as error:
        return fail(CHECK, str(error), "mend the server or the network, or ROLLMUX_JOURNAL (--journal)")
