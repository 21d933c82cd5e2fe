"""A real controller whose journal is on a server: its commands, and what it does when connection or journal is lost."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.journal.address import address
from rollmux.service.journal.place import FILE, opened
from rollmux.service.recovery import replayed
from tests.service.postgres_server import Server
from tests.service.serving import job, served

SOON_S = 20.0
PROGRAM = "from rollmux.cli import app; app()"


def said(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, list(words))
    assert (result.exit_code != 0) is fails, result.output
    return " ".join(result.output.replace("│", " ").split())


@contextmanager
def serving(folder: Path, *more: str, **env: str) -> Iterator[Path]:
    """`rollmux serve`, as its owner starts it; yields the file of what it prints, once it is ready."""
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, "serve", "--folder", str(folder), "--port", "0", *more]
    with (folder / "said").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | env)
        try:
            until = time.monotonic() + SOON_S
            while "ready at" not in (folder / "said").read_text() and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.05)
            yield folder / "said"
        finally:
            process.terminate()
            process.wait(SOON_S)


def test_the_journal_of_a_running_controller_is_read_and_a_second_controller_refused(
    server: Server, tmp_path: Path
) -> None:
    url = server.url() + "&password=s3cret"
    with serving(tmp_path / "one", ROLLMUX_JOURNAL=url) as first:
        assert "ready at" in first.read_text()
        file = tmp_path / "job.json"
        file.write_text(json.dumps(job("a")))
        said("submit", str(file), "--folder", str(tmp_path / "one"))
        assert "all as they were; 1 jobs live" in said("journal", "verify", "--journal", url)
        assert "JobSubmitted a" in said("journal", "story", "a", "--journal", url)
        with serving(tmp_path / "two", ROLLMUX_JOURNAL=url) as second:
            refused = " ".join(second.read_text().replace("│", " ").split())
        assert "another controller writes it" in refused
        assert "ready at" not in refused
        said("cancel", "a", "--folder", str(tmp_path / "one"))
        printed = first.read_text() + refused
    assert "JobCancelled a" in said("journal", "story", "a", "--journal", url)
    assert not (tmp_path / "one" / "journal.db").exists()
    assert "s3cret" not in printed
    with serving(tmp_path / "three", "--keep-records", "0", ROLLMUX_JOURNAL=url):
        assert '"job": "a"' in said("status", "a", "--json", "--folder", str(tmp_path / "three"))
        file.write_text(json.dumps(job("b")))
        said("submit", str(file), "--folder", str(tmp_path / "three"))
    assert "The history begins after record" in said("journal", "verify", "--journal", url)
    assert "JobSubmitted b" in said("journal", "story", "b", "--journal", url)
    assert "knows no job 'a' since record" in said("journal", "story", "a", "--journal", url, fails=True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://me:s3cret@host/db", "begins with postgresql://"),
        ("postgresql://me:s3cret@127.0.0.1:1/db", "refused"),
        ("postgresql://me:s3cret@host/db?nonsense=1", "can't be read"),
        (f"postgresql://me:s3cret@host/db?schema={'a' * 64}", "1 to 63 small letters"),
    ],
)
@pytest.mark.parametrize("command", [("serve",), ("journal", "verify")], ids=["serve", "verify"])
def test_a_url_that_leads_nowhere_is_refused_without_its_password(
    tmp_path: Path, command: tuple[str, ...], url: str, why: str
) -> None:
    refused = said(*command, "--folder", str(tmp_path), "--journal", url, fails=True)
    assert why in refused
    assert "s3cret" not in refused


def test_without_psycopg_it_is_said_what_to_install() -> None:
    program = f"import sys; sys.modules['psycopg'] = None; {PROGRAM}"
    command = [sys.executable, "-c", program, "journal", "verify", "--journal", "postgresql://me@host/db"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "pip install 'rollmux[postgres]'" in " ".join(done.stderr.replace("│", " ").split())


def test_a_cut_connection_is_not_noticed_by_callers(server: Server, tmp_path: Path) -> None:
    url = server.url()
    with served(tmp_path, journal=opened(url)) as there:
        for number in range(5):
            there.post("/v1/jobs", job(f"job-{number}"))
            assert server.cut_off() == 1
        assert there.get("/healthz")["broken"] == ""
        admin = there.admin
    with served(tmp_path, journal=opened(url)) as there:
        names = [view["job"] for view in there.get("/v1/cluster", token=admin)["jobs"]]
        assert names == [f"job-{number}" for number in range(5)]


def test_a_controller_whose_journal_was_taken_changes_nothing_any_more_and_says_so(
    server: Server, tmp_path: Path
) -> None:
    url = server.url()
    with served(tmp_path, journal=opened(url)) as there:
        there.post("/v1/jobs", job("a"))
        server.admin("UPDATE writer SET generation = generation + 1, token = 'b', who = 'b'", address(url).schema)
        answer = there.call("POST", "/v1/jobs", job("b"))
        assert answer.status_code == 503
        assert "another controller writes it (b)" in answer.json()["error"]
        assert "another controller writes it" in there.get("/healthz")["broken"]
        assert there.call("POST", "/v1/jobs/a/cancel").status_code == 503
        admin = there.admin
    with served(tmp_path, journal=opened(url)) as there:
        assert [view["job"] for view in there.get("/v1/cluster", token=admin)["jobs"]] == ["a"]


@pytest.mark.parametrize("on_server", [False, True], ids=["file", "server"])
def test_a_controller_removes_what_is_too_old_while_it_works(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, on_server: bool
) -> None:
    monkeypatch.setattr("rollmux.service.host.REPLAY_S", 0.0)
    monkeypatch.setattr("rollmux.service.host.REPLAY_PER_JOB_S", 0.0)
    url = request.getfixturevalue("server").url() if on_server else ""
    with served(tmp_path, journal=opened(url, 5)) as there:
        journal, until, number = there.service.journal, time.monotonic() + SOON_S, 0
        while journal.begins() < 10:
            assert time.monotonic() < until
            number += 1
            there.post("/v1/jobs", job(f"job-{number}"))
            there.post(f"/v1/jobs/job-{number}/cancel")
            time.sleep(0.05)
        assert there.get("/healthz")["broken"] == ""
    with served(tmp_path, journal=opened(url, 5)) as there:
        assert there.get("/healthz")["seq"] > 10
    with closing(opened(url)(tmp_path / FILE)) as journal:
        _, entries = replayed(journal, lambda _: RollmuxPolicy())
        assert next(entries).seq == journal.begins() + 1
