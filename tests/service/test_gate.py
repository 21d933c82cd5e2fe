"""Connections count from their first moment on, with TLS too, so files are left for the journal and for processes."""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvloop

from rollmux.service import door, gate, heads, serve
from rollmux.service.door import Door
from rollmux.service.gate import Gate, most_connections
from tests.service.serving import Served, served
from tests.waiting import eventually, until

WHOLE = b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture
def there(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[Served]:
    with served(tmp_path / "controller", certificate=certificate) as found:
        yield found


def connected(there: Served) -> socket.socket:
    found = urlsplit(there.service.url)
    return socket.create_connection(("127.0.0.1", found.port or 0), timeout=10)


def secured(there: Served) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connected(there))


def is_gone(caller: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return caller.recv(1) == b""
    return True


def is_let_in(there: Served) -> bool:
    with suppress(OSError), closing(secured(there)) as caller:
        caller.sendall(WHOLE)
        return caller.recv(65536).startswith(b"HTTP/1.1 200")
    return False


def test_strangers_who_are_silent_instead_of_speaking_tls_take_no_more_files_than_others_and_not_for_long(
    there: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate, "complain", gate._Complaint())
    monkeypatch.setattr(gate, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(gate, "TOLD", 2)
    monkeypatch.setattr(heads, "HEAD_S", 60.0)
    with ExitStack() as silent:
        inside = [silent.enter_context(connected(there)) for _ in range(5)]
        for _ in range(3):
            assert is_gone(silent.enter_context(connected(there)))
        for each in inside:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
    until(lambda: is_let_in(there))
    assert [each.getMessage() for each in caplog.records] == [
        "no more than 3 connections at a time: let it have more open files"
    ]
    monkeypatch.setattr(heads, "HEAD_S", 0.2)
    with connected(there) as silent_one:
        assert is_gone(silent_one)


def test_who_comes_by_tls_when_all_connections_are_taken_is_told_so(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MOST_CONNECTIONS", 1)
    with closing(secured(there)) as first, closing(secured(there)) as second:
        assert second.recv(65536).startswith(b"HTTP/1.1 503")
        first.sendall(WHOLE)
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


def test_who_does_not_speak_tls_is_sent_away_and_others_are_answered(
    there: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(there) as stranger:
        stranger.sendall(WHOLE)
        while not is_gone(stranger):
            pass
    assert is_let_in(there)
    assert not caplog.records


def test_who_is_yet_to_speak_when_it_ends_is_sent_away_before_those_who_are_at_work_are_done(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "DRAIN_S", 60)
    monkeypatch.setattr(heads, "HEAD_S", 60.0)
    with served(tmp_path, certificate=certificate) as there, closing(secured(there)) as at_work:
        bearer = f"authorization: Bearer {there.admin}\r\n".encode()
        at_work.sendall(b"POST /v1/quote HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n" + bearer + b"\r\n")
        with connected(there) as silent:
            assert is_let_in(there)
            there._loop.call_soon_threadsafe(there.service.end)
            assert is_gone(silent)
            at_work.sendall(b"{}")
            assert at_work.recv(65536).startswith(b"HTTP/1.1 422")


class Full(socket.socket):
    """Its process has no file left for the first two callers."""

    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.asked <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_where_no_file_is_left_a_caller_waits_and_the_loop_is_not_kept_busy(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str] = []

    async def meet(guest: socket.socket) -> None:
        with guest:
            met.append("met")

    async def story(at: Full) -> None:
        opened = Gate(at, meet)
        with socket.create_connection(at.getsockname(), timeout=10):
            await eventually(lambda: at.asked == 1)
            for _ in range(100):
                await asyncio.sleep(0)
            assert at.asked == 1
            monkeypatch.setattr(gate, "AGAIN_S", 0.01)
            opened._open()
            await eventually(lambda: bool(met))
        assert at.asked == 3
        opened.close()
        await opened.wait_closed()

    monkeypatch.setattr(gate, "AGAIN_S", 60.0)
    with Full() as at, asyncio.Runner(loop_factory=new_loop) as runner:
        at.bind(("127.0.0.1", 0))
        runner.run(story(at))


def test_who_is_inside_already_counts_among_those_whom_somebody_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(gate, "TOLD", 1)
    inside, met = [2], list[str]()

    async def meet(guest: socket.socket) -> None:
        with guest:
            met.append("met")

    async def story(at: socket.socket) -> None:
        opened = Gate(at, meet, lambda: inside[0])
        with socket.create_connection(at.getsockname(), timeout=10) as caller:
            assert await asyncio.to_thread(is_gone, caller)
        assert not met
        inside[0] = 1
        with socket.create_connection(at.getsockname(), timeout=10):
            await eventually(lambda: bool(met))
        opened.close()
        await opened.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as at:
        asyncio.run(story(at))


def test_at_the_door_are_no_more_than_files_are_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(gate, "TOLD", 1)
    monkeypatch.setattr(door, "PATIENCE_S", 60.0)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        at, there = bound.getsockname(), Door(bound)
        with ExitStack() as callers:
            for _ in range(2):
                callers.enter_context(socket.create_connection(at, timeout=10))
            assert is_gone(callers.enter_context(socket.create_connection(at, timeout=10)))
        until(lambda: answered(f"http://127.0.0.1:{at[1]}/healthz"))  # once they are seen to be gone
        there.close()


def answered(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5, verify=False).status_code == 200
    return False


@pytest.mark.parametrize(("files", "most"), [(1024, 768), (resource.RLIM_INFINITY, 786432)])
def test_files_are_left_for_the_journal(files: int, most: int) -> None:
    assert most_connections(files) == most
