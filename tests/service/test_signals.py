"""`rollmux serve` is told to end, once or more, in the middle of everything: it goes, and the jobs go on (F15)."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import httpx
import pytest

from rollmux.service.local.process_tree import everything
from rollmux.service.serve import DRAIN_S
from tests.service.serving import job
from tests.service.test_disk import answering
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LONG = """
import time, rollmux
with rollmux.connect() as mux, mux.phase("rollout"):
    open("holding", "w").close()
    while True:
        time.sleep(0.05)
        open("alive", "w").write(str(time.monotonic()))
"""

PROGRAM = "from rollmux.cli import app; app()"
SLOW_END = """
import signal, time
from rollmux.cli import app
at_once = signal.signal
def slowly(number, handler):
    time.sleep(0.5 if handler is signal.SIG_IGN else 0.0)
    return at_once(number, handler)
signal.signal = slowly
app()
"""


@dataclass
class Controller:
    """A real one, in a process of its own."""

    process: "subprocess.Popen[bytes]"
    client: httpx.Client
    answers: list[Any] = field(default_factory=list)

    def ends_within(self, limit_s: float) -> None:
        assert self.process.wait(limit_s) == 0


@contextmanager
def controller(folder: Path, program: str = PROGRAM) -> Iterator[Controller]:
    command = [sys.executable, "-c", program, "serve", "--folder", str(folder)]
    command += ["--cluster", "examples/attach/cluster.yaml", "--port", "0", "--lease-s", "5", "--drain-s", "2"]
    (folder / "url").unlink(missing_ok=True)
    with (folder / "out").open("ab") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as process:
        try:
            until(lambda: (folder / "url").exists() and (folder / "url").read_text())
            headers = {"Authorization": f"Bearer {(folder / 'admin.token').read_text()}"}
            with httpx.Client(
                base_url=(folder / "url").read_text(), headers=headers, timeout=60, verify=False
            ) as client:
                answering(client)
                yield Controller(process, client)
        finally:
            process.kill()


def holds_and_parks(there: Controller, folder: Path) -> list[threading.Thread]:
    """A job that holds a lease, and another whose calls are parked behind it."""
    (folder / "long.py").write_text(LONG)
    long = job("long", command=[sys.executable, "long.py"], folder=str(folder))
    for described in (long, job("waits")):
        assert there.client.post("/v1/jobs", json=described).status_code == 200
    until((folder / "holding").exists)
    attached = there.client.post("/v1/jobs/waits/attach", json={"instance": "one", "wait_s": 20.0}).json()
    asks = {"attempt": attached["attempt"], "kind": "rollout", "iteration": 0, "wait_s": 30.0}
    listens = {"attempt": attached["attempt"], "seen": -1}
    listens["seen"] = there.client.post("/v1/jobs/waits/listen", json=listens).json()["version"]

    def park(verb: str, body: dict[str, Any]) -> None:
        there.answers.append(there.client.post(f"/v1/jobs/waits/{verb}", json=body).status_code)

    parked = [("ask", asks), ("listen", {**listens, "wait_s": 30.0})]
    threads = [threading.Thread(target=park, args=call) for call in parked]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert there.answers == []
    return threads


def stalls(there: Controller) -> socket.socket:
    """A call that never comes to its end."""
    url = there.client.base_url
    caller = socket.create_connection((url.host, url.port or 80))
    token = there.client.headers["authorization"]
    caller.sendall(
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 99\r\n\r\n{{".encode()
    )
    time.sleep(0.3)
    return caller


def children(pid: int) -> set[int]:
    return {process.pid for process in everything() if process.parent == pid}


def goes_on(folder: Path) -> bool:
    """Whether the job's own process still works; on a busy machine it may be a while until it does something."""
    before, give_up = (folder / "alive").read_text(), time.monotonic() + 10.0
    while (folder / "alive").read_text() == before and time.monotonic() < give_up:
        time.sleep(0.1)
    return (folder / "alive").read_text() != before


def test_one_more_signal_in_the_last_moment_is_not_what_it_ends_by(tmp_path: Path) -> None:
    with controller(tmp_path, SLOW_END) as there:
        assert there.client.post("/v1/jobs", json=job("a")).status_code == 200  # work for a thread beside the loop
        for _ in range(20):
            there.process.send_signal(SIGTERM)
            time.sleep(0.05)
        there.ends_within(DRAIN_S + 10.0)


@pytest.mark.parametrize(("number", "times"), [(SIGTERM, 1), (SIGINT, 1), (SIGINT, 2), (SIGTERM, 40)])
def test_a_controller_that_is_told_to_end_answers_what_is_parked_and_leaves_the_jobs_to_the_next(
    tmp_path: Path, number: signal.Signals, times: int
) -> None:
    with controller(tmp_path) as there:
        parked = holds_and_parks(there, tmp_path)
        keepers = children(there.process.pid)
        for _ in range(times):  # a process that has ended takes no harm
            there.process.send_signal(number)
            time.sleep(0.05)
        there.ends_within(DRAIN_S + 10.0)
        for thread in parked:
            thread.join(10)
            assert not thread.is_alive()
        if times == 1:
            assert there.answers == [200, 200]
        left = {process.pid for process in everything()} & keepers
        assert len(left) == 1  # the job's keeper, and nothing else that it had started
        assert goes_on(tmp_path)
    with controller(tmp_path) as there:
        # On a busy machine the controller before may have ended before it heard that all of the job is up.
        until(lambda: there.client.get("/v1/jobs/long").json()["state"] == "running")
        assert there.client.get("/v1/jobs/long").json()["attempt"] == 1
        assert goes_on(tmp_path)
        assert there.client.post("/v1/jobs/long/cancel").status_code == 200
        until(lambda: there.client.get("/v1/jobs/long").json()["state"] == "ended")
        until(lambda: not {process.pid for process in everything()} & keepers)
        there.process.send_signal(SIGTERM)
        there.ends_within(DRAIN_S + 10.0)


@pytest.mark.parametrize("second", [False, True], ids=["one signal", "two signals"])
def test_a_call_that_never_ends_is_waited_for_a_while_and_after_a_second_signal_not_at_all(
    tmp_path: Path, second: bool
) -> None:
    with controller(tmp_path) as there, stalls(there):
        began = time.monotonic()
        there.process.send_signal(SIGTERM)
        if second:
            time.sleep(0.5)
            there.process.send_signal(SIGINT)
        there.ends_within(DRAIN_S + 15.0)
        took_s = time.monotonic() - began
        assert took_s < DRAIN_S if second else took_s >= DRAIN_S - 0.5
