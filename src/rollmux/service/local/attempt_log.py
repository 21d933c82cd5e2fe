"""What the ranks of an attempt print: the keeper writes it, within bounds; the controller reads it, from the end.

However much is printed, the latest part is kept, in two files of which the older is thrown away. A full disk costs
output, and never the job: the job does not wait, and gets no error. Every keeper loads this module, so it imports next
to nothing.
"""

import os
from contextlib import suppress
from itertools import dropwhile

from rollmux.plain import plain

CHUNK = 2**16
# As much as the largest pipe holds: what comes after was not printed by the rank that has ended.
_LAST_CHUNKS = 2**20 // CHUNK
_LAST_BYTES = 8192
_LAST_WORDS = 300
_LINE = 4096
# If a rank fails, torchrun says so in lines that name its own files, and if it knows no more it ends with the last
# of these texts.
_RANK_FAILED, _OF_TORCHRUN, _NOTHING_KNOWN = "] failed (exitcode: ", "torch/distributed/", "To enable traceback see"


class AttemptLog:
    """The pipe that one rank prints into, and the files that it goes to."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self.path, self._half = path, max(1, most_bytes // 2)
        self._last = b""
        self._file: int | None = None
        self._bytes = 0
        with suppress(OSError):
            self._open()
        self.pipe, self.end = os.pipe()
        os.set_blocking(self.pipe, False)

    def started(self) -> None:
        """From now on the pipe is at its end when all that print into it have closed it."""
        os.close(self.end)

    def read(self) -> bool | None:
        """Takes what has been printed: whether there was something, or None if nothing will come any more."""
        try:
            printed = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return False
        if not printed:
            return None
        self._last = (self._last + printed[-_LAST_BYTES:])[-_LAST_BYTES:]
        with suppress(OSError):
            self._write(printed)
        return True

    def drain(self) -> None:
        for _ in range(_LAST_CHUNKS):
            if not self.read():
                return

    def last_words(self) -> str:
        """The last line that says something; if torchrun has nothing to tell of a rank, that rank's own last line."""
        lines = [plain(line).strip() for line in self._last.decode(errors="replace").splitlines()]
        lines = [line for line in reversed(lines) if any(map(str.isalnum, line))]
        last = next(iter(lines), "")
        if _NOTHING_KNOWN in last:
            before = dropwhile(lambda line: _RANK_FAILED not in line, lines)
            last = next((line for line in before if _OF_TORCHRUN not in line), last)
        return last if len(last) <= _LAST_WORDS else f"{last[: _LAST_WORDS - 1]}…"

    def _write(self, printed: bytes) -> None:
        # Cut at the half, so that the bound holds to the byte.
        while printed:
            file = self._open() if self._file is None else self._file
            if self._bytes < self._half:
                written = os.write(file, printed[: self._half - self._bytes])
                self._bytes += written
                printed = printed[written:]
            else:
                with suppress(FileNotFoundError):
                    os.replace(self.path, f"{self.path}.1")
                os.close(file)
                self._file = None  # if there is no room for a new one now, the next output tries again

    def _open(self) -> int:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._bytes = os.fstat(self._file).st_size
        return self._file


def tail(path: str, lines: int, most_bytes: int) -> list[str]:
    """The last lines of such a log, as far as they lie within the last bytes."""
    found = b""
    for name in (path, f"{path}.1"):
        if len(found) < most_bytes:
            found = _end(name, most_bytes - len(found)) + found
    return last_lines(found.decode(errors="replace"), lines)


def last_lines(text: str, most: int) -> list[str]:
    return [plain(line[:_LINE]) for line in text.splitlines()[-most:]] if most > 0 else []


def _end(path: str, most_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes)
    except FileNotFoundError:
        return b""
