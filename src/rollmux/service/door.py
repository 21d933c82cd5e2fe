"""Answers at the controller's socket until the controller does: it is alive, and everything else is to come again.

Recovery may take seconds. Who calls meanwhile hears 503 instead of nothing, so that those who watch over the process
can tell one that starts from one that is dead, and calls are repeated as after any other fault.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

import msgspec

from rollmux import __version__
from rollmux.protocol.messages import Refusal
from rollmux.protocol.views import Health, Standing
from rollmux.service.heads import MOST_CONNECTIONS

T = TypeVar("T")

# So long is waited for what is just being said when the door closes.
LAST_WORDS_S = 0.1
# Who is silent for so long is not waited for, and what is longer is not read.
PATIENCE_S, MOST_BYTES = 2.0, 1024 * 1024

_LENGTH = re.compile(rb"^content-length: *(\d{1,9})\r$", re.I | re.M)


class Door:
    """Serves a bound socket from a thread of its own; once closed, the socket listens on and is free for another."""

    def __init__(self, at: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._at, self._tls = at.dup(), tls
        self._at.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._guests: set[asyncio.Task[None]] = set()
        self._thread = Thread(target=self._loop.run_forever, name="door", daemon=True)
        self._thread.start()
        self._in_loop(self._open())

    def close(self) -> None:
        """What is being said is said to its end, within a moment."""
        if not self._loop.is_closed():
            self._in_loop(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._at.listen()
        self._loop.add_reader(self._at, self._let_in)

    def _let_in(self) -> None:
        """By hand: who is let in by asyncio's own server in the moment in which that is closed is never answered."""
        with suppress(OSError):
            guest, _ = self._at.accept()
            if len(self._guests) >= MOST_CONNECTIONS:  # without a file left it would be called for nothing, on and on
                guest.close()
                return
            guest.setblocking(False)
            meeting = self._loop.create_task(self._meet(guest))
            self._guests.add(meeting)
            meeting.add_done_callback(self._guests.discard)

    async def _end(self) -> None:
        self._loop.remove_reader(self._at)
        self._at.close()
        until = self._loop.time() + LAST_WORDS_S
        while open_ones := asyncio.all_tasks() - {asyncio.current_task()}:
            _, silent = await asyncio.wait(open_ones, timeout=max(0.0, until - self._loop.time()))
            for task in silent:
                task.cancel()
            await asyncio.gather(*open_ones, return_exceptions=True)
        await asyncio.sleep(0.01)  # what is closed now is so in the next round of the loop

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
            guest.close()  # it may come again, too


def _answer(head: bytes) -> bytes:
    if re.match(rb"GET /(healthz|v1/health)[ ?]", head):
        return _response("200 OK", Health(True, __version__, 0, state=Standing.STARTING))
    return _response("503 Service Unavailable", Refusal("the controller is starting: try again in a moment"))


def _response(status: str, content: Health | Refusal) -> bytes:
    body = msgspec.json.encode(content)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
