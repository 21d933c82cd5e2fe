"""How large the jobs are on this machine, so that two of them can share two nodes without loss.

A rollout is to take about as long as its update, else the quicker kind waits for the slower; and both are to take long
compared with a switch. Which settings do that differs from machine to machine, so it is measured: `rehearsal.py` makes
some steps of each job, all jobs at once, for in all runs both cores are at work. The choice is made here, and needs no
torch.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean, geometric_mean, median

from rollmux.errors import RollmuxError
from rollmux.trainer.job_file import written_job
from rollmux.trainer.settings import JobFile, Model, Warmup

# How long an update is to take: a switch is then 1 or 2 % of a phase, and 30 steps are made in less than a minute.
UPDATE_S = 0.6
LEAST_PROMPTS, MOST_PROMPTS = 12, 120
# How many responses are generated at once, in each try, the most first: fewer at once make a rollout longer.
RUNNING = (160, 56, 32, 18)
# How long a rollout is to take, as a part of its update.
ROLLOUT_PART = 1.0
JOB, MODEL, FOUND, LOG = "job.yaml", "model", "found.json", "rehearsal.log"


class NotFitted(RollmuxError):
    """The rehearsal has ended without its figures."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The size of jobs that was chosen, and how long the phases are expected to take."""

    prompts: int
    running: int
    rollout_s: float
    update_s: float

    def of(self, job: JobFile, model: Path) -> JobFile:
        """The job in this size. It begins with the model that the rehearsal has warmed up."""
        return replace(
            job,
            model=Model(path=str(model)),
            warmup=Warmup(steps=0),
            batching=replace(job.batching, prompts=self.prompts),
            rollout=replace(job.rollout, running=self.running),
        )


def fitted_prompts(prompts: int, updates_s: Sequence[float]) -> int:
    """How many prompts make an update take `UPDATE_S`, if with `prompts` updates take so long."""
    wanted = prompts * UPDATE_S / median(updates_s)
    return round(min(max(wanted, LEAST_PROMPTS), MOST_PROMPTS))


def fitted(prompts: int, rollouts_s: Mapping[int, Sequence[float]], updates_s: Sequence[float]) -> Fit:
    """The fit for so many prompts: how many responses at once, from several goes at the same batch."""
    update_s = median(updates_s)
    parts = {running: median(goes) / update_s for running, goes in rollouts_s.items()}
    running, part = _where(parts, ROLLOUT_PART)
    return Fit(prompts, running, part * update_s, update_s)


def _where(parts: Mapping[int, float], wanted: float) -> tuple[int, float]:
    """For which number the part is as wanted, between two measured numbers or the outermost; and the part to expect."""
    falling = sorted(parts.items(), reverse=True)
    before, lowest = falling[0]
    if lowest >= wanted:
        return before, lowest
    for running, part in falling[1:]:
        if part >= wanted:
            share = (wanted - lowest) / (part - lowest)
            return round(exp(log(before) + share * log(running / before))), wanted
        before, lowest = running, max(lowest, part)
    return before, lowest


def middle(fits: Sequence[Fit]) -> Fit:
    """One fit for all jobs: if they have the same size, they keep the same pace."""
    return Fit(
        round(fmean(each.prompts for each in fits)),
        round(geometric_mean(each.running for each in fits)),
        fmean(each.rollout_s for each in fits),
        fmean(each.update_s for each in fits),
    )


def fit(folder: Path, jobs: Sequence[JobFile]) -> tuple[Fit, list[JobFile]]:
    """Rehearses all jobs at once, in a folder that is made for it; returns their size, and the jobs in that size."""
    with ExitStack() as stack:
        started = [(folder / job.name, stack.enter_context(_rehearsal(folder / job.name, job))) for job in jobs]
        size = middle([_found(place, process) for place, process in started])
    return size, [size.of(job, folder / job.name / MODEL) for job in jobs]


@contextmanager
def _rehearsal(folder: Path, job: JobFile) -> Iterator[subprocess.Popen[bytes]]:
    """A rehearsal of one job. Its process is gone when the block ends, however it ends."""
    folder.mkdir(parents=True)
    (folder / JOB).write_text(written_job(job), encoding="utf-8")
    words = [sys.executable, "-m", "rollmux.cli.woven.rehearsal", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # a node is a core
    with (folder / LOG).open("wb") as said:
        process = subprocess.Popen(words, env=env, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _found(folder: Path, process: subprocess.Popen[bytes]) -> Fit:
    if process.wait():
        raise NotFitted(f"the jobs could not be fitted to this machine; the rehearsal's log: {folder / LOG}")
    return Fit(**json.loads((folder / FOUND).read_text(encoding="utf-8")))
