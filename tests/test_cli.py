"""The commands, as a person calls them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmux import __version__
from rollmux.cli import app

ROOT = Path(__file__).resolve().parent.parent
run = CliRunner().invoke


@pytest.mark.parametrize("policy", ["rollmux", "paper"])
def test_the_demo_weaves_every_job_within_its_slo_and_for_less(policy: str) -> None:
    result = run(app, ["demo", "--virtual", "--json", "--hours", "12", "--slo", "1.4", "--policy", policy])
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert data["policy"] == policy
    assert len(data["jobs"]) == 10
    assert all(job["measured_s"] <= 1.4 * job["alone_s"] * 1.01 for job in data["jobs"])
    near = 0.02 if policy == "paper" else 0.1  # by urgency there may be several rhythms
    assert all(job["measured_s"] == pytest.approx(job["forecast_s"], rel=near) for job in data["jobs"])
    assert data["woven_usd_per_hour"] < data["dedicated_usd_per_hour"]
    assert data["usd_of_work_ratio"] > 1.1


def test_the_demo_says_what_it_costs_in_words() -> None:
    result = run(app, ["demo", "--virtual", "--hours", "2"])
    assert result.exit_code == 0, result.output
    assert "per hour woven" in result.output


def test_a_job_that_has_done_too_little_to_be_measured_counts_neither_way() -> None:
    result = run(app, ["demo", "--virtual", "--hours", "1", "--json"])
    data = json.loads(result.output, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    measured = [job for job in data["jobs"] if job["measured_s"] is not None]
    assert 0 < len(measured) < len(data["jobs"])
    shown = run(app, ["demo", "--virtual", "--hours", "1"]).output
    assert "nan" not in shown
    assert f" of {len(measured)} measured jobs within the SLO" in shown


def test_a_job_of_the_demo_can_be_explained() -> None:
    result = run(app, ["demo", "--virtual", "--hours", "1", "--explain", "7B-8K-single"])
    assert result.output.startswith("Job 7B-8K-single, policy rollmux: group-0, a new group")


@pytest.mark.parametrize("wrong", [["--policy", "best"], ["--explain", "nobody"], ["--hours", "0"], ["--slo", "0.5"]])
def test_a_wrong_option_is_refused_with_what_would_be_right(wrong: list[str]) -> None:
    result = run(app, ["demo", "--virtual", "--hours", "1", *wrong])
    assert result.exit_code == 2
    assert any(hint in result.output for hint in ("rollmux, paper", "7B-8K", "greater than or equal to 1"))


def test_the_page_of_states_is_what_the_tables_say() -> None:
    assert run(app, ["states"]).output == (ROOT / "docs" / "states.md").read_text(encoding="utf-8")


def test_the_version_is_told_by_command_and_by_module() -> None:
    told = f"rollmux {__version__}\n"
    assert run(app, ["--version"]).output == told
    assert subprocess.check_output([sys.executable, "-m", "rollmux", "--version"], text=True) == told


def test_ctrl_c_while_the_command_is_being_imported_is_no_traceback(tmp_path: Path) -> None:
    interrupted = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(interrupted)
    command = "import sys; from rollmux.__main__ import main; sys.path.insert(0, sys.argv.pop(1)); main()"
    words = [sys.executable, "-c", command, str(tmp_path), "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_command_that_ctrl_c_is_not_to_end_keeps_to_that() -> None:
    command = """
import atexit, signal
from rollmux.__main__ import main
signal.signal(signal.SIGINT, signal.SIG_IGN)
atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))
main()
"""
    told = subprocess.check_output([sys.executable, "-c", command, "--version"], text=True)
    assert told.splitlines()[-1] == "True"
