"""The way of calls, where what `test_script.py` stands on is not enough: real connections, and when they end."""

import socket
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any

import pytest

from rollmux.client.wire import Wire
from rollmux.protocol.messages import Done


class Fine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        pass


def test_a_connection_that_is_just_being_made_when_all_is_closed_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, closed = Event(), Event()
    made: list[socket.socket] = []
    connect = socket.create_connection

    def slowly(*args: Any, **more: Any) -> socket.socket:
        connecting.set()
        assert closed.wait(20)
        made.append(connect(*args, **more))
        return made[0]

    monkeypatch.setattr(socket, "create_connection", slowly)
    with ThreadingHTTPServer(("127.0.0.1", 0), Fine) as server, ThreadPoolExecutor(2) as threads:
        threads.submit(server.serve_forever)
        wire = Wire(f"http://127.0.0.1:{server.server_address[1]}", "", patience_s=20.0)
        answer = threads.submit(wire.post, "/v1/jobs", {}, Done)
        assert connecting.wait(20)
        wire.close()
        closed.set()
        assert answer.result(20) == Done()
        server.shutdown()
    assert made[0].fileno() == -1
