"""A backup of a controller that runs: its journal and what lets callers in, from which another goes on."""

from pathlib import Path

from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.service.journal.place import opened
from tests.service.postgres_server import Server
from tests.service.serving import Served, job, served


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


def test_a_backup_that_cant_be_made_says_why(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        (tmp_path / "backup").write_text("in its way")
        assert "there is no backup: " in refused(there, 503)
        there.post("/v1/jobs", job("a"))


def test_of_a_journal_on_a_server_the_server_makes_the_backup(tmp_path: Path, server: Server) -> None:
    with served(tmp_path, journal=opened(server.url())) as there:
        assert "pg_dump -n" in refused(there, 409)
