"""`rollmux simulate` as tests call it, and short workloads for it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import write_workload


def short_jobs(path: Path, count: int) -> Path:
    """So many mixed jobs of a tenth of the usual length, in this file."""
    drawn = GENERATORS["mixed"](1, count, 2.0)
    write_workload(Workload(path.stem, tuple(replace(a, duration_s=a.duration_s / 10) for a in drawn.arrivals)), path)
    return path


def simulate(*words: str | Path) -> tuple[int, str]:
    """The exit code and the output, without the frame and the line breaks of error messages."""
    result = CliRunner().invoke(app, ["simulate", *map(str, words)])
    return result.exit_code, re.sub(r"[\s│]+", " ", result.output)


def text(*words: str | Path) -> str:
    """What `--json -` prints, and nothing else."""
    result = CliRunner().invoke(app, ["simulate", *map(str, words), "--json", "-"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def figures(*words: str | Path) -> Any:
    return json.loads(text(*words))
