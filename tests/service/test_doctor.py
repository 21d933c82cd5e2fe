"""`rollmux doctor` finds what is wrong, says what helps, and fails only for what can't work."""

import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux import __version__, system
from rollmux.cli import app
from rollmux.service.checkup import machine
from rollmux.service.checkup.finding import Level
from rollmux.service.checkup.folder import kind_of, rights
from rollmux.service.checkup.machine import gpus, open_files, shared_memory
from rollmux.service.journal import JournalAway
from rollmux.service.journal.place import opened
from tests.ports import free_port
from tests.service.postgres_server import Server
from tests.service.running import running
from tests.service.serving import served
from tests.service.test_app import SmallDisk

Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLMUX_URL", "ROLLMUX_TOKEN", "ROLLMUX_FOLDER", "ROLLMUX_PORT", "ROLLMUX_JOURNAL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as `rollmux serve` makes it."""
    made = tmp_path / "place"
    made.mkdir(mode=0o700)
    return made


def looked(*words: str) -> tuple[int, Findings]:
    """The exit status, and what was found."""
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    assert result.exit_code in (0, 1), result.output
    data = json.loads(result.output)
    found: Findings = {each["check"]: each for each in data["findings"]}
    assert data["ok"] is (result.exit_code == 0)
    assert data["ok"] is all(each["level"] != "fail" for each in found.values())
    assert all(bool(each["advice"]) is (each["level"] != "ok") for each in found.values())
    return result.exit_code, found


@contextmanager
def answering(health: Mapping[str, Any]) -> Iterator[str]:
    """A server that answers every call with this, as a controller of another version might."""
    with saying(200, json.dumps({**health, "jobs": [], "nodes": []}).encode()) as url:
        yield url


@contextmanager
def saying(status: int, body: bytes, **headers: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def health(**more: Any) -> dict[str, Any]:
    return {"ok": True, "version": __version__, "seq": 7, "unix_s": time.time(), **more}


def test_with_a_controller_that_works_nothing_fails(tmp_path: Path) -> None:
    with running(tmp_path / "c") as there:
        status, found = looked("--folder", str(there.folder))
    assert status == 0, found
    fine = ("versions", "clock", "folder", "fsync", "admin.token", "controller", "same version", "same time", "token")
    assert {found[name]["level"] for name in fine} == {"ok"}
    assert "is ready" in found["controller"]["found"]
    assert "port" not in found, "the controller has it"


def test_before_the_first_start_nothing_fails(tmp_path: Path) -> None:
    status, found = looked("--folder", str(tmp_path / "not" / "yet"), "--port", str(free_port()))
    assert status == 0, found
    assert "can be made" in found["folder"]["found"]
    assert "none is known" in found["controller"]["found"]
    assert "is free" in found["port"]["found"]


@pytest.mark.usefixtures("elsewhere")
def test_on_another_system_nothing_fails_and_nothing_of_linux_is_advised(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, found = looked("--folder", str(place), "--port", str(taken.getsockname()[1]))
    assert [name for name, each in found.items() if each["level"] == "fail"] == ["port"]
    assert "lsof" in found["port"]["advice"]
    assert found["versions"]["level"] == "warn"
    assert found["processes"]["level"] == "ok"
    assert "/dev/shm" not in found


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_is_open_to_others_fails(place: Path, mode: int) -> None:
    place.chmod(mode)
    status, found = looked("--folder", str(place), "--port", "0")
    assert status == 1
    assert f"{mode:04o}" in found["folder"]["found"]
    assert found["folder"]["advice"] == f"chmod 700 {place}"


@pytest.mark.parametrize("name", ["admin.token", "secret", "tokens.json"])
def test_a_token_that_others_may_read_fails(place: Path, name: str) -> None:
    (place / name).touch(0o644)
    (place / name).chmod(0o644)
    status, found = looked("--folder", str(place), "--port", "0")
    assert status == 1
    assert f"chmod 600 {place / name}" in found[name]["advice"]


def test_of_a_folder_that_is_mine_and_can_t_be_written_to_no_other_owner_is_advised(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system is mounted to be read, say."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = rights(place, place)
    assert (found.level, found.advice) == (Level.FAIL, "give another --folder")


def test_who_can_t_make_the_folder_is_not_advised_to_take_the_whole_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chown -R 1000 /` was the advice for a folder below the root."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = rights(tmp_path / "not" / "yet", tmp_path)
    assert (found.level, "chown" in found.advice) == (Level.FAIL, False)
    assert f"install -d -m 700 -o {os.getuid()} {tmp_path}/not/yet" in found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(("user", "name"), [(65534, "nobody"), (54321, "user 54321")])
def test_root_is_not_advised_to_take_the_folder_from_the_user_of_a_controller(
    place: Path, user: int, name: str
) -> None:
    os.chown(place, user, user)
    status, found = looked("--folder", str(place), "--port", "0")
    assert (status, found["folder"]["found"]) == (1, f"{place} is {name}'s")
    assert found["folder"]["advice"] == f"run this, and the controller, as {name}; or give another --folder"


def test_a_file_where_the_folder_should_be_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, found = looked("--folder", str(tmp_path / "file"), "--port", "0")
    assert (status, found["folder"]["level"]) == (1, "fail")


def test_a_controller_that_does_not_answer_fails(place: Path) -> None:
    (place / "url").write_text(f"http://127.0.0.1:{free_port()}")
    status, found = looked("--folder", str(place), "--port", "0")
    assert status == 1
    assert "rollmux serve" in found["controller"]["advice"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "http://127.0.0.1:1", "--token", "two\nlines"), "the token is none"),
        (("--url", "localhost:8421"), "write it like http://machine:8421"),
    ],
)
def test_a_controller_that_nobody_could_call_so_is_not_taken_for_none(
    place: Path, words: tuple[str, ...], said: str
) -> None:
    status, found = looked("--folder", str(place), "--port", "0", *words)
    assert (status, found["controller"]["level"]) == (1, "fail")
    assert said in found["controller"]["found"]


def test_a_port_that_something_else_has_fails(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, found = looked("--folder", str(place), "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "ss -ltnp" in found["port"]["advice"]


@pytest.mark.parametrize(("version", "level"), [(__version__, "ok"), ("0.1.99", "warn"), ("9.0.0", "fail")])
def test_another_version_warns_and_a_very_different_one_fails(place: Path, version: str, level: str) -> None:
    with answering(health(version=version)) as url:
        status, found = looked("--folder", str(place), "--url", url)
    assert found["same version"]["level"] == level
    assert status == (level == "fail")
    assert level == "ok" or found["same version"]["advice"].startswith(f"install RollMux {version}, here")


@pytest.mark.parametrize(("ahead_s", "level"), [(0.0, "ok"), (60.0, "warn"), (-60.0, "warn"), (4000.0, "fail")])
def test_clocks_that_differ_are_told(place: Path, ahead_s: float, level: str) -> None:
    with answering(health(unix_s=time.time() + ahead_s)) as url:
        _, found = looked("--folder", str(place), "--url", url)
    assert found["same time"]["level"] == level, found["same time"]


def test_what_is_no_controller_fails(place: Path) -> None:
    with answering({"hello": "world"}) as url:
        status, found = looked("--folder", str(place), "--url", url)
    assert status == 1
    assert "is no RollMux controller" in found["controller"]["found"]


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (404, b'{"detail": "Not Found"}', "404"),
        (401, b"[]", "401"),
        (403, b'{"error": "not for you"}', "403: not for you"),
    ],
)
def test_what_refuses_in_other_words_than_a_controller_is_none(
    place: Path, status: int, said: bytes, told: str
) -> None:
    with saying(status, said) as url:
        _, found = looked("--folder", str(place), "--url", url)
    assert found["controller"]["found"] == f"{url} is no RollMux controller: it answered {told}"


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize(
    "said", [b"<html>Bad Gateway</html>", b'{"kind": "Status", "code": 503}', b'{"code": 503, "error": "Unavailable"}']
)
def test_a_proxy_whose_controller_is_away_is_told_as_such(place: Path, status: int, said: bytes) -> None:
    with saying(status, said) as url:
        _, found = looked("--folder", str(place), "--url", url)
    assert found["controller"]["found"].startswith(f"no controller answers behind {url} (status {status}")


def test_of_a_proxy_that_speaks_tls_alone_the_address_is_told(place: Path) -> None:
    with saying(301, b"<html>Moved</html>", location="https://elsewhere/healthz") as url:
        _, found = looked("--folder", str(place), "--url", url)
    assert found["controller"]["found"].endswith("answered 301, which sends on to https://elsewhere: give that address")


def test_a_wrong_token_fails(tmp_path: Path, place: Path) -> None:
    with served(tmp_path / "c") as there:
        status, found = looked("--folder", str(place), "--url", there.service.url, "--token", "wrong")
        assert (status, found["token"]["level"]) == (1, "fail")
        status, found = looked("--folder", str(place), "--url", there.service.url)
        assert (status, found["token"]["level"]) == (0, "warn")


def test_of_a_controller_that_is_elsewhere_no_folder_is_looked_at_here_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (here := tmp_path / ".rollmux").mkdir(mode=0o755)
    with answering({"state": "ready", "version": __version__, "seq": 7, "unix_s": time.time()}) as url:
        monkeypatch.setenv("ROLLMUX_URL", url)
        _, found = looked()
        assert found["folder"]["level"] == "ok"
        assert found["folder"]["found"].startswith(f"not looked at: {url} is not the controller of {here}")
        assert "disk" not in found
        (here / "url").write_text(url)
        assert "open to others" in looked()[1]["folder"]["found"]
        (here / "url").unlink()
        assert "open to others" in looked("--folder", str(here))[1]["folder"]["found"]


def test_a_controller_that_can_write_no_more_fails(tmp_path: Path) -> None:
    with served(tmp_path, journal=SmallDisk) as there:
        for number in range(200):
            job = {"name": f"job-{number}", "slo": 2, "env": {"TEXT": "x" * 500}}
            phase = {"nodes": 1, "duration_s": 1}
            if there.call("POST", "/v1/jobs", {**job, "rollout": phase, "train": phase}).status_code != 200:
                break
        status, found = looked("--folder", str(tmp_path), "--url", there.service.url, "--token", there.admin)
    assert status == 1
    assert "disk is full" in found["controller"]["found"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://127.0.0.1:1/base", "refused"),
        ("postgresql://db..example/base", "journal rollmux at postgresql://db..example/base: "),
        ("mysql://host/base", "begins with postgresql://"),
    ],
)
def test_a_journal_whose_server_is_away_fails(
    place: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("ROLLMUX_JOURNAL", url)
    status, found = looked("--folder", str(place), "--port", str(free_port()))
    assert (status, found["journal"]["level"]) == (1, "fail")
    assert said in found["journal"]["found"]


def test_a_journal_on_a_server_is_looked_for_and_not_begun(place: Path, server: Server, tmp_path: Path) -> None:
    url = server.url("doctor")
    for said in ("answers, and has none yet", "answers, and has none yet", "answers, and has it"):
        if said.endswith("it"):
            opened(url)(tmp_path).close()
        status, found = looked("--folder", str(place), "--port", str(free_port()), "--journal", url)
        assert (status, found["journal"]["found"]) == (0, f"its server {said}")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("default_transaction_read_only=on", "session is read-only"),  # as a standby says too
        ("role=pg_read_all_data", "permission denied"),
    ],
)
def test_a_server_on_which_no_controller_could_begin_fails(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch, settings: str, said: str, begun: bool
) -> None:
    url = server.url()
    if begun:
        opened(url)(place).close()
    monkeypatch.setenv("PGOPTIONS", f"-c {settings}")
    status, found = looked("--folder", str(place), "--port", str(free_port()), "--journal", url)
    assert (status, found["journal"]["level"]) == (1, "fail")
    assert said in found["journal"]["found"]
    with pytest.raises(JournalAway, match=said):
        opened(url)(place)


def test_people_see_a_line_for_each_check_and_what_to_do(place: Path) -> None:
    place.chmod(0o755)
    result = CliRunner().invoke(app, ["doctor", "--folder", str(place), "--port", "0"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "fail folder" in text
    assert f"→ chmod 700 {place}" in text
    assert "1 fail and" in text


def test_few_open_files_and_little_shared_memory_are_told_with_what_helps(tmp_path: Path) -> None:
    assert open_files(65536, 65536).level is Level.OK
    few = open_files(1024, 524288)
    assert (few.level, few.advice) == (Level.WARN, "ulimit -n 4000, before `rollmux serve`")
    assert "hard limit" in open_files(1024, 1024).advice
    assert shared_memory(tmp_path / "none").level is Level.WARN


@pytest.mark.parametrize(
    ("script", "level", "found"),
    [
        ("echo 'H100, 81559 MiB'; echo 'H100, 81559 MiB'", Level.OK, "H100, 81559 MiB; H100"),
        ("exit 9", Level.WARN, "9"),
    ],
)
def test_gpus_are_those_that_the_driver_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, level: Level, found: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    seen = gpus()
    assert seen.level is level
    assert found in seen.found


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    (tmp_path / "my disk").mkdir()
    mounts = tmp_path / "mounts"
    shared = str(tmp_path / "my disk").replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {shared} nfs4 rw 0 0\n")
    assert kind_of(tmp_path / "my disk", mounts) == "nfs4"
    assert kind_of(tmp_path, mounts) == "ext4"


def test_of_two_file_systems_at_one_place_the_later_counts_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "données").mkdir()
    mounts = tmp_path / "mounts"
    place = tmp_path / "données"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nsystemd-1 {place} autofs rw 0 0\nserver:/x {place} nfs4 rw 0 0\n")
    assert kind_of(place, mounts) == "nfs4"


def test_memory_is_what_the_container_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.group_bytes(str(tmp_path)) is None
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**28}\n")
    assert system.group_bytes(str(tmp_path)) == (2**30, 2**28)
    monkeypatch.setattr(system, "group_bytes", lambda: (2**30, 2**28))
    found = machine.memory()
    assert (found.level, found.found) == (Level.WARN, "0.8 GiB free of 1.0 GiB")


def test_a_user_without_a_home_is_told_to_say_the_folder_where_one_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a number that the system has no name for
    for words in (["doctor"], ["env", "--wait", "0"], ["serve"], ["status", "--url", "http://127.0.0.1:1"]):
        said = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert (said.exit_code, "give --folder, or set ROLLMUX_FOLDER" in said.output) == (2, True), words
    said = CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:1", "--token", "mine"], env={"COLUMNS": "300"})
    assert "no controller answers" in said.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_of_a_folder_that_is_somebody_else_s_every_command_says_so(place: Path) -> None:
    (place / "url").write_text("http://127.0.0.1:1")
    script = f"""
import os, sys
from typer.testing import CliRunner
from rollmux.cli import app
words = (["status"], ["doctor", "--port", "0"], ["journal", "verify"], ["top", "--once"], ["env", "--wait", "0"])
for each in words:
    CliRunner().invoke(app, [*each, "--folder", "/dev/null/none"])  # all that it imports
os.setgid(65534), os.setuid(65534)
for each in words:
    done = CliRunner().invoke(app, [*each, "--folder", {str(place)!r}])
    print(each[0], done.exit_code, isinstance(done.exception, SystemExit))
"""
    place.chmod(0o744)
    for parent in place.parents:
        if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
            parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said == {"status": "2 True", "doctor": "1 True", "journal": "2 True", "top": "2 True", "env": "2 True"}, done
