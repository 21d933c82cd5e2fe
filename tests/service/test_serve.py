"""`rollmux serve` as a process: when it is ready and when not, where jobs find it, and what it writes to its log."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli.serve import warn_if_moved
from rollmux.errors import InvariantViolated
from rollmux.mux import events as ev
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service import errands, serve
from rollmux.service.controller import Errand
from rollmux.service.door import Door
from rollmux.service.journal import Record, SqliteJournal
from rollmux.service.launcher import Attempt, OnExit
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.recovery import recover
from rollmux.service.serve import CantServe, Service, Wanted
from tests.ports import free_port
from tests.service.memory_journal import MemoryJournal
from tests.service.running import CLUSTER, clean_env, running
from tests.service.serving import PAIR, RULES, SMALL, Served, job, served
from tests.service.test_app import SmallDisk
from tests.waiting import until


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("means", ["cores: 0-1", "memory_gb: 2"])
def test_where_jobs_can_t_be_held_to_what_nodes_have_that_is_refused(tmp_path: Path, means: str) -> None:
    node = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 10}"
    pool = f"{{node: {node}, nodes: [{{{means}}}]}}"
    (tmp_path / "cluster.yaml").write_text(f"rollout: {pool}\ntrain: {pool.replace('0-1', '2-3')}\n")
    words = ["serve", "--cluster", str(tmp_path / "cluster.yaml"), "--folder", str(tmp_path / "c"), "--port", "0"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "which only Linux holds jobs to: leave them out, or serve on Linux" in result.output
    assert not (tmp_path / "c" / "url").exists()


def test_while_it_recovers_it_is_alive_and_not_ready_and_every_call_is_told_to_come_again(tmp_path: Path) -> None:
    go_on, port = threading.Event(), free_port()

    class Slow(SqliteJournal):
        def records(self, after: int = 0) -> Iterator[Record]:
            assert go_on.wait(20)
            return super().records(after)

    with served(tmp_path) as there:
        there.post("/v1/jobs", job("a"))
        admin = there.admin
    made: list[Service] = []
    wanted = Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES, port=port)
    starting = threading.Thread(target=lambda: made.append(Service(wanted, ProcessLauncher(tmp_path), Slow)))
    starting.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {admin}"}) as client:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                alive = client.get("/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        assert alive.json()["state"] == "starting"
        for refused in (client.get("/readyz"), client.post("/v1/jobs", json=job("b")), client.get("/v1/cluster")):
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert "starting" in refused.json()["error"]
        with socket.create_connection(("127.0.0.1", port)):  # who says nothing holds nobody up
            go_on.set()
            starting.join(10)
            there = Served(made[0])
        assert client.get("/readyz").json()["state"] == "ready"
        assert [view["job"] for view in client.get("/v1/cluster").json()["jobs"]] == ["a"]
    there.close()


def test_with_a_certificate_it_speaks_tls_from_its_start_on(certificate: tuple[Path, Path]) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(*certificate)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        door = Door(bound, own)
        url = f"https://127.0.0.1:{bound.getsockname()[1]}"
        assert httpx.get(f"{url}/healthz", verify=trust).json()["state"] == "starting"
        assert httpx.post(f"{url}/v1/jobs", json=job("a"), verify=trust).status_code == 503
        door.close()


def test_a_job_works_over_tls(tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    options = ("--certificate", str(certificate[0]), "--key", str(certificate[1]))
    with running(tmp_path / "c", *options) as there:
        assert there.url.startswith("https://127.0.0.1:")
        env = clean_env(ROLLMUX_URL=there.url, ROLLMUX_TOKEN=there.token)
        script = [sys.executable, str(CLUSTER.parent / "job.py"), "a"]
        done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.splitlines()[-1:] == ["a: step 4 is done"], done.stderr
        monkeypatch.delenv("SSL_CERT_FILE")
        result = CliRunner().invoke(app, ["status", "--folder", str(there.folder)], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert "set SSL_CERT_FILE" in result.output
        plainly = ["--url", there.url.replace("https:", "http:"), "--token", there.token]
        result = CliRunner().invoke(app, ["status", *plainly], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert "does its address begin with https?" in result.output


@pytest.mark.parametrize(
    ("words", "status"), [(["status"], 2), (["top", "--once"], 2), (["doctor", "--port", "0", "--json"], 1)]
)
def test_commands_name_the_file_that_should_say_whom_they_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    where = ["--url", "https://127.0.0.1:9", "--folder", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, *where], env={"COLUMNS": "300"})
    assert (result.exit_code, "SSL_CERT_FILE" in result.output) == (status, True), result.output


def test_a_certificate_that_is_not_there_or_of_another_key_is_said_by_name(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    for one, other in ((tmp_path / "none.pem", certificate[1]), (certificate[0], certificate[0])):
        wanted = Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES, certificate=one, key=other)
        with pytest.raises(CantServe, match=f"{one} and {other}"):
            Service(wanted, ProcessLauncher(tmp_path))


def test_a_controller_that_can_write_no_more_is_alive_and_not_ready(tmp_path: Path) -> None:
    with served(tmp_path, journal=SmallDisk) as there:
        assert there.get("/readyz", token="")["state"] == "ready"
        for number in range(200):
            if there.call("POST", "/v1/jobs", job(f"job-{number}", env={"TEXT": "x" * 500})).status_code != 200:
                break
        assert there.get("/healthz", token="")["state"] == "broken"
        answer = there.call("GET", "/readyz", token="")
        assert answer.status_code == 503
        assert "disk is full" in answer.json()["error"]


@pytest.mark.parametrize("at", [ev.JobSubmitted, ev.Heartbeats], ids=["in a call", "in a tick"])
def test_after_a_failure_of_the_machine_nothing_changes_and_the_next_controller_goes_on_from_before(
    tmp_path: Path, at: type[ev.Event], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: ev.Event) -> None:
        if isinstance(event, at):
            raise InvariantViolated("I1", "two are at work on a node")
        check(event)

    with served(tmp_path) as there:
        ask = {"attempt": there.attached("a"), "kind": "rollout", "iteration": 0, "wait_s": 5.0}
        epoch = there.post("/v1/jobs/a/ask", ask)["lease"]["epoch"]
        machine = there.service.controller.machine
        check, machine._check = machine._check_all, fail
        if at is ev.Heartbeats:
            there.post("/v1/jobs/a/listen", {"attempt": ask["attempt"], "epochs": [epoch]})
        else:
            assert there.call("POST", "/v1/jobs", job("b")).status_code == 503
        end = time.monotonic() + 10
        while there.call("GET", "/readyz", token="").status_code == 200 and time.monotonic() < end:
            time.sleep(0.01)
        machine._check = check
        refused = there.call("POST", "/v1/jobs", job("c"))
        assert refused.status_code == 503
        assert f"a bug (InvariantViolated at {at.__name__}): start it again" in refused.json()["error"]
        assert "two are at work on a node" in caplog.text  # and strangers hear nothing of it
        admin = there.admin
    with served(tmp_path) as there:
        assert [view["job"] for view in there.get("/v1/cluster", token=admin)["jobs"]] == ["a"]


@pytest.mark.parametrize("what", ["writing", "keeping time"])
def test_without_a_part_that_nothing_goes_on_without_nothing_changes(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*told: object) -> None:
        raise KeyError("of its own")

    with served(tmp_path) as there:
        if what == "writing":
            monkeypatch.setattr(there.service.host, "wrote", fail)
            assert there.call("POST", "/v1/jobs", job("b")).status_code == 503
        else:
            monkeypatch.setattr(there.service.controller, "tick", fail)
        end = time.monotonic() + 10
        while (ready := there.call("GET", "/readyz", token="")).status_code == 200 and time.monotonic() < end:
            time.sleep(0.01)
        assert f"a bug (KeyError in {what}): start it again" in ready.json()["error"]


def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES, port=taken.getsockname()[1])
        with pytest.raises(CantServe, match="choose another --port"):
            Service(wanted, ProcessLauncher(tmp_path))


def test_a_second_controller_on_a_folder_is_refused_wherever_its_journal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LOCK_S", 0.05)
    wanted = Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES)

    def second() -> Service:
        return Service(wanted, ProcessLauncher(tmp_path), lambda _: MemoryJournal())

    with served(tmp_path), pytest.raises(CantServe, match=f"another controller uses {tmp_path}: give --folder"):
        second()
    asyncio.run(ended_at_once(second()))


def test_a_journal_that_knows_nothing_of_jobs_at_work_is_not_theirs_and_they_are_left_alone(tmp_path: Path) -> None:
    """Without ROLLMUX_JOURNAL, say, the journal is a file, and new: all jobs were ended without a word."""
    wanted = Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES)
    another = MemoryJournal()
    recover(another, PAIR, RollmuxPolicy(), RULES)
    with served(tmp_path) as there:
        token = there.admin
        there.post("/v1/jobs", job("a", command=["sleep", "600"], folder=str(tmp_path)))
        until(lambda: there.get("/v1/jobs/a")["state"] == "running")
    with pytest.raises(CantServe, match=r"of which this journal knows nothing \(a\): start with theirs \(--journal"):
        Service(wanted, ProcessLauncher(tmp_path), lambda _: another)
    assert not list(another.records(0)), "it was told that its cluster is another one"
    with served(tmp_path) as there:
        found = there.get("/v1/jobs/a", token)
        assert (found["state"], found["attempt"]) == ("running", 1)
        there.post("/v1/jobs/a/cancel", token=token)
        until(lambda: there.get("/v1/jobs/a", token)["state"] == "ended")
    asyncio.run(ended_at_once(Service(wanted, ProcessLauncher(tmp_path), lambda _: MemoryJournal())))


def test_who_finds_the_folder_still_locked_by_a_controller_that_is_going_waits_for_a_moment(tmp_path: Path) -> None:
    going = (tmp_path / "lock").open("ab")
    fcntl.flock(going, fcntl.LOCK_EX)
    threading.Timer(0.1, going.close).start()
    asyncio.run(ended_at_once(Service(Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES), ProcessLauncher(tmp_path))))


async def ended_at_once(service: Service) -> None:
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0)
    service.end()
    await asyncio.wait_for(running, 5.0)


def test_log_lines_are_objects_with_time_level_message_and_the_fields_of_the_audit(tmp_path: Path) -> None:
    with running(tmp_path / "c", "--log-format", "json") as there:
        assert there.call("POST", "/v1/jobs", job("a")).status_code == 200
        assert there.call("POST", "/v1/jobs/a/cancel", token="wrong").status_code == 401
        assert there.end() == ""
        lines = [json.loads(line) for line in there.log.read_text().splitlines()]
    for line in lines:
        at = datetime.fromisoformat(line["time"])
        assert line["time"].endswith("Z")
        assert abs((datetime.now(UTC) - at).total_seconds()) < 120
        assert line["level"] in {"info", "warning"}
        assert line["message"]
    noted = [line["fields"] for line in lines if line["logger"] == "rollmux.audit"]
    assert noted == [
        {"who": "admin", "from": "127.0.0.1", "call": "POST /v1/jobs", "status": 200},
        {"who": "nobody", "from": "127.0.0.1", "call": "POST /v1/jobs/a/cancel", "status": 401},
    ]


def test_log_lines_for_people_have_the_same_fields(tmp_path: Path) -> None:
    with running(tmp_path / "c") as there:
        assert there.call("POST", "/v1/jobs", job("a")).status_code == 200
        assert there.url in there.end()
        assert 'rollmux.audit INFO call who="admin" from="127.0.0.1" call="POST /v1/jobs"' in there.log.read_text()


def test_who_speaks_no_http_fills_no_log(tmp_path: Path) -> None:
    with running(tmp_path / "c") as there:
        at = urlsplit(there.url)
        for _ in range(3):
            with socket.create_connection((at.hostname or "", at.port or 0), timeout=10) as stranger:
                stranger.sendall(b"\x16\x03\x01 a probe that speaks TLS\r\n\r\n")
                assert stranger.recv(1000).startswith(b"HTTP/1.1 400")
        there.end()
        assert "Invalid HTTP" not in there.log.read_text()


PRINTS_URL = """
import os, rollmux
print(os.environ["ROLLMUX_URL"], flush=True)
with rollmux.connect() as mux:
    for step in mux.steps(1):
        with mux.phase("rollout"): pass
        with mux.phase("train"): pass
