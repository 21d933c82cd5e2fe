"""HTTP as uvicorn reads it, with bounds on what comes before a call is whole: connection, first line, headers, body.

The sender may be a stranger. Invariant: before its call is whole a sender has no more than `MOST_HEAD_BYTES` of the
controller's memory (and the little that was read with them), nor a connection for longer than `HEAD_S`, and `BODY_S`
for the rest of a call, answered or not; and a sender that takes nothing of the answers loses its connection.
"""

import asyncio
from math import inf

import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from rollmux.protocol.messages import Refusal
from rollmux.service import gate

# The longest path of a call is below 1 KiB, a token of a job below 10.
MOST_HEAD_BYTES = 64 * 1024
# From the connection, or from the first part of a later head, to its end.
HEAD_S = 10.0
# From a head to the end of its body: the largest job description in a minute, whatever the line.
BODY_S = 60.0
# The time between two looks whether the other end has taken something of the answers that wait for it.
TAKEN_S = 60.0

_TOO_LARGE, _TOO_LATE, _TOO_MANY = 431, 408, 503
_WHY = {
    _TOO_LARGE: "what came before the call was whole is too large",
    _TOO_LATE: "the call was not whole in time",
    _TOO_MANY: "all connections of the controller are taken: try again in a moment",
}


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _came = 0  # bytes of a head, or between parts of a body, that have not led to anything yet
    _late: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None  # whether what is sent is taken
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > gate.MOST_CONNECTIONS:
            gate.complain(self.loop.time())
            self._refuse(_TOO_MANY)
        else:
            self._wait(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._look_no_more()
        if self._answering is not None:  # uvicorn tells only the call that came last
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does so only where the other end has closed in good order

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            self._look_at_the_rest()
            return
        if self._came > MOST_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._came and self._late is None:
            self._wait(HEAD_S)
        if self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # What came was no new call, and uvicorn waits for none any more.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._came = self._came or 1  # the start of this call may have come together with the call before
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._settle()
        self._wait(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._came = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._settle()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_at_the_rest()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._look_at_the_rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_whether_taken(inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look_no_more()
        self._look_at_the_rest()

    def _wait(self, limit_s: float) -> None:
        self._late = self.loop.call_later(limit_s, self._refuse, _TOO_LATE)

    def _settle(self) -> None:
        """All that has come is understood, or nobody waits for the rest any more."""
        self._came = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _look_at_the_rest(self) -> None:
        """A connection that is to close does so once all is taken, however little is left."""
        if self.transport.is_closing() and self._next_look is None:
            self._look_whether_taken(inf)

    def _look_whether_taken(self, left_before: float) -> None:
        left = self.transport.get_write_buffer_size()
        if left < left_before:
            self._next_look = self.loop.call_later(TAKEN_S, self._look_whether_taken, left)
        else:
            self.transport.abort()

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _refuse(self, status: int) -> None:
        self._settle()
        if not self.transport.is_closing():
            body = msgspec.json.encode(Refusal(_WHY[status]))
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
            again = b"retry-after: 1\r\n" if status == _TOO_MANY else b""
            self.transport.write(STATUS_LINE[status] + head + again + b"\r\n" + body)
            self.transport.close()
            self._look_at_the_rest()
