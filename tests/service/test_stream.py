"""The stream of what changes: whole, in order, only what is durable, only for those who may hear it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx
import pytest

from rollmux.service import app, stream
from rollmux.service.history import history
from rollmux.service.journal import Batch, SqliteJournal
from rollmux.service.tokens import Role
from tests.service.serving import Served, job, served
from tests.waiting import until

Event = tuple[str, int, Any]  # its kind, its id, its data


class Reader:
    """Reads a stream in a thread of its own."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.events: Queue[Event | None] = Queue()
        self.comments: list[str] = []
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterator[str]) -> None:
        found: dict[str, str] = {}
        try:
            for line in lines:
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.comments.append(line)
                elif line:
                    found[name] = value
                elif found:
                    self.events.put((found.get("event", "message"), int(found["id"]), json.loads(found["data"])))
                    found = {}
        except (httpx.HTTPError, httpx.StreamError):
            pass
        self.events.put(None)

    def next(self, within_s: float = 5.0) -> Event | None:
        return self.events.get(timeout=within_s)

    def until(self, what: str) -> list[Event]:
        """All events up to the one that tells of this."""
        found: list[Event] = []
        while not found or what not in json.dumps(found[-1][2]):
            event = self.next()
            assert event is not None, f"the stream ended before {what}, after {found}"
            found.append(event)
        return found


