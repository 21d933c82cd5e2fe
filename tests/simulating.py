"""`rollmux simulate` as tests call it, and short workloads for it."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rollmux.cli import app
from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import write_workload
from tests.calling import printed, told

simulate, text = partial(told, app, "simulate"), partial(printed, app, "simulate")


def short_jobs(path: Path, count: int) -> Path:
    """So many mixed jobs of a tenth of the usual length, in this file."""
    drawn = GENERATORS["mixed"](1, count, 2.0)
    write_workload(Workload(path.stem, tuple(replace(a, duration_s=a.duration_s / 10) for a in drawn.arrivals)), path)
    return path


def figures(*words: str | Path) -> Any:
    return json.loads(text(*words))
