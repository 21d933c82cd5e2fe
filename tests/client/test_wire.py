"""The way of calls, where what `test_script.py` stands on is not enough: real connections, and when they end."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from time import sleep
from typing import Any

import httpx
import pytest

from rollmux.client import CallRefused, Unreachable
from rollmux.client.wire import ANSWER_PART, Wire
from rollmux.errors import RollmuxError
from rollmux.protocol.messages import Done
from tests.client.world import World, job_data, soon


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


Answered = Callable[[], httpx.Response]
ELSEWHERE: dict[str, Answered] = {
    "a proxy that knows nobody there": lambda: httpx.Response(404, text="404 page not found"),
    "a proxy that lets nobody through": lambda: httpx.Response(403, text="<html>forbidden</html>"),
    "a connection that was too slow": lambda: httpx.Response(408),
    "what says that it is packed and is not": lambda: httpx.Response(
        502, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"<html>bad gateway")
    ),
}


@pytest.mark.parametrize("answer", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_others_say_while_the_controller_is_away_ends_no_job(answer: Answered) -> None:
    world, answers = World(lease_s=0.5), list[Answered]()

    def way(request: httpx.Request) -> httpx.Response:
        return answers.pop()() if answers else world.handle(request)

    with world.connect(job_data("a"), transport=httpx.MockTransport(way)) as mux:
        with mux.phase("rollout"):
            answers += [answer, answer]
            soon(lambda: not answers)
            sleep(0.6)
        answers.append(answer)
        with mux.phase("train"):
            pass
        assert (mux.stop_reason, mux.synced) == ("", 0)


def test_an_address_at_which_another_server_answers_is_told_at_once() -> None:
    wire = Wire("http://elsewhere", "", 20.0, httpx.MockTransport(lambda _: httpx.Response(404, text="no such page")))
    with pytest.raises(CallRefused, match="status 404: no such page"):
        wire.post("/v1/jobs", {}, Done)


def test_where_a_proxy_sends_on_to_is_told() -> None:
    headers = {"location": "https://elsewhere/rollmux/v1/jobs"}
    wire = Wire("http://elsewhere", "", 20.0, httpx.MockTransport(lambda _: httpx.Response(301, headers=headers)))
    with pytest.raises(CallRefused, match=r"^status 301, which sends on to https://elsewhere/rollmux: give that"):
        wire.post("/v1/jobs", {}, Done)


def test_a_call_that_a_proxy_gives_up_is_parked_for_less_when_it_comes_again() -> None:
    def impatient(request: httpx.Request) -> httpx.Response:
        waits = json.loads(request.content)["wait_s"] <= 3.0
        return httpx.Response(200, json={}) if waits else httpx.Response(504)

    wire = Wire("http://controller", "", 2.0, httpx.MockTransport(impatient))
    assert wire.post("/v1/jobs/a/ask", {"wait_s": 10.0}, Done, wait_s=10.0) == Done()


def test_a_call_without_an_answer_is_given_up_while_the_lease_holds() -> None:
    """So that it can be repeated in time: a sign of life counts from when it was sent."""
    limits = list[float]()

    def answer(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={})

    wire = Wire("http://controller", "", 2.0, httpx.MockTransport(answer))
    for lease_s in (25.0, 10.0):
        wire.hurry(lease_s)
        wire.post("/v1/jobs/a/listen", {"wait_s": 1.0}, Done, wait_s=1.0)
    assert limits == [1.0 + ANSWER_PART * 25.0, 1.0 + ANSWER_PART * 10.0]


def test_of_a_certificate_that_is_not_trusted_what_helps_is_told() -> None:
    def untrusted(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")

    with pytest.raises(Unreachable, match="self-signed certificate; set SSL_CERT_FILE to a file"):
        Wire("https://controller", "", 0.0, httpx.MockTransport(untrusted)).post("/v1/jobs", {}, Done)


def test_nothing_is_said_of_a_controller_that_answers_after_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([httpx.Response(503), httpx.Response(200, json={})])
    wire = Wire("http://controller", "", 20.0, httpx.MockTransport(lambda _: next(answers)))
    assert wire.post("/v1/jobs", {}, Done) == Done()
    assert not caplog.records


def test_who_waits_and_who_finds_nobody_asks_now_and_then() -> None:
    world = World()
    with (
        world.connect(job_data("a")) as mux,
        world.connect(job_data("b"), wait_s=0.0, patience_s=0.01) as other,
        mux.phase("rollout"),
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(other.phase("rollout").__enter__)
        sleep(0.5)
        assert len([verb for job, verb, _ in world.heard if (job, verb) == ("b", "ask")]) <= 10
        world.cancel("b")
        with pytest.raises(RollmuxError):
            waiting.result(5.0)
    calls = list[str]()
    world = World()
    with world.connect(job_data("a"), patience_s=0.01) as mux:

        def lost(verb: str, message: Any) -> str:
            calls.append(verb)
            return "lost"

        world.fate = lost
        sleep(0.5)
        world.fate = lambda verb, message: ""
    assert len(calls) <= 20