@contextmanager
def follow(there: Served, token: str | None = None, after: int | None = None) -> Iterator[Reader]:
    headers = {"Authorization": f"Bearer {token or there.admin}"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    with (
        httpx.Client(base_url=there.service.url, timeout=20, verify=False) as client,
        client.stream("GET", "/v1/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        try:
            yield Reader(answer.iter_lines())
        finally:  # wakes the thread that reads
            with suppress(OSError):
                answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def one_phase(there: Served, name: str) -> None:
    there.post("/v1/jobs", job(name))
    attempt = there.post(f"/v1/jobs/{name}/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
    ask = {"attempt": attempt, "kind": "rollout", "iteration": 0, "wait_s": 5.0}
    epoch = there.post(f"/v1/jobs/{name}/ask", ask)["lease"]["epoch"]
    there.post(f"/v1/jobs/{name}/report", {"said": "started", "epoch": epoch})
    there.post(f"/v1/jobs/{name}/report", {"said": "finished", "epoch": epoch})


def changes(events: list[Event]) -> list[dict[str, Any]]:
    return [change for _, _, data in events for change in data["changes"]]


def test_all_that_changes_is_told_in_order(tmp_path: Path) -> None:
    with served(tmp_path) as there, follow(there) as reader:
        kind, first, data = reader.next() or ("", 0, None)
        assert (kind, data) == ("reset", {"seq": first})
        one_phase(there, "mine")
        events = reader.until('"finished"')
        assert [event[1] for event in events] == sorted({event[1] for event in events})
        told = changes(events)
        of_job = [(change["what"], change.get("state", "")) for change in told if change.get("job") == "mine"]
        states = [("submitted", ""), ("job", "starting"), ("job", "running")]
        assert of_job == [*states, ("granted", ""), ("started", ""), ("ended", "finished")]
        granted = next(change for change in told if change["what"] == "granted")
        assert granted["nodes"] == ["rollout-0"]
        nodes = {name for change in told if change["what"] == "node" for name in change["nodes"]}
        assert nodes == {"rollout-0", "train-0"}


def test_a_reader_goes_on_where_it_was_without_a_gap(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        with follow(there) as whole:
            _, first, _ = whole.next() or ("", 0, None)
            one_phase(there, "mine")
            all_of_it = whole.until('"finished"')
        for _, seq, _ in all_of_it[:-1]:
            with follow(there, after=seq) as again:
                assert again.until('"finished"') == [event for event in all_of_it if event[1] > seq]
        with follow(there, after=first) as again:
            assert again.until('"finished"') == all_of_it


@pytest.mark.parametrize("after", [10**9, 10**15])
def test_who_was_elsewhere_is_told_to_look_anew(tmp_path: Path, after: int) -> None:
    with served(tmp_path) as there:
        one_phase(there, "mine")
        with follow(there, after=after) as reader:
            assert reader.next() == ("reset", there.get("/healthz")["seq"], {"seq": there.get("/healthz")["seq"]})


def test_after_a_restart_readers_go_on_or_are_told_to_look_anew(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        admin = there.admin
        one_phase(there, "mine")
        seq = there.get("/healthz")["seq"]
    with served(tmp_path) as there:
        with follow(there, admin, after=seq) as reader:
            there.call("POST", "/v1/jobs/mine/cancel", token=admin)
            assert changes(reader.until("stopping"))[0]["job"] == "mine"
        with follow(there, admin, after=seq - 1) as reader:
            assert (reader.next() or ("",))[0] == "reset"


def test_others_names_are_not_told(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        bob = there.service.tokens.create("bob", Role.TENANT, "bob")
        alice = there.service.tokens.create("alice", Role.TENANT, "alice")
        with follow(there, bob) as reader:
            reader.next()
            there.post("/v1/jobs", job("of-alice"), token=alice)
            one_phase(there, "of-admin")
            there.post("/v1/jobs", job("of-bob"), token=bob)
            events = reader.until("of-bob")
        assert "of-a" not in json.dumps(events)
        assert {change.get("job") for change in changes(events)} == {None, "another tenant's job", "of-bob"}


class Gate(SqliteJournal):
    """A journal whose writes wait while the gate is shut."""

    open = threading.Event()

    def append(self, batch: Batch) -> None:
        assert self.open.wait(20)
        super().append(batch)


def test_nothing_is_told_before_it_is_durable(tmp_path: Path) -> None:
    Gate.open.set()
    with served(tmp_path, journal=Gate) as there, follow(there) as reader:
        reader.next()
        Gate.open.clear()
        submitting = threading.Thread(target=there.post, args=("/v1/jobs", job("mine")))
        submitting.start()
        try:
            with pytest.raises(Empty):
                reader.next(within_s=0.7)
        finally:
            Gate.open.set()
        submitting.join(10)
        assert changes(reader.until("mine"))[0] == {"what": "submitted", "job": "mine"}


def test_records_that_are_no_news_keep_no_stream_busy(tmp_path: Path) -> None:
    with served(tmp_path) as there, follow(there) as reader:
        reader.next()
        there.post("/v1/jobs", job("mine"))
        attempt = there.post("/v1/jobs/mine/attach", {"instance": "one", "wait_s": 5.0})["attempt"]
        ask = {"attempt": attempt, "kind": "rollout", "iteration": 0, "wait_s": 5.0}
        epoch = there.post("/v1/jobs/mine/ask", ask)["lease"]["epoch"]
        reader.until("granted")
        began, seq = time.process_time(), there.get("/healthz")["seq"]
        for _ in range(5):
            there.post("/v1/jobs/mine/listen", {"attempt": attempt, "epochs": [epoch]})
            time.sleep(0.1)
        assert seq < there.get("/healthz")["seq"] <= seq + 5
        assert time.process_time() - began < 0.3
        with pytest.raises(Empty):
            reader.next(within_s=0.1)


def test_the_stream_ends_with_the_controller(tmp_path: Path) -> None:
    with served(tmp_path) as there, follow(there) as reader:
        reader.next()
        began = time.monotonic()
        there.close()
        assert reader.next() is None
        assert time.monotonic() - began < 4.0
        there.close = lambda: None  # type: ignore[method-assign]


def test_a_token_that_is_revoked_ends_its_stream_and_a_silent_stream_shows_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ALIVE_S", 0.2)
    with served(tmp_path) as there:
        bob = there.service.tokens.create("bob", Role.TENANT, "bob")
        with follow(there, bob) as reader:
            reader.next()
            with pytest.raises(Empty):
                reader.next(within_s=1.0)
            assert ": still here" in reader.comments
            there.service.tokens.revoke("bob")
            assert reader.next() is None


def test_a_token_that_is_revoked_ends_its_stream_while_much_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ALIVE_S", 0.3)
    with served(tmp_path) as there:
        bob = there.service.tokens.create("bob", Role.TENANT, "bob")
        with follow(there, bob) as reader:
            reader.next()
            for number in range(20):
                there.post(f"/v1/nodes/rollout-1/{'undrain' if number % 2 else 'drain'}")
                if number == 5:
                    there.service.tokens.revoke("bob")
                time.sleep(0.05)
            there.post("/v1/nodes/train-1/drain")
            heard = list(iter(reader.next, None))
        assert "rollout-1" in json.dumps(heard)
        assert "train-1" not in json.dumps(heard[1:])


@pytest.mark.parametrize("limit", ["MOST_STREAMS_EACH", "MOST_STREAMS"])
def test_streams_are_counted_and_given_back(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, limit, 1)
    with served(tmp_path) as there:
        with follow(there) as reader:
            reader.next()
            with pytest.raises(AssertionError, match="too many streams"), follow(there):
                pass
        until(lambda: not _is_full(there), 5.0, lambda: "a reader that left still counts")


def _is_full(there: Served) -> bool:
    try:
        with follow(there):
            return False
    except AssertionError:
        return True


def test_a_reader_that_takes_nothing_is_cut_off_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "SLOW_S", 0.5)
    monkeypatch.setattr(history, "MOST_NEWS", 50)
    with served(tmp_path) as there, socket.socket() as deaf:
        there.service._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", int(there.service.url.rpartition(":")[2])))
        head = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {there.admin}\r\n\r\n"
        deaf.sendall(head.encode())
        until, number = time.monotonic() + 60.0, 0
        while "too slow" not in caplog.text and "without completing" not in caplog.text:
            there.post("/v1/jobs", job(f"{number}-{'x' * 100}"))
            there.post(f"/v1/jobs/{number}-{'x' * 100}/cancel")
            number += 1
            time.sleep(0.01)  # not more calls than one may make
            assert time.monotonic() < until, "it was never cut off"
