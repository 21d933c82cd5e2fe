"""What comes before a call is whole is bounded: whoever sends it may be a stranger."""

import gc
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakSet

import pytest

from rollmux.cli.remote import NoController, Remote
from rollmux.protocol.views import Health
from rollmux.service import gate, heads, serve, stream
from rollmux.service.heads import MOST_HEAD_BYTES, BoundedHttp
from tests.service.serving import Served, served
from tests.waiting import until

WHOLE = b"GET /healthz HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
LONG_ANSWER = b"GET /openapi.json HTTP/1.1\r\nhost: here\r\nconnection: keep-alive\r\n\r\n"
EVENTS = b"GET /v1/events HTTP/1.1\r\nhost: here\r\nauthorization: Bearer %s\r\n\r\n"
BEGUN = b"POST /v1/quote HTTP/1.1\r\nhost: here\r\n"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("controller")) as found:
        yield found


def connected(there: Served) -> socket.socket:
    found = urlsplit(there.service.url)
    return socket.create_connection((found.hostname or "", found.port or 0), timeout=10)


def answer_to(there: Served, *parts: bytes) -> bytes:
    """All that is heard until the controller closes the connection."""
    with closing(connected(there)) as caller:
        heard = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                caller.sendall(part)
        with suppress(ConnectionResetError):
            while more := caller.recv(65536):
                heard += more
        return heard


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /" + b"a" * MOST_HEAD_BYTES, *[b"a" * 10_000] * 20],
        [BEGUN, b"x: ", *[b"a" * 10_000] * 20],
        [BEGUN, *[b"x-%d: " % i + b"a" * 1000 + b"\r\n" for i in range(200)]],
        [BEGUN + b"transfer-encoding: chunked\r\n\r\n", b"1;", *[b"a" * 10_000] * 20],
    ],
    ids=["a path", "a header", "many headers", "what stands between parts of a body"],
)
def test_a_head_without_an_end_is_not_kept(there: Served, parts: list[bytes]) -> None:
    heard = answer_to(there, *parts)
    assert not heard or heard.startswith((b"HTTP/1.1 431", b"HTTP/1.1 401"))
    assert there.get("/healthz")["ok"]


