"""Server-sent events out of bytes that may be cut anywhere.

Lines end at line feeds alone. `str.splitlines`, and with it the line reader of httpx, would also cut at U+2028 and
U+0085, which both servers send as they are inside JSON texts.
Invariant: an event is given only when it came whole; the rest that a broken connection leaves is never given.
"""

from collections.abc import Iterator

MAX_EVENT_BYTES = 64 * 2**20


class Events:
    """Takes bytes as they come, and gives the data of each event that is whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for line in (each.removesuffix(b"\r") for each in lines):
            if line.startswith(b"data:"):
                self._data.append(bytes(line[5:].removeprefix(b" ")))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data
