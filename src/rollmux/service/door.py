"""Answers at the controller's socket until the controller does: `/healthz` says that it lives, other calls get 503.

Recovery may take seconds. A caller hears 503 meanwhile instead of nothing, so that those who watch over the process can
tell one that starts from one that is dead, and calls are repeated as after any other fault.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

import msgspec

from rollmux import __version__
from rollmux.protocol.messages import Refusal
from rollmux.protocol.views import Health, Standing
from rollmux.service.gate import Gate

T = TypeVar("T")

# How long the door waits for answers that are under way when it closes.
LAST_WORDS_S = 0.1
# A caller that is silent for so long is not waited for, and no more than so much of a body is read.
PATIENCE_S, MOST_BYTES = 2.0, 1024 * 1024

_LENGTH = re.compile(rb"^content-length: *(\d{1,9})\r$", re.I | re.M)


class Door:
    """Serves a bound socket from a thread of its own; once closed, the socket listens on and is free for another."""

    def __init__(self, at: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._at, self._tls = at.dup(), tls
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="door", daemon=True)
        self._thread.start()
        self._in_loop(self._open())

    def close(self) -> None:
        """Answers that are under way go out first, within a moment."""
        if not self._loop.is_closed():
            self._in_loop(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        # By hand: a caller that asyncio's own server accepts as it is closed would never be answered.
        self._gate = Gate(self._at, self._meet)

    async def _end(self) -> None:
        self._gate.close()
        self._at.close()
        await self._gate.wait_closed(LAST_WORDS_S)
        await asyncio.sleep(0.01)  # what was closed just now really closes in the loop's next round

    async def _meet(self, guest: socket.socket) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader = asyncio.StreamReader()
                protocol = asyncio.StreamReaderProtocol(reader)
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, guest, ssl=self._tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    await reader.read(min(int(length[1]), MOST_BYTES) if length else 0)
                    writer.write(_answer(head))
                    await writer.drain()
                finally:
                    writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            guest.close()  # this caller, too, may come again


def _answer(head: bytes) -> bytes:
    if re.match(rb"GET /(healthz|v1/health)[ ?]", head):
        return _response("200 OK", Health(True, __version__, 0, state=Standing.STARTING))
    return _response("503 Service Unavailable", Refusal("the controller is starting: try again in a moment"))


def _response(status: str, content: Health | Refusal) -> bytes:
    body = msgspec.json.encode(content)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
