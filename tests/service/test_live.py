"""The commands and the shipped examples, against a real controller with real processes."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rollmux
from rollmux.cli import app
from rollmux.protocol.cluster_file import read_cluster
from tests.service.serving import RULES, Served, job, served

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = """
import rollmux
with rollmux.connect() as mux:
    for step in mux.steps(3):
        with mux.phase("rollout"):
            print("rolls out", step, flush=True)
        with mux.phase("train"):
            print("trains", step, flush=True)
"""
PHASE = {"nodes": 1, "duration_s": 0.1}
JOB = """
name: {name}
slo: 3
iterations: 3
rollout: {{nodes: 1, duration_s: 0.1}}
train: {{nodes: 1, duration_s: 0.1}}
command: ["{python}", "{script}"]
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with served(tmp_path / "controller", read_cluster(EXAMPLES / "attach" / "cluster.yaml"), RULES) as found:
        monkeypatch.setenv("ROLLMUX_URL", found.service.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", found.admin)
        yield found


def said(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, list(words))
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def data(*words: str) -> Any:
    return json.loads(said(*words, "--json"))


def until_ended(name: str, limit_s: float = 20.0) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        view = data("status", name)
        if view["state"] == "ended":
            return view
        time.sleep(0.1)
    raise AssertionError(f"{name} has not ended: {view}")


def written(folder: Path, name: str, script: str = SCRIPT) -> str:
    (folder / f"{name}.py").write_text(script)
    file = folder / f"{name}.yaml"
    file.write_text(JOB.format(name=name, python=sys.executable, script=f"{name}.py"))
    return str(file)


def test_submitted_jobs_run_to_their_end_and_what_they_print_is_kept(there: Served, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert f"Job {name}:" in said("submit", written(tmp_path, name))
    for name in ("one", "two"):
        assert until_ended(name)["reason"] == "finished"
        printed = data("logs", name)["lines"]
        assert printed == [f"{what} {step}" for step in range(3) for what in ("rolls out", "trains")]
    assert "Launch one" in said("story", "one")
    assert "group-0" in said("explain", "one")


def test_a_dry_run_shows_the_place_and_the_price_and_submits_nothing(there: Served, tmp_path: Path) -> None:
    file = written(tmp_path, "asks")
    asked = said("submit", file, "--dry-run")
    assert "would get rollout-0, train-0" in asked
    assert "would take 0.2 s, its SLO allows 0.6 s" in asked
    assert data("submit", file, "--dry-run")["added_usd_per_hour"] == pytest.approx(7.13)
    assert data("status")["jobs"] == []
    said("submit", file)
    assert "would get rollout-0, train-0" in said("submit", file, "name=other", "--dry-run")
    again = said("submit", file, "--dry-run")
    assert again == "Job asks has been submitted already, and would get no second place: `rollmux status asks`.\n"
    said("cancel", "asks")
    until_ended("asks")


def test_a_script_that_fails_is_tried_again_and_its_owner_sees_why(there: Served, tmp_path: Path) -> None:
    said("submit", written(tmp_path, "bad", "import sys\nprint('it is broken', flush=True)\nsys.exit(3)\n"))
    view = until_ended("bad", 40.0)
    assert "failed 3 times" in view["reason"]
    assert "bad is ended: failed 3 times" in said("status")
    (row,) = [line.split() for line in said("bill").splitlines() if line.strip().startswith("bad ")]
    assert row[:3] == ["bad", "admin", "ended"], "a sentence would make it twenty lines long"
    assert "3" in view["reason"]
    assert data("logs", "bad")["lines"] == ["it is broken"]


def test_a_cancelled_job_ends_with_its_processes(there: Served, tmp_path: Path) -> None:
    said("submit", written(tmp_path, "long", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"))
    end = time.monotonic() + 10
    while not data("logs", "long")["lines"] and time.monotonic() < end:
        time.sleep(0.1)
    pid = int(data("logs", "long")["lines"][0])
    said("cancel", "long")
    assert until_ended("long")["reason"] == "cancelled"
    assert not Path(f"/proc/{pid}").exists()


def test_of_a_job_that_somebody_else_starts_no_log_is_promised_and_its_end_is_told(there: Served) -> None:
    there.post("/v1/jobs", job("mine"))
    assert (
        said("logs", "mine")
        == "Nothing of job mine is kept: it has printed nothing, or somebody else has started it.\n"
    )
    assert data("logs", "mine")["lines"] == []
    assert "Job mine: " in said("cancel", "mine")
    until_ended("mine")
    assert said("cancel", "mine") == "Job mine: ended, cancelled.\n"


def test_who_submits_a_job_without_a_command_is_told_that_its_script_is_waited_for(
    there: Served, tmp_path: Path
) -> None:
    file = Path(written(tmp_path, "by-hand"))
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("command")))
    told = said("submit", str(file))
    assert "by-hand: starting in group-0 on rollout-0, train-0, its script has 600 s to be started." in told
    assert "by-hand is starting: its script has 600 s to be started" in said("status")


def test_a_drained_node_takes_no_jobs_until_it_is_undrained(there: Served, tmp_path: Path) -> None:
    said("drain", "rollout-0")
    assert "would get no place now" in said("submit", written(tmp_path, "waits"), "--dry-run")
    said("undrain", "rollout-0")
    assert "would get rollout-0" in said("submit", written(tmp_path, "waits"), "--dry-run")


@pytest.mark.parametrize("command", ["status", "bill"])
@pytest.mark.parametrize("columns", ["80", "119", "120"])
def test_whose_line_it_is_can_be_read_on_every_terminal(
    there: Served, monkeypatch: pytest.MonkeyPatch, command: str, columns: str
) -> None:
    there.post("/v1/jobs", job("qwen-maths", iterations=100_000))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", columns)
    assert "qwen-maths" in said(command)


@pytest.mark.parametrize("columns", ["80", "160", "pipe"])
@pytest.mark.parametrize("of", [(), ("waits",)], ids=["all", "one"])
def test_why_a_job_waits_can_be_read_in_a_terminal_and_found_in_a_pipe(
    there: Served, monkeypatch: pytest.MonkeyPatch, columns: str, of: tuple[str, ...]
) -> None:
    for name in ("busy", "waits"):
        there.post("/v1/jobs", job(name, slo=1.0))
    if columns != "pipe":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", columns)
    why = "waits is queued: " + there.get("/v1/jobs/waits")["reason"]
    assert len(why) > 120
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said("status", *of)).splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("waits is queued: ")]
    assert " ".join(line.strip() for line in lines[first:]).startswith(why)
    assert columns != "pipe" or lines[first] == why
    (row,) = [line for line in lines if "waits" in line and "queued" in line and "is queued" not in line]
    assert "0" in row
    assert columns == "pipe" or max(map(len, lines)) <= int(columns)


