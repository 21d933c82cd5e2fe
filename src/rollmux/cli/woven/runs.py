"""Runs jobs under a controller of their own to their end, and lets somebody look on."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollmux.cli.remote import Remote
from rollmux.cli.woven.figures import FINISHED, Measured, measured
from rollmux.cli.woven.floor import controller, ended
from rollmux.cli.woven.jobs import DemoJob, Phases, rewards
from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, Text

LOOK_S = 1.0  # seldom: whoever looks takes time from the jobs
LOG_LINES = 20

Look = Callable[[str, ClusterView, HistoryView], None]  # where it is, and how it stands


class JobFailed(RollmuxError):
    """A job did not come to its end."""


def run(folder: Path, jobs: Sequence[DemoJob], phases: Mapping[str, Phases], slo: float, look: Look) -> Measured:
    """All of them at once on two nodes, and what their controller has seen."""
    with controller(folder) as there:
        for job in jobs:
            known = phases.get(job.name, Phases())
            there.post(Done, "/v1/jobs", job.submission(folder / job.name, known, slo))
        history = _until_the_end(there, look)
        _require_finished(there)
        return measured(history, {job.name: rewards(folder / job.name / "out") for job in jobs})


def _until_the_end(there: Remote, look: Look) -> HistoryView:
    while True:
        cluster = there.get(ClusterView, "/v1/cluster")
        history = there.get(HistoryView, "/v1/history", since_s=100_000)
        look(there.url, cluster, history)
        if ended(cluster):
            return history
        time.sleep(LOOK_S)


def _require_finished(there: Remote) -> None:
    for job in there.get(ClusterView, "/v1/cluster").jobs:
        if job.reason != FINISHED:
            said = "\n".join(there.get(Text, f"/v1/jobs/{job.job}/log", lines=LOG_LINES).lines)
            raise JobFailed(f"job {job.job} has ended: {job.reason}\n{said}")
