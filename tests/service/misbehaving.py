"""A way to the controller on which calls get lost, cut, repeated and late: a TCP proxy that knows where each ends."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from urllib.parse import urlsplit

LATE_S = 0.4


class Fate(Enum):
    """What becomes of a call."""

    GOES = "goes through"
    REQUEST_LOST = "request lost"
    REQUEST_CUT = "request cut in the middle"
    REPLY_LOST = "reply lost"
    REPLY_CUT = "reply cut in the middle"
    TWICE = "request comes twice"
    LATE = "request comes late, after it was repeated"


# Of a request line such as "POST /v1/jobs/a/ask", and the body.
Decide = Callable[[str, bytes], Fate]


class Proxy:
    """Passes calls on to `url`, each by its own connection, and does with them what `decide` says."""

    def __init__(self, url: str, decide: Decide) -> None:
        there = urlsplit(url)
        self._there, self.decide = (there.hostname or "", there.port or 80), decide
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.seen: list[tuple[str, bytes, bytes]] = []  # line, body and answer of each call that went through
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        self._over.set()
        with socket.create_connection(self._listening.getsockname()):
            pass  # so that it accepts no more
        for each in list(self._open):
            with each:
                _hang_up(each)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            caller, _ = self._listening.accept()
            if self._over.is_set():
                caller.close()
                return
            self._open.add(caller)
            self._start(lambda caller=caller: self._serve(caller))  # type: ignore[misc]

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _serve(self, caller: socket.socket) -> None:
        """One connection of a caller, until it ends or a fault ends it."""
        with caller:
            try:
                while request := _message(caller):
                    if not self._pass_on(caller, request):
                        break
            except OSError:
                pass  # one of the two has hung up
            finally:
                self._open.discard(caller)
                _hang_up(caller)

    def _pass_on(self, caller: socket.socket, request: bytes) -> bool:
        """Whether the connection goes on."""
        head, _, body = request.partition(b"\r\n\r\n")
        line = head.partition(b" HTTP/")[0].decode()
        fate = self.decide(line, body)
        match fate:
            case Fate.REQUEST_LOST:
                return False
            case Fate.REQUEST_CUT:
                self._send(request[: len(request) - len(body) // 2 - 1])
                return False
            case Fate.LATE:
                self._start(lambda: self._ask_late(request))
                return False
        answer = self._ask(request)
        if fate is Fate.TWICE:
            answer = self._ask(request)
        if fate is Fate.REPLY_LOST:
            return False
        if fate is Fate.REPLY_CUT:
            caller.sendall(answer[: len(answer) - 2])
            return False
        self.seen.append((line, body, answer))
        caller.sendall(answer)
        return True

    def _ask(self, request: bytes) -> bytes:
        try:
            with self._reached() as there:
                there.sendall(request)
                return _message(there)
        except OSError:
            return b""  # the controller is away

    def _ask_late(self, request: bytes) -> None:
        time.sleep(LATE_S)
        self._ask(request)

    def _send(self, request: bytes) -> None:
        """A part of a request, and then nothing more."""
        with self._reached() as there:
            there.sendall(request)

    @contextmanager
    def _reached(self) -> Iterator[socket.socket]:
        """The controller, until this closes: an answer may be parked there for which nobody waits any more."""
        with socket.create_connection(self._there, timeout=20) as there:
            self._open.add(there)
            try:
                yield there
            finally:
                self._open.discard(there)


def _message(of: socket.socket) -> bytes:
    """One HTTP message with its body; nothing where the connection ended."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = of.recv(65536)
        if not more:
            return b""
        got += more
    head = got.partition(b"\r\n\r\n")[0].lower()
    _, _, rest = head.partition(b"content-length:")
    whole = len(head) + 4 + int(rest.split(b"\r\n")[0] or 0)
    while len(got) < whole:
        more = of.recv(65536)
        if not more:
            return b""
        got += more
    return got


def _hang_up(of: socket.socket) -> None:
    with suppress(OSError):  # where it has ended already
        of.shutdown(socket.SHUT_RDWR)


@contextmanager
def misbehaving(url: str, decide: Decide) -> Iterator[Proxy]:
    proxy = Proxy(url, decide)
    try:
        yield proxy
    finally:
        proxy.close()