def test_a_tenant_is_told_that_prices_are_of_all_jobs(there: Served) -> None:
    there.post("/v1/jobs", {"name": "others", "slo": 2, "rollout": PHASE, "train": PHASE})
    alice = said("token", "create", "alice", "--folder", str(there.service.wanted.folder)).strip()
    theirs = ("--token", alice)
    assert "No jobs." in said("status", *theirs)
    assert "All jobs: $7.13 per hour shared, $7.13 alone" in said("status", *theirs)
    assert "All jobs: $7.13 an hour shared, $7.13 alone" in said("top", "--once", *theirs)


def test_commands_say_what_is_wrong(there: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no job 'nobody'" in said("status", "nobody", fails=True)
    (tmp_path / "bad.yaml").write_text("nam: x\n")
    framed = said("submit", str(tmp_path / "bad.yaml"), fails=True)
    assert "the nearest is name" in " ".join(framed.replace("│", " ").split())  # wherever the frame breaks lines
    assert "who calls is not known: set ROLLMUX_TOKEN" in said("status", "--token", "wrong", fails=True)
    assert "is `rollmux serve` running?" in said("status", "--url", "http://127.0.0.1:1", fails=True)
    assert "is no address of a controller" in said("status", "--url", "localhost:8421", fails=True)
    monkeypatch.delenv("ROLLMUX_URL")
    assert "where is the controller?" in said("status", "--folder", str(tmp_path / "none"), fails=True)


def test_the_shipped_script_says_what_it_wants_where_it_is_given_no_name() -> None:
    command = [sys.executable, str(EXAMPLES / "attach" / "job.py")]
    asked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "give the job a name: python job.py NAME\n"


def test_two_copies_of_the_shipped_script_share_two_nodes(there: Served) -> None:
    command = [sys.executable, str(EXAMPLES / "attach" / "job.py")]
    copies = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True, env=dict(os.environ)) for name in "ab"
    ]
    for name, copy in zip("ab", copies, strict=True):
        printed, _ = copy.communicate(timeout=60)
        assert copy.returncode == 0
        assert printed.splitlines() == [f"{name}: step {step} is done" for step in range(5)]
    assert {view["reason"] for view in data("status")["jobs"]} == {"finished"}


