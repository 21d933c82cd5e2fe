"""What the service says as it runs: lines for people, or JSON objects for whoever collects them.

What a line is about goes with it as `extra={"fields": {...}}`, so that nobody has to take a sentence apart.
"""

import json
import logging
from datetime import UTC, datetime


def configure(as_json: bool) -> None:
    """From now on everything is written to standard error, in this way."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every stranger who speaks no HTTP


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and where there are any fields and the error."""

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
