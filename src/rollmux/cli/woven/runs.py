"""Runs jobs to their end under a controller of their own, and shows how they stand meanwhile."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rollmux.cli.remote import Remote
from rollmux.cli.woven.figures import FINISHED, Measured, measured
from rollmux.cli.woven.floor import controller, ended
from rollmux.cli.woven.jobs import SLO_ALONE, SLO_WOVEN, DemoJob, Phases, rewards
from rollmux.errors import RollmuxError
from rollmux.protocol.history import HistoryView
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, Text

LOOK_S = 2.0  # seldom: each look takes time from the jobs
LOG_LINES, ALL_S = 20, 100_000

# Called at each look, with each controller and how its cluster stands.
Look = Callable[[Sequence[tuple[Remote, ClusterView]]], None]


class JobFailed(RollmuxError):
    """A job did not come to its end."""


def woven(folder: Path, jobs: Sequence[DemoJob], phases: Phases, look: Look) -> Measured:
    """Runs all jobs at once on two nodes; returns what their controller has seen."""
    (found,) = _run([(folder, jobs)], phases, SLO_WOVEN, look)
    return found


def alone(folder: Path, jobs: Sequence[DemoJob], look: Look) -> list[Measured]:
    """Runs each job on two nodes of its own, under a controller of its own, and all at the same time.

    A job alone works on one of its nodes at a time, so two cores are enough; and both are at work, as in the woven run.
    """
    return _run([(folder / f"alone-{job.name}", (job,)) for job in jobs], Phases(), SLO_ALONE, look)


def _run(clusters: Sequence[tuple[Path, Sequence[DemoJob]]], phases: Phases, slo: float, look: Look) -> list[Measured]:
    with ExitStack() as stack:
        there = [stack.enter_context(controller(folder)) for folder, _ in clusters]
        for (folder, jobs), each in zip(clusters, there, strict=True):
            for job in jobs:
                each.post(Done, "/v1/jobs", job.submission(folder / job.name, phases, slo))
        _until_the_end(there, look)
        return [_measured(folder, jobs, each) for (folder, jobs), each in zip(clusters, there, strict=True)]


def _until_the_end(there: Sequence[Remote], look: Look) -> None:
    while True:
        seen = [(each, each.get(ClusterView, "/v1/cluster")) for each in there]
        look(seen)
        if all(ended(cluster) for _, cluster in seen):
            return
        time.sleep(LOOK_S)


def _measured(folder: Path, jobs: Sequence[DemoJob], there: Remote) -> Measured:
    _require_finished(there)
    history = there.get(HistoryView, "/v1/history", since_s=ALL_S)
    return measured(history, {job.name: rewards(folder / job.name / "out") for job in jobs})


def _require_finished(there: Remote) -> None:
    for job in there.get(ClusterView, "/v1/cluster").jobs:
        if job.reason != FINISHED:
            raise JobFailed(f"job {job.job} has ended: {job.reason}\n{log_of(there, job.job)}")


def log_of(there: Remote, job: str) -> str:
    """The last lines that a job has printed."""
    return "\n".join(there.get(Text, f"/v1/jobs/{job}/log", lines=LOG_LINES).lines)