def test_the_shipped_script_runs_straight_through_without_a_controller() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
    command = [sys.executable, str(EXAMPLES / "attach" / "job.py"), "alone"]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "alone: step 4 is done"


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_commands_and_jobs_call_the_controller_itself_where_there_is_a_proxy(
    there: Served, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with rollmux.connect(job={"name": "a", "slo": 3, "rollout": PHASE, "train": PHASE}, patience_s=0.5):
        assert data("status", "a")["state"] == "running"
        assert data("top", "--once")["cluster"]["jobs"][0]["job"] == "a"


def test_the_shipped_job_file_runs(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}")
    said("submit", str(EXAMPLES / "job.yaml"))
    assert until_ended("arithmetic")["reason"] == "finished"
    assert data("logs", "arithmetic")["lines"][-1] == "arithmetic: step 4 is done"


def test_a_journal_tells_all_that_happened_once_its_controller_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "controller"
    with served(folder, read_cluster(EXAMPLES / "attach" / "cluster.yaml"), RULES) as there:
        there.post("/v1/jobs", {"name": "a", "slo": 2, "rollout": PHASE, "train": PHASE})
        there.post("/v1/jobs/a/attach", {"instance": "x", "wait_s": 5})
        busy = said("journal", "verify", "--folder", str(folder), fails=True)
        assert "a controller is at work on it" in " ".join(busy.split())
        there.post("/v1/jobs/a/cancel")
    assert "all as they were; 1 jobs live" in said("journal", "verify", "--folder", str(folder))
    assert "JobCancelled a" in said("journal", "story", "a", "--folder", str(folder))
    lines = [json.loads(line) for line in said("journal", "replay", "--folder", str(folder)).splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["event"] == {"type": "JobCancelled", "job_id": "a"}
    assert "knows no job" in said("journal", "story", "b", "--folder", str(folder), fails=True)


def test_tokens_are_made_listed_and_revoked_while_the_controller_runs(
    there: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rollmux.audit")
    folder = ("--folder", str(there.service.wanted.folder))
    alice = said("token", "create", "alice", *folder).strip()
    assert there.call("GET", "/v1/cluster", token=alice).status_code == 200
    assert "alice: tenant of alice" in said("token", "list", *folder)
    assert "there is a token" in said("token", "create", "alice", *folder, fails=True)
    said("token", "revoke", "alice", *folder)
    assert there.call("GET", "/v1/cluster", token=alice).status_code == 401
    assert "there is no token" in said("token", "revoke", "alice", *folder, fails=True)
    changes = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "token"]
    assert {"token": "alice", "role": "tenant", "tenant": "alice", "change": "made"} in changes
    assert [each["change"] for each in changes if each["token"] == "alice"] == ["made", "revoked"]


def test_an_image_is_kept_while_the_controller_works_and_the_next_one_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollmux.service.host.REPLAY_S", 0.0)
    monkeypatch.setattr("rollmux.service.host.REPLAY_PER_JOB_S", 0.0)
    folder = tmp_path / "controller"
    with served(folder, read_cluster(EXAMPLES / "attach" / "cluster.yaml"), RULES) as there:
        there.post("/v1/jobs", {"name": "a", "slo": 2, "rollout": PHASE, "train": PHASE})
        end = time.monotonic() + 10
        while (kept := there.service.journal.image()) is None and time.monotonic() < end:
            time.sleep(0.05)
        assert kept is not None
        assert kept.seq > 0
        admin = there.admin
    with served(folder, read_cluster(EXAMPLES / "attach" / "cluster.yaml"), RULES) as there:
        assert [view["job"] for view in there.get("/v1/cluster", token=admin)["jobs"]] == ["a"]
