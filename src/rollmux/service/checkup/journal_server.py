"""A check of the server that keeps the journal, if the journal is on a server."""

from rollmux.service.checkup.finding import Finding, fail, ok
from rollmux.service.journal.place import tried
from rollmux.service.journal.values import JournalAway, NoJournal

CHECK = "journal"


def journal_server(url: str) -> Finding:
    """Whether the server answers, and lets a controller write there; nothing is written to it."""
    try:
        tried(url)
    except NoJournal:
        return ok(CHECK, "its server answers, and has none yet")
    except JournalAway as error:
        return fail(CHECK, str(error), "mend the server or the network, or ROLLMUX_JOURNAL (--journal)")
    return ok(CHECK, "its server answers, and has it")
