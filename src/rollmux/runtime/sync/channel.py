"""One connection: frames out and in, and a carrier that moves the bytes of pieces.

Invariant: a channel that has raised is of no more use; nothing is sent twice on it.
"""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from rollmux.runtime.sync.errors import Broken, Refused, Silent
from rollmux.runtime.sync.wire import DECODER, HEADER_BYTES, MAX_MESSAGE_BYTES, Header, Kind, Message, Refusal

M = TypeVar("M", bound=Message)
Payload = memoryview | bytes
# Letters of the other side's reason that are shown.
_SHOWN = 500


class Carrier(Protocol):
    """How the bytes of pieces get across: with the frames, by shared memory, or by torch.distributed."""

    def open_giver(self, link: socket.socket, path: Path) -> None:
        """Called before the first piece. The file at `path` holds all pieces."""

    def open_taker(self, link: socket.socket) -> None: ...

    def give(self, link: socket.socket, header: bytes, payload: Payload, at: int | None) -> None:
        """Sends a piece. `at` is the place of the payload in the file; None if it does not lie there."""

    def take(self, link: socket.socket, into: memoryview) -> None: ...

    def close(self) -> None: ...


# A sender or a receiver, by its rank.
Party = tuple[str, int]
Carry = Callable[[Party, Party], Carrier]


class Channel:
    """Used by one thread; `hang_up` by any."""

    def __init__(self, link: socket.socket, carrier: Carrier, patience_s: float) -> None:
        self._link, self.carrier = link, carrier
        self.patience(patience_s)
        self.sent_bytes = 0

    def patience(self, seconds: float | None) -> None:
        """Sets how long the other side may be silent; None: as long as its host is alive."""
        self._link.settimeout(seconds)

    def say(self, message: Message) -> None:
        self.write(msgspec.json.encode(message))

    def write(self, body: Payload) -> None:
        """Sends a message that is encoded already, in whatever way both sides speak after the greeting."""
        self.send(Kind.MESSAGE, body)

    def read(self, limit: int) -> bytearray:
        """The content of the next message, of at most so many bytes."""
        header = self.header()
        if header.kind is not Kind.MESSAGE or header.size > limit:
            raise Broken(f"{header.kind.name} of {header.size} bytes where a message of at most {limit} was due")
        return self.body(header.size)

    def hear(self, *kinds: type[M], limit: int = MAX_MESSAGE_BYTES) -> M:
        """The next message, which must be of one of these kinds."""
        body = self.read(limit)
        try:
            message = DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise Broken(f"a message can't be read: {wrong}") from wrong
        if isinstance(message, Refusal):
            raise Refused(message.reason[:_SHOWN])
        if not isinstance(message, kinds):
            raise Broken(f"{type(message).__name__} where {' or '.join(kind.__name__ for kind in kinds)} was due")
        return message

    def send(self, kind: Kind, payload: Payload = b"", index: int = 0) -> None:
        """Sends a frame with its payload, without the carrier."""
        with _trouble():
            send_all(self._link, Header(kind, index, len(payload)).pack(), payload)

    def header(self) -> Header:
        raw = bytearray(HEADER_BYTES)
        with _trouble():
            fill(self._link, memoryview(raw))
        return Header.unpack(bytes(raw))

    def body(self, size: int) -> bytearray:
        """The bytes that follow a header. The caller has checked their number."""
        raw = bytearray(size)
        with _trouble():
            fill(self._link, memoryview(raw))
        return raw

    def open_giver(self, path: Path) -> None:
        with _trouble():
            self.carrier.open_giver(self._link, path)

    def open_taker(self) -> None:
        with _trouble():
            self.carrier.open_taker(self._link)

    def give(self, header: Header, payload: Payload = b"", at: int | None = None) -> None:
        with _trouble():
            if payload:
                self.carrier.give(self._link, header.pack(), payload, at)
            else:
                send_all(self._link, header.pack(), b"")
        self.sent_bytes += HEADER_BYTES + len(payload)

    def take(self, into: memoryview) -> None:
        with _trouble():
            self.carrier.take(self._link, into)

    @property
    def is_over(self) -> bool:
        """Whether the other side has hung up, as far as is known. Ask only while it has nothing to say."""
        try:
            poll = select.poll()
            poll.register(self._link, select.POLLIN)
            return bool(poll.poll(0)) and not self._link.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):  # it is broken, or closed here
            return True

    def hang_up(self) -> None:
        """Ends the connection. Whoever waits for it, on either side, is woken."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self._link.close()
        self.carrier.close()


@contextmanager
def _trouble() -> Iterator[None]:
    """Turns what the system says of a connection into our own words."""
    try:
        yield
    except TimeoutError as error:
        raise Silent("the other side was silent for too long") from error
    except OSError as error:
        raise Broken(f"the connection is gone: {error}") from error


def send_all(link: socket.socket, header: bytes, payload: Payload) -> None:
    """Sends both, by one system call if that takes them all. The payload is not copied here.

    Not by `sendall`, which counts its patience for all bytes together: a slow connection is not a silent one.
    """
    sent = link.sendmsg([header, payload])
    for part in (header, payload):
        left = memoryview(part)[sent:]
        sent = max(0, sent - len(part))
        while left:
            left = left[link.send(left) :]


def fill(link: socket.socket, into: memoryview) -> None:
    """Receives exactly as many bytes as `into` has, straight into it."""
    while into:
        got = link.recv_into(into)
        if not got:
            raise Broken("the other side hung up")
        into = into[got:]
