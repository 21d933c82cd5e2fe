"""Every benchmark runs, and writes a result that names what it was measured on."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.recovery import answered_s

ROOT = Path(__file__).resolve().parent.parent
SHARED = {"__init__", "controllers", "harness", "populations"}
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)


# Each starts processes that import torch, again and again, plays for twenty seconds of a core, or runs controllers.
SLOW = {
    *(
        "beside",
        "demo",
        "engine",
        "learning",
        "packer",
        "permits",
        "recovery",
        "rollpacker_tables",
        "switch",
        "together",
    ),
    *("sync", "tail_in_trl", "turns", "update", "weave"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES])
def test_a_quick_run_writes_its_result(name: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("not measured"):
        pytest.skip(done.stdout.strip())
    result = json.loads(out.read_text())
    assert result["benchmark"] == name
    assert result["measured"]["rows"]
    for goal in result["measured"].get("goals", ()):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"{goal['name']}: ")]
        assert len(lines) == 1
        assert lines[0].endswith(f"met: {goal['met']}")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_result_is_of_a_full_run(path: Path) -> None:
    result = json.loads(path.read_text())
    assert not result["arguments"]["quick"]
    assert result["machine"]["cores"]


def test_a_controller_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        process.wait()
        with pytest.raises(RuntimeError, match="has ended with 3"):
            answered_s(process, 1, time.perf_counter())
