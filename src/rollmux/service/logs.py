"""What the service says as it runs: lines for people, or JSON objects for whoever collects them.

What a line is about goes with it as `extra={"fields": {...}}`, so that nobody has to take a sentence apart.
Whoever reads the lines may stall (a pager, a collector that hangs): that holds up nobody but the lines.
"""

import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from threading import Condition, Thread

# The most bytes that wait for a reader who stalls: an hour of a busy controller. Lines that come then are dropped.
MOST_BYTES = 4 * 2**20
# How long the end of the process waits until the last lines are written.
LAST_S = 1.0


def configure(as_json: bool) -> None:
    """From now on everything is written to standard error, in this way."""
    # If there is no standard error, its number may be another file's.
    handler = logging.NullHandler() if sys.__stderr__ is None else Scribe(sys.__stderr__.fileno())
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every stranger who speaks no HTTP


class Scribe(logging.Handler):
    """Writes lines from a thread of its own, in their order, and where some had to be dropped says how many.

    The standard library's queues for this count lines, not bytes, and their end waits for a reader who stalls.
    """

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to
        self._lines: list[tuple[bytes, int]] = []  # with each the number of lines that are lost with it
        self._bytes = self._dropped = 0
        self._changed = Condition()
        Thread(target=self._write_forever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001  so all handlers do
            self.handleError(record)
            return
        with self._changed:
            if self._bytes and self._bytes + len(line) > MOST_BYTES:
                self._dropped += 1
            else:
                self._tell_dropped()
                self._add(line, 1)

    def flush(self) -> None:
        """Called at the end of the process: waits until all is written, or nobody seems to read it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, LAST_S)

    def _write_forever(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # else it takes the signals that `run` blocks
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines, self._lines = self._lines, []
            text = b"".join(line for line, _ in lines)
            is_written = self._write(text)
            with self._changed:
                self._bytes -= len(text)
                if not is_written:
                    self._dropped += sum(lost for _, lost in lines)
                elif not self._lines:
                    self._tell_dropped()
                self._changed.notify_all()

    def _write(self, text: bytes) -> bool:
        try:
            while text:
                text = text[os.write(self._to, text) :]
        except OSError:  # a full disk, or a pipe that nobody has any more
            return False
        return True

    def _tell_dropped(self) -> None:
        if self._dropped:
            said = f"{self._dropped} lines of this log were not read in time, or could not be written: they are missing"
            told = {"name": "rollmux.service", "levelno": logging.WARNING, "levelname": "WARNING", "msg": said}
            record = logging.makeLogRecord({**told, "fields": {"missing": self._dropped}})
            self._add(self._line(record), self._dropped)
            self._dropped = 0

    def _add(self, line: bytes, lost: int) -> None:
        self._lines.append((line, lost))
        self._bytes += len(line)
        self._changed.notify_all()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the fields and the error if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = _fields(record)
        if fields:
            entry["fields"] = fields
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextLines(logging.Formatter):
    """A line with its time in front, and its fields behind."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name that logging calls
        fields = "".join(f" {name}={json.dumps(value, default=str)}" for name, value in _fields(record).items())
        return super().formatMessage(record) + fields


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}
