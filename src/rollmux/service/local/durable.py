"""Small files that are written for good: all of it or nothing, and there after a power cut.

Room can be reserved long before, so that a disk that is full by then still takes them. Every keeper loads this module.
"""

import json
import os
from collections.abc import Mapping

# The size of each file: blanks after the JSON mean nothing, and reserve the room.
ROOM_BYTES = 4096


def reserve(path: str) -> None:
    """Reserves room for what will be written under this name."""
    _fill(f"{path}.tmp", b"")


def write(path: str, content: Mapping[str, object]) -> None:
    _fill(f"{path}.tmp", json.dumps(content).encode())
    os.replace(f"{path}.tmp", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _fill(path: str, content: bytes) -> None:
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(content.ljust(ROOM_BYTES))
        file.truncate()  # a write that broke off may have left more
        file.flush()
        os.fsync(file.fileno())
