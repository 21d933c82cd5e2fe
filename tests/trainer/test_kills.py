"""Jobs, their processes and their controller are killed at random moments: all comes out as if nothing had happened.

To kill a job's process is to kill rollout worker, trainer and driver at once, as all are one unless the job file says
otherwise; where rollout workers or trainers are processes of their own, one of them is killed alone (F3, F4, F16).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.settings import JobFile
from tests.service.local.launching import be_init, nothing_left
from tests.trainer.jobs import alone, left_behind, tiny
from tests.trainer.killing import (
    DRAIN_S,
    LASTS_S,
    LEASE_S,
    LIMIT_S,
    MAY_END_ATTEMPT,
    Blow,
    Floor,
    Hand,
    Kill,
    Moment,
    drawn,
    floor,
    for_s,
)

KINDS = ("rollout", "train", "sync")
BIGGER: dict[str, Any] = {
    "steps": 30,
    "model": {"hidden": 64, "layers": 2, "heads": 4},
    "batching": {"prompts": 6},
    "warmup": {"steps": 60},
}
PROGRAM = "from rollmux.cli import app; app()"

# Twenty. Before the first step in this order, the others at random steps in any order.
EARLY = {
    "a": [(Moment.STARTING, Blow.KILL), (Moment.WARM_UP, Blow.CONTROLLER)],
    "b": [(Moment.STARTING, Blow.CONTROLLER), (Moment.WARM_UP, Blow.KILL), (Moment.STARTING, Blow.KILL)],
}
LATER = {
    "a": [
        (Moment.ROLLOUT, Blow.KILL),
        (Moment.TRAIN, Blow.KILL),
        (Moment.SYNC, Blow.KILL),
        (Moment.ROLLOUT, Blow.STALL),
        (Moment.TRAIN, Blow.HANG),
        (Moment.SYNC, Blow.CONTROLLER),
        (Moment.ROLLOUT, Blow.CONTROLLER),
        (Moment.TRAIN, Blow.CONTROLLER),
    ],
    "b": [
        (Moment.ROLLOUT, Blow.KILL),
        (Moment.TRAIN, Blow.KILL),
        (Moment.SYNC, Blow.KILL),
        (Moment.TRAIN, Blow.STALL),
        (Moment.SYNC, Blow.STALL),
        (Moment.ROLLOUT, Blow.HANG),
        (Moment.SYNC, Blow.HANG),
    ],
}


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left() as older:
        yield
        be_init(older)


class Job:
    """A training job in a folder of its own, the same alone and woven."""

    def __init__(self, settings: JobFile, folder: Path) -> None:
        self.settings, self.name, self.steps = settings, settings.name, settings.steps
        self.folder, self.out = folder / self.name, folder / self.name / "out"
        self.folder.mkdir()

    def submission(self, attempts: int) -> dict[str, Any]:
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump(asdict(self.settings)), encoding="utf-8")
        phase = {"nodes": 1, "duration_s": 1.0}
        return {
            "name": self.name,
            "slo": 4.0,
            "rollout": phase,
            "train": phase,
            "max_attempts": attempts,
            "folder": str(self.folder),
            "command": [sys.executable, "-c", PROGRAM, "train", str(file), "--out", str(self.out), "--resume"],
            "env": {"OMP_NUM_THREADS": "1"},
        }

    def alone(self) -> tuple[bytes, ...]:
        """What a run leaves behind that nobody disturbs."""
        train(self.settings, self.folder / "alone", alone())
        return left_behind(self.folder / "alone")

    def apart(self) -> tuple[bytes, ...]:
        """The same by a process of its own, for jobs that begin processes."""
        out = self.folder / "alone"
        command = [sys.executable, "-c", PROGRAM, "train", str(self.folder / "job.yaml"), "--out", str(out)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
        return left_behind(out)


def run(there: Floor, kills: Mapping[Job, Sequence[Kill]]) -> None:
    """Until all jobs have ended and all kills are carried out."""
    hands = [Hand(there, job.name, job.out, plan) for job, plan in kills.items()]
    for job, plan in kills.items():
        there.submit(job.submission(attempts=1 + sum(kill.blow in MAY_END_ATTEMPT for kill in plan)))
    for hand in hands:
        hand.start()
    there.until_ended(*(job.name for job in kills))
    for job, hand in zip(kills, hands, strict=True):
        assert there.get(f"/v1/jobs/{job.name}")["reason"] == "finished", there.said(job.name)
        hand.finish()


def require_once(there: Floor, jobs: Sequence[Job]) -> None:
    """Each step was committed once (I7), in order, and no node was two jobs' at a time (I1).

    An attempt that ends goes back to its last sync: what it had rolled out and trained since is done again.
    """
    spans = there.get("/v1/history?since_s=100000")["spans"]
    for job in jobs:
        mine = [each for each in spans if each["job"] == job.name and each["how"] == "finished"]
        done = {kind: [each["iteration"] for each in mine if each["kind"] == kind] for kind in KINDS}
        assert done["sync"] == list(range(job.steps))
        assert set(done["rollout"]) == set(done["train"]) == set(done["sync"])
    uses = sorted((use["node"], use["began_s"], use["ended_s"]) for each in spans for use in each["uses"])
    for (node, _, ended_s), (other, began_s, _) in pairwise(uses):
        assert node != other or ended_s <= began_s


def require_accounted(job: Job) -> None:
    """The books of each epoch, after each step, against what the steps themselves say was trained and left out.

    A prompt is drawn once in an epoch: before one begins, the one before it was drawn whole.
    """
    epochs: dict[str, dict[str, int]] = {}
    done = {"prompts": 0, "filtered": 0}
    for line in (job.out / METRICS).read_text().splitlines():
        step = json.loads(line)
        epochs |= step["epochs"]
        for name in done:
            done[name] += step[name]
        assert step["prompts"] == job.settings.batching.prompts
        assert sum(account["trained"] for account in epochs.values()) == done["prompts"]
        assert sum(account["filtered"] for account in epochs.values()) == done["filtered"]
        assert not any(account["failed"] for account in epochs.values())
        waiting = sum(account["waiting"] for account in epochs.values())
        assert step["queued"] <= waiting <= step["queued"] + job.settings.batching.prompts
        *older, newest = sorted(epochs, key=int)
        assert all(epochs[epoch]["drawn"] == job.settings.task.prompts for epoch in older)
        assert epochs[newest]["drawn"] <= job.settings.task.prompts
        assert all(account["waiting"] >= 0 for account in epochs.values())


def require_replayed(folder: Path) -> None:
    """Once its controller has ended: what is written down leads to what it led to."""
    found = CliRunner().invoke(app, ["journal", "verify", "--folder", str(folder)])
    assert found.exit_code == 0, found.output


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_trains_and_whose_controller_is_killed_while_it_starts_trains_what_it_would_have(
    tmp_path: Path,
) -> None:
    job = Job(tiny(name="a", steps=3), tmp_path)
    kills = [Kill(1, Moment.TRAIN, Blow.KILL, 0.0), Kill(0, Moment.STARTING, Blow.CONTROLLER, 0.5)]
    with floor(tmp_path / "controller") as there:
        run(there, {job: kills})
        require_once(there, [job])
    require_accounted(job)
    assert left_behind(job.out) == job.alone()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_two_jobs_that_are_killed_with_their_controller_twenty_times_train_what_they_train_alone(
    seed: int, tmp_path: Path
) -> None:
    jobs = [Job(tiny(name=name, seed=number, **BIGGER), tmp_path) for number, name in enumerate(("a", "b"))]
    random = Random(seed)
    kills = {job: drawn(random, job.steps, EARLY[job.name], LATER[job.name]) for job in jobs}
    assert sum(map(len, kills.values())) == 20
    with floor(tmp_path / "controller") as there:
        run(there, kills)
        require_once(there, jobs)
        there.end()
    require_replayed(tmp_path / "controller")
    for job in jobs:
        require_accounted(job)
        assert left_behind(job.out) == job.alone()


PLAYED_S = 0.2
PLAYED = f"""
import os, time, rollmux
with rollmux.connect() as mux:
    for step in mux.steps(10**6):
        if os.path.exists("enough"):
            break
        began = time.monotonic()
        for kind in ("rollout", "train"):
            with mux.phase(kind):
                time.sleep({PLAYED_S})
        with open("steps", "a") as file:
            print(began, time.monotonic(), file=file)