"""


@pytest.mark.parametrize("advertised", ["", "http://localhost:{port}"])
def test_a_controller_at_all_addresses_gives_jobs_a_url_that_other_machines_know(
    tmp_path: Path, advertised: str
) -> None:
    port = free_port()
    given = advertised.format(port=port)
    options = ("--host", "0.0.0.0", *(("--advertise", given) if given else ()))
    with running(tmp_path / "c", *options, port=port) as there:
        assert there.url == f"http://127.0.0.1:{port}"
        (tmp_path / "job.py").write_text(PRINTS_URL)
        launched = {"iterations": 1, "command": [sys.executable, "job.py"], "folder": str(tmp_path)}
        assert there.call("POST", "/v1/jobs", job("a", **launched)).status_code == 200
        end = time.monotonic() + 30
        while (view := there.call("GET", "/v1/jobs/a").json())["state"] != "ended" and time.monotonic() < end:
            time.sleep(0.1)
        printed = there.call("GET", "/v1/jobs/a/log").json()["lines"]
        assert (view["reason"], printed) == ("finished", [given or f"http://{socket.gethostname()}:{port}"])


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("where", ["full", "closed", "not there"])
def test_a_controller_whose_words_nobody_can_read_serves_all_the_same(tmp_path: Path, name: str, where: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open("/dev/full", "wb") as full:
        streams: dict[str, Any] = {name: full if where == "full" else writes}
        if where == "not there":
            streams = {"preexec_fn": partial(os.close, 1 if name == "stdout" else 2)}
        with running(tmp_path, **streams) as there:
            assert there.call("POST", "/v1/jobs", job("a")).status_code == 200
            there.process.send_signal(signal.SIGTERM)
            assert there.process.wait(20.0) == 0
            if name == "stdout":
                told = [line for line in there.log.read_text().splitlines() if "can't be written" in line]
                assert len(told) == (where != "not there")
    os.close(writes)


def test_a_controller_ends_in_order_with_its_terminal_but_not_below_nohup(tmp_path: Path) -> None:
    below, not_below = (partial(signal.signal, signal.SIGHUP, how) for how in (signal.SIG_IGN, signal.SIG_DFL))
    with running(tmp_path / "nohup", preexec_fn=below) as there:
        there.process.send_signal(signal.SIGHUP)
        assert there.call("POST", "/v1/jobs", job("a")).status_code == 200
    with running(tmp_path / "plain", preexec_fn=not_below) as there:
        there.process.send_signal(signal.SIGHUP)
        assert there.process.wait(20.0) == 0


def test_jobs_that_look_for_the_controller_where_it_was_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = tmp_path / "before"
    url.write_text("http://127.0.0.1:1")

    def warned() -> str:
        caplog.clear()
        warn_if_moved(url, there.service)
        return " ".join(each.getMessage() for each in caplog.records if each.name == "rollmux.service")

    with served(tmp_path) as there:
        for number, said in enumerate(["", "a look for it at http://127.0.0.1:1,", "a, b look", "a, b, c look"]):
            assert warned().startswith(said) if said else not warned()
            there.attached("abcd"[number])
        assert warned().startswith("a, b, c and 1 more look")
        url.write_text(there.service.local_url)
        assert not warned()
        url.unlink()
        assert not warned()


@pytest.mark.parametrize("url", ["machine:8421", "http://[::1", "http://machine:port"])
def test_what_is_no_url_can_not_be_advertised(tmp_path: Path, url: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--advertise", url, "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "write it like" in result.output


@pytest.mark.parametrize("host", ["x" * 70 + "é", "203.0.113.9", "no.such.host.invalid", "2001:db8::9"])
def test_what_is_no_host_of_this_machine_can_not_be_listened_at(tmp_path: Path, host: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--host", host, "--folder", str(tmp_path), "--port", "0"])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", "").split())
    assert "can't listen at" in said
    assert "another --host" in said


def test_a_controller_whose_disk_is_full_at_its_start_says_so(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from rollmux.cli import app
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
app()
"""
    words = [sys.executable, "-c", script, "serve", "--folder", str(tmp_path), "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done
    assert "disk I/O error" in done.stderr


def test_a_controller_that_is_told_to_end_while_it_starts_does(tmp_path: Path) -> None:
    class Silent(ProcessLauncher):
        async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
            begun.set()
            await asyncio.sleep(60)
            raise AssertionError("it was told to end")

    begun = threading.Event()
    service = Service(Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES), Silent(tmp_path))

    async def story() -> None:
        running = asyncio.create_task(service.run())
        await asyncio.to_thread(begun.wait, 10.0)
        service.end()
        await asyncio.wait_for(running, 5.0)

    asyncio.run(story())
    with served(tmp_path) as there:
        assert there.get("/healthz", token="")["state"] == "ready"


