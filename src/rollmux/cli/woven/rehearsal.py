"""Makes some steps of a job, to measure how long they take on this machine: with the trainer's parts, no controller.

`python -m rollmux.cli.woven.rehearsal FOLDER` finds the job there, and leaves its warmed-up model and the `Fit` there.
"""

import json
import sys
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

from rollmux.cli.woven.fit import FOUND, JOB, MODEL, RUNNING, fitted, fitted_prompts
from rollmux.trainer.job_file import read_job_file
from rollmux.trainer.model import export_model
from rollmux.trainer.parts import Parts
from rollmux.trainer.rollout import Rolled
from rollmux.trainer.settings import JobFile
from rollmux.trainer.warmup import warm_up

FIRST_STEPS = 5  # the steps in which responses find their length
SIZED = 3  # by so many of the last of these, the number of prompts is chosen
GOES = 3  # how often each number of responses at once is tried, at the same batch


def main(folder: Path) -> None:
    job = read_job_file(folder / JOB)
    parts = Parts(job)
    warm_up(parts.model, parts.task, job.warmup, job.seed, lambda step, loss: None)
    export_model(parts.model, folder / MODEL)
    updates_s = [_update_s(parts, _rollout(parts)[0]) for _ in range(FIRST_STEPS)]
    prompts = fitted_prompts(job.batching.prompts, updates_s[-SIZED:])
    learner = deepcopy(parts.learner.state())
    tried = {running: Parts(_sized(job, prompts, running)) for running in RUNNING}
    begins = {running: {**each.state(), "learner": learner} for running, each in tried.items()}
    rollouts_s: dict[int, list[float]] = {running: [] for running in RUNNING}
    updates_s = []
    for _ in range(GOES):
        for running, each in tried.items():  # in turns, so that a slow moment of the machine hits all of them
            each.restore(deepcopy(begins[running]))
            rolled, seconds = _rollout(each)
            rollouts_s[running].append(seconds)
        updates_s.append(_update_s(each, rolled))  # all have drawn the same responses
    found = fitted(prompts, rollouts_s, updates_s)
    (folder / FOUND).write_text(json.dumps(asdict(found)), encoding="utf-8")


def _sized(job: JobFile, prompts: int, running: int) -> JobFile:
    return replace(
        job,
        batching=replace(job.batching, prompts=prompts),
        rollout=replace(job.rollout, running=running),
    )


def _rollout(parts: Parts) -> tuple[Rolled, float]:
    began = monotonic()
    return parts.rollout.round(lambda done, total: None), monotonic() - began


def _update_s(parts: Parts, rolled: Rolled) -> float:
    began = monotonic()
    parts.learner.update(rolled.samples)
    seconds = monotonic() - began
    parts.rollout.update(parts.learner.version)
    return seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