"""


def played(name: str, folder: Path, attempts: int) -> dict[str, Any]:
    """A job whose phases take a known time and no core."""
    (folder / name).mkdir()
    phase = {"nodes": 1, "duration_s": PLAYED_S}
    command = [sys.executable, "-c", PLAYED]
    described = {"name": name, "slo": 3.0, "rollout": phase, "train": phase, "max_attempts": attempts}
    return {**described, "command": command, "folder": str(folder / name)}


# What a step of the neighbour's may take longer, on a machine that others use too.
NOISE, NOISE_S = 1.1, 0.02
SEEN_S = 1.0  # the end of a process is known (F3)
TICKS_S = 0.5  # leases are looked at four times a second, signs of life are written as often
BEGUN_S = 20.0  # a process that imports torch, where two cores have much to do
BACK_S = 5.0  # a controller that was killed; ready in 2 s on a quiet machine


def within_s(kill: Kill) -> float:
    """For how much longer than a step at most a kill may hold up the neighbour (F1, F3, L2).

    Besides the two are out of step when the other comes back: then one waits for a phase of the other's, once.
    """
    held_s = {
        Blow.KILL: SEEN_S,
        Blow.STALL: LEASE_S + DRAIN_S + TICKS_S,
        Blow.HANG: LEASE_S + DRAIN_S + TICKS_S,
        Blow.CONTROLLER: kill.for_s + BACK_S,
        Blow.WORKER: BEGUN_S,
    }
    return held_s[kill.blow] + PLAYED_S


@pytest.mark.slow
def test_a_neighbour_s_iterations_take_as_long_beside_a_job_that_is_killed_as_beside_one_that_is_not(
    tmp_path: Path,
) -> None:
    random, phases = Random(0), (Moment.ROLLOUT, Moment.TRAIN)
    blows = [*[Blow.KILL] * 7, Blow.HANG, Blow.HANG, Blow.STALL, Blow.CONTROLLER, Blow.CONTROLLER]
    random.shuffle(blows)
    kills = [
        Kill(20 + 5 * place, random.choice(phases), blow, random.uniform(0.0, PLAYED_S), for_s(random, blow))
        for place, blow in enumerate(blows)
    ]
    with floor(tmp_path / "controller") as there:
        there.submit(played("neighbour", tmp_path, attempts=1))
        there.submit(played("other", tmp_path, attempts=len(kills)))
        hand = Hand(there, "other", tmp_path / "other", kills)
        hand.start()
        hand.finish(LIMIT_S)
        time.sleep(1.0)
        for name in ("neighbour", "other"):
            (tmp_path / name / "enough").touch()
            there.until_ended(name)
            assert there.get(f"/v1/jobs/{name}")["reason"] == "finished"
    lines = (tmp_path / "neighbour" / "steps").read_text().splitlines()
    steps = [(float(began), float(ended)) for began, ended in map(str.split, lines)]
    require_undisturbed(steps, hand.done)


def require_undisturbed(steps: Sequence[tuple[float, float]], kills: Sequence[tuple[Kill, float]]) -> None:
    """By the median of all steps from the first kill on, and each that a kill has met by what that may cost."""
    first = kills[0][1]
    calm_s = median(ended - began for began, ended in steps[2:] if ended < first)
    after_s = median(ended - began for began, ended in steps if ended >= first)
    assert after_s <= NOISE * calm_s + NOISE_S, (calm_s, after_s)
    for kill, at in kills:
        met = [ended - began for began, ended in steps if began <= at + within_s(kill) and ended >= at]
        assert max(met) <= NOISE * calm_s + within_s(kill), (kill, calm_s, met)


KILLS, APART = 20, 3  # of workers, and the steps from one to the next


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "changed"),
    [
        (Moment.ROLLOUT, {"rollout": {"place": "beside", "workers": 2}}),
        (Moment.TRAIN, {"update": {"replicas": 2}}),
    ],
    ids=["rollout workers", "trainers"],
)
def test_a_job_whose_workers_are_killed_twenty_times_trains_what_it_would_have_and_its_neighbour_goes_on(
    moment: Moment, changed: dict[str, Any], tmp_path: Path
) -> None:
    random = Random(0)
    kills = [
        Kill(4 + APART * place, moment, Blow.WORKER, random.uniform(0.0, LASTS_S[moment])) for place in range(KILLS)
    ]
    settings = {**BIGGER, "steps": 8 + APART * KILLS, "model": {**BIGGER["model"], "dtype": "float64"}, **changed}
    beside: dict[bool, list[float]] = {}
    for disturbed in (False, True):
        folder = tmp_path / str(disturbed)
        folder.mkdir()
        job = Job(tiny(name="a", **settings), folder)
        with floor(folder / "controller") as there:
            phase = {"nodes": 1, "duration_s": PLAYED_S}
            there.submit({**played("neighbour", folder, attempts=1), "slo": 8.0})
            there.submit({**job.submission(attempts=1), "slo": 8.0, "rollout": phase, "train": phase})
            hand = Hand(there, "a", job.out, kills if disturbed else [])
            hand.start()
            there.until_ended("a")
            hand.finish()
            assert there.get("/v1/jobs/a")["reason"] == "finished", there.said("a")
            (folder / "neighbour" / "enough").touch()
            there.until_ended("neighbour")
        require_accounted(job)
        assert left_behind(job.out) == job.apart()
        lines = (folder / "neighbour" / "steps").read_text().splitlines()
        steps = [(float(began), float(ended)) for began, ended in map(str.split, lines)]
        beside[disturbed] = sorted(ended - began for began, ended in steps)
        for kill, at in hand.done:
            met = [ended - began for began, ended in steps if began <= at + within_s(kill) and ended >= at]
            assert max(met) <= max(beside[False]) + within_s(kill), (kill, met)
    assert median(beside[True]) <= NOISE * median(beside[False]) + PLAYED_S, beside
