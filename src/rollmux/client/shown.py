"""Shows why a job waits if its script shows no log: else the job would look as if it hung."""

import logging

PLAIN = logging.Formatter("rollmux: %(message)s")


class Shown(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error as long as the script has set up no log of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_log() -> None:
    """Shows the client's messages from here on, unless the script has a log of its own, or sets one up later."""
    log = logging.getLogger("rollmux")
    if log.handlers or log.level:
        return
    handler = Shown()
    handler.setFormatter(PLAIN)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
