"""Runs jobs under a controller of their own to their end, and lets somebody look on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rollmux.cli.remote import Remote
from rollmux.cli.woven.figures import FINISHED, Measured, measured
from rollmux.cli.woven.floor import controller, ended
from rollmux.cli.woven.jobs import DemoJob, Phases, rewards
from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, Text

LOOK_S = 2.0  # seldom: whoever looks takes time from the jobs
LOG_LINES, ALL_S = 20, 100_000

Look = Callable[[Remote, ClusterView], None]  # whom to ask, and how it stands


class JobFailed(RollmuxError):
    """A job did not come to its end."""


def run(folder: Path, jobs: Sequence[DemoJob], phases: Phases, slo: float, look: Look) -> Measured:
    """All of them at once on two nodes, and what their controller has seen."""
    with controller(folder) as there:
        for job in jobs:
            there.post(Done, "/v1/jobs", job.submission(folder / job.name, phases, slo))
        history = _until_the_end(there, look)
        _require_finished(there)
        return measured(history, {job.name: rewards(folder / job.name / "out") for job in jobs})


def _until_the_end(there: Remote, look: Look) -> HistoryView:
    while not ended(cluster := there.get(ClusterView, "/v1/cluster")):
        look(there, cluster)
        time.sleep(LOOK_S)
    look(there, cluster)
    return there.get(HistoryView, "/v1/history", since_s=ALL_S)


def _require_finished(there: Remote) -> None:
    for job in there.get(ClusterView, "/v1/cluster").jobs:
        if job.reason != FINISHED:
            raise JobFailed(f"job {job.job} has ended: {job.reason}\n{log_of(there, job.job)}")


def log_of(there: Remote, job: str) -> str:
    """The last that a job has printed."""
    return "\n".join(there.get(Text, f"/v1/jobs/{job}/log", lines=LOG_LINES).lines)