@pytest.mark.parametrize("begun", [b"", b"GE", BEGUN, b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\nGE"])
def test_who_makes_no_call_is_not_waited_for(there: Served, begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEAD_S", 0.2)
    assert b"HTTP/1.1 408" in answer_to(there, begun)


@pytest.mark.parametrize("bearer", ["nobody", "admin"])
@pytest.mark.parametrize(
    ("length", "parts"),
    [("content-length: 100", [b"x"]), ("transfer-encoding: chunked", [b"1\r\nx\r\n"] * 3)],
    ids=["a whole", "parts"],
)
def test_who_sends_no_more_of_a_call_is_not_waited_for_answered_or_not(
    there: Served, bearer: str, length: str, parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "BODY_S", 0.2)
    token = there.admin if bearer == "admin" else bearer
    head = BEGUN + f"authorization: Bearer {token}\r\n{length}\r\n\r\n".encode()
    heard = answer_to(there, head, *parts)
    assert (b"HTTP/1.1 401" in heard) == (bearer == "nobody")
    assert b"HTTP/1.1 408" in heard


def test_who_sends_the_rest_of_a_call_after_its_answer_and_then_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "KEEP_S", 0.2)
    with served(tmp_path) as there, closing(connected(there)) as caller:
        caller.sendall(BEGUN + b"content-length: 2\r\n\r\n")
        heard = b""
        while not heard.endswith(b"}"):
            heard += caller.recv(65536)
        caller.sendall(b"{}")
        assert caller.recv(65536) == b""


def test_who_would_rather_speak_another_protocol_hears_that_with_a_body_that_can_not_be(there: Served) -> None:
    """As Java's HTTP client would, and `curl --http2`. Without a body they are answered as others."""
    upgrade = (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nauthorization: Bearer %s\r\n" % there.admin.encode()
    )
    with closing(connected(there)) as caller:
        for head in (
            b"GET /v1/cluster HTTP/1.1\r\nhost: here\r\n" + upgrade + b"\r\n",
            WHOLE.replace(b"close", b"keep"),
        ):
            caller.sendall(head)
            assert caller.recv(65536).startswith(b"HTTP/1.1 200")
    heard = answer_to(there, BEGUN + upgrade + b"content-length: 2\r\nconnection: close\r\n\r\n{}")
    assert heard.startswith(b"HTTP/1.1 400")
    assert b"send no `Upgrade`" in heard


def test_whose_call_the_end_of_the_controller_breaks_off_is_told_so_and_that_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "DRAIN_S", 0.2)
    with served(tmp_path) as there, closing(connected(there)) as caller:
        caller.sendall(BEGUN + b"authorization: Bearer %s\r\ncontent-length: 100\r\n\r\n{" % there.admin.encode())
        assert there.service._server is not None
        at_work = there.service._server.server_state.tasks
        until(lambda: at_work)
        there._loop.call_soon_threadsafe(there.service.end)
        heard = caller.recv(65536)
    assert heard.startswith(b"HTTP/1.1 503")
    assert heard.endswith(b'{"error":"the controller is ending: try again in a moment","problems":[]}')
    assert not [each for each in caplog.records if each.exc_info]


def test_who_breaks_off_amid_an_answer_leaves_nothing_behind(there: Served) -> None:
    there.get("/healthz")  # by a connection that stays
    known = WeakSet(each for each in gc.get_objects() if isinstance(each, BoundedHttp))
    for _ in range(20):
        with closing(connected(there)) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset instead of an end
            caller.sendall(BEGUN + b"content-length: 100\r\n\r\nx")
            time.sleep(0.001)  # so that some are amid their answer
    until = time.monotonic() + 20
    while left := [each for each in gc.get_objects() if isinstance(each, BoundedHttp) and each not in known]:
        assert time.monotonic() < until, f"{len(left)} connections are remembered"
        left.clear()
        there.get("/healthz")


def test_who_makes_another_call_amid_an_answer_and_goes_away_is_no_error_of_the_controller(
    there: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ALIVE_S", 0.01)
    assert there.service._server is not None
    at_work = there.service._server.server_state.tasks
    with closing(connected(there)) as caller:
        caller.sendall(EVENTS % there.admin.encode() + WHOLE)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    until(lambda: not at_work)
    assert not caplog.records


def test_who_sends_without_end_has_one_turn_of_many(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read, at_once = list[int](), BoundedHttp.data_received

    def data_received(self: BoundedHttp, data: bytes) -> None:
        read.append(len(data))
        at_once(self, data)

    monkeypatch.setattr(BoundedHttp, "data_received", data_received)
    head = BEGUN + b"authorization: Bearer %s\r\ntransfer-encoding: chunked\r\n\r\n" % there.admin.encode()
    with closing(connected(there)) as caller:
        caller.sendall(head + b"1\r\nx\r\n" * 200_000)
        until(lambda: sum(read) >= 1_200_000)
    assert max(read) <= 2 * serve.RECEIVED_BYTES  # Linux takes what it is told twice


@pytest.mark.parametrize("reads", [False, True])
def test_who_takes_nothing_of_the_answers_keeps_no_connection_and_who_is_slow_hears_them_all(
    tmp_path: Path, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "TAKEN_S", 1.0 if reads else 0.1)
    with served(tmp_path) as there:
        there.service._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        one = len(answer_to(there, LONG_ANSWER.replace(b"keep-alive", b"close"))) - len("connection: close\r\n")
        with closing(connected(there)) as caller:
            began = time.monotonic()
            caller.sendall(LONG_ANSWER * 40)
            until(lambda: is_connected(there, caller))
            if not reads:
                until(lambda: not is_connected(there, caller))
                return
            heard = 0
            while heard < 40 * one:
                heard += len(caller.recv(2**13))
                time.sleep(0.01)
            assert heard == 40 * one
            assert time.monotonic() - began > 2 * heads.TAKEN_S


@pytest.mark.parametrize("last", [b"keep-alive", b"close"])
def test_who_leaves_the_last_of_the_answers_keeps_no_connection_however_little_that_is(
    tmp_path: Path, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "KEEP_S", 0.2)
    with served(tmp_path) as there, ExitStack() as callers:
        there.service._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        monkeypatch.setattr(heads, "TAKEN_S", 0.3)
        for count in range(8):  # what the system does not take of one of these is less than what makes writing pause
            caller = callers.enter_context(closing(connected(there)))
            caller.sendall(LONG_ANSWER * count + LONG_ANSWER.replace(b"keep-alive", last))
            assert caller.recv(1, socket.MSG_PEEK)
        assert there.service._server is not None
        connections = there.service._server.server_state.connections
        until(lambda: not connections)


def is_connected(there: Served, caller: socket.socket) -> bool:
    assert there.service._server is not None
    return caller.getsockname() in [
        getattr(each, "client", None) for each in there.service._server.server_state.connections
    ]


def test_a_head_that_comes_bit_by_bit_in_time_is_read(there: Served) -> None:
    with closing(connected(there)) as caller:
        for byte in b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n":
            caller.sendall(bytes((byte,)))
        assert caller.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_may_be_longer_than_a_head_and_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as there:
        monkeypatch.setattr(heads, "HEAD_S", 0.2)
        body = b'{"name": "long", "env": {"A": "' + b"b" * (2 * MOST_HEAD_BYTES) + b'"}}'
        head = BEGUN + b"authorization: Bearer %s\r\n" % there.admin.encode()
        with closing(connected(there)) as caller:
            caller.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
            for part in (body[:10], body[10:]):
                time.sleep(0.3)
                caller.sendall(part)
            assert caller.recv(65536).startswith(b"HTTP/1.1 422")


def test_who_comes_when_all_connections_are_taken_is_told_so_and_those_that_are_there_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as there:
        assert there.get("/healthz")["ok"]  # a connection that stays
        monkeypatch.setattr(gate, "MOST_CONNECTIONS", 3)
        with closing(connected(there)), closing(connected(there)):
            assert answer_to(there).startswith(b"HTTP/1.1 503")
            assert answer_to(there, WHOLE).startswith(b"HTTP/1.1 503")
            with pytest.raises(NoController, match="all connections of the controller are taken"):
                Remote(there.service.url, there.admin, starting_s=0.0).get(Health, "/healthz")
            assert there.get("/v1/cluster")["jobs"] == []
        for _ in range(100):  # that they are gone is noticed soon
            if answer_to(there, WHOLE).startswith(b"HTTP/1.1 200"):
                return
            time.sleep(0.05)
        pytest.fail("nobody is let in again")
