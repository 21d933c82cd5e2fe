"""Why a job waits, shown where its script shows no log: it would look as if it hung."""

import logging

PLAIN = logging.Formatter("rollmux: %(message)s")


class Shown(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error for as long as nobody else takes care of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_log() -> None:
    """What the client says is seen from here on, unless the script has a log of its own, or sets one up later."""
    log = logging.getLogger("rollmux")
    if log.handlers or log.level:
        return
    handler = Shown()
    handler.setFormatter(PLAIN)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