def test_an_old_attempt_that_does_not_end_holds_up_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(ProcessLauncher):
        async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
            return {*await super().begin(on_exit), ("gone", 1)}

        async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
            stopped.append((job_id, attempt))
            await asyncio.sleep(60)

    stopped = list[tuple[str, int]]()
    monkeypatch.setattr(errands, "BEGIN_S", 0.05)
    there = Served(Service(Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES), Stuck(tmp_path)))
    assert there.get("/readyz", token="")["state"] == "ready"
    assert stopped == [("gone", 1)]
    there.client.timeout = 3.0
    there.post("/v1/jobs", job("gone"))  # nor a new job of its name
    there.close()


def test_a_script_that_has_done_its_work_before_its_start_was_heard_is_not_run_again(tmp_path: Path) -> None:
    class Slow(ProcessLauncher):
        async def start(self, attempt: Attempt) -> None:
            await super().start(attempt)
            await asyncio.sleep(60)

    there = Served(Service(Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES), Slow(tmp_path)))
    there.post("/v1/jobs", job("a", folder=str(tmp_path), command=["sh", "-c", "echo done >> said"]))
    for _ in range(200):
        if there.get("/v1/jobs/a")["state"] == "ended":
            break
        time.sleep(0.05)
    assert there.get("/v1/jobs/a")["state"] == "ended"
    assert (tmp_path / "said").read_text() == "done\n"
    there.close()


def test_a_controller_that_is_told_to_end_in_the_moment_in_which_all_has_started_does(tmp_path: Path) -> None:
    service = Service(Wanted(SMALL, RollmuxPolicy(), tmp_path, RULES), ProcessLauncher(tmp_path))
    start = service.host.start

    async def started(again: list[Errand]) -> None:
        await start(again)
        asyncio.get_running_loop().call_soon(service.end)

    async def story() -> None:
        service.host.start = started  # type: ignore[method-assign]
        await asyncio.wait_for(service.run(), 5.0)

    asyncio.run(story())


def test_whoever_comes_while_the_door_closes_is_answered_or_sent_away() -> None:
    for _ in range(10):
        with socket.socket() as at:
            at.bind(("127.0.0.1", 0))
            door = Door(at)
            guests = [socket.create_connection(at.getsockname(), timeout=10) for _ in range(20)]
            for guest in guests:
                guest.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
            door.close()
        for guest in guests:  # those whom nobody has let in are sent away by the end of the socket
            with guest, suppress(ConnectionResetError):
                assert guest.recv(100)[9:12] in (b"", b"503")
