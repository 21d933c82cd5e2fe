"""A backup of a controller that runs: its journal and what lets callers in, from which another goes on."""

import stat
from pathlib import Path
from threading import Event, Thread

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.service import routes
from rollmux.service.journal.place import opened
from rollmux.service.tokens import write_private
from tests.service.postgres_server import Server
from tests.service.serving import Served, job, served
from tests.waiting import until


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["journal", *words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def refused(there: Served, status: int) -> str:
    answer = there.call("POST", "/v1/backup")
    assert answer.status_code == status
    return str(answer.json()["error"])


def test_from_a_backup_another_controller_goes_on_with_all_that_was_durable_then(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        for name in ("a", "b"):
            there.post("/v1/jobs", job(name))
            told = said("backup", "--url", there.service.url, "--token", there.admin)
            assert "backup has all up to record " in told
        there.post("/v1/jobs", job("later"))
        assert "all as they were; 2 jobs live" in said("verify", "--folder", str(tmp_path / "backup"))
        with served(tmp_path / "backup") as another:
            jobs = another.get("/v1/cluster", token=there.admin)["jobs"]
            assert [view["job"] for view in jobs] == ["a", "b"]
        assert "a controller was started in" in refused(there, 409)  # which may be at work there


def test_a_backup_is_its_owner_s_alone_in_a_folder_that_others_may_look_into(tmp_path: Path) -> None:
    """In a journal are the environments of jobs; the folder may be there before, as where a disk is mounted."""
    (tmp_path / "backup").mkdir(0o755)
    with served(tmp_path) as there:
        there.post("/v1/backup")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "backup").iterdir()}
    assert modes == dict.fromkeys(("journal.db", "secret", "tokens.json"), 0o600)


def test_a_backup_that_cant_be_made_says_why(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        (tmp_path / "backup").write_text("in its way")
        assert "there is no backup: " in refused(there, 503)
        there.post("/v1/jobs", job("a"))


def test_a_backup_that_a_slow_disk_holds_up_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_are_answered = Event()

    def slowly(path: Path, content: bytes) -> None:
        assert others_are_answered.wait(20)
        write_private(path, content)

    monkeypatch.setattr(routes, "write_private", slowly)
    with served(tmp_path) as there:
        backup = Thread(target=there.post, args=("/v1/backup",))
        backup.start()
        until((tmp_path / "backup" / "journal.db").exists)
        there.post("/v1/jobs", job("a"))
        assert backup.is_alive()
        others_are_answered.set()
        backup.join()
        assert (tmp_path / "backup" / "tokens.json").read_bytes() == (tmp_path / "tokens.json").read_bytes()


def test_of_a_journal_on_a_server_the_server_makes_the_backup(tmp_path: Path, server: Server) -> None:
    with served(tmp_path, journal=opened(server.url())) as there:
        assert "pg_dump -n" in refused(there, 409)
