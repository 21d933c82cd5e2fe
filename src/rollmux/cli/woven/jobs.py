"""The two jobs that the demo runs: the settings of each, and the command by which the controller starts it.

`train` jobs learn to multiply, with the reference trainer. `played` ones stand in where torch is missing: their
responses have lengths and take time, and nothing is learnt.
"""

import json
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from rollmux.cli.woven.floor import ROLLMUX
from rollmux.trainer.job_file import written_job
from rollmux.trainer.settings import Batching, JobFile, Model, Optimiser, Rollout, Sampling, Task, Warmup

# The stated time of a phase that was never measured: a job that is alone is in nobody's way, however long it takes.
UNKNOWN_S = 10.0
SLO_ALONE, SLO_WOVEN = 10.0, 1.2


class Engine(Enum):
    """What generates the responses."""

    SLOTS = "slots"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of each phase, as a job's owner states them."""

    rollout_s: float = UNKNOWN_S
    train_s: float = UNKNOWN_S


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job, the same in every run: what it does depends on its settings alone."""

    settings: JobFile
    engine: Engine

    @property
    def name(self) -> str:
        return self.settings.name

    def submission(self, folder: Path, phases: Phases, slo: float) -> dict[str, Any]:
        """The job as it is submitted. Everything that the job reads and writes is in the folder."""
        folder.mkdir(parents=True)
        file = folder / "job.yaml"
        file.write_text(written_job(self.settings), encoding="utf-8")
        out = folder / "out"
        commands = {
            Engine.SLOTS: [*ROLLMUX, "train", str(file), "--out", str(out), "--resume", "--json"],
            Engine.REPLAY: [sys.executable, "-m", "rollmux.cli.woven.played", str(file), str(out)],
        }
        return {
            "name": self.name,
            "slo": slo,
            "max_attempts": 1,  # a second attempt would be in the measured times
            "rollout": {"nodes": 1, "duration_s": phases.rollout_s},
            "train": {"nodes": 1, "duration_s": phases.train_s},
            "command": commands[self.engine],
            "folder": str(folder),
            "env": {"OMP_NUM_THREADS": "1"},  # a node is a core
        }


def jobs(engine: Engine, steps: int) -> tuple[DemoJob, ...]:
    """Two jobs of one kind with different seeds, before they are fitted to a machine."""
    first = JobFile(
        name="sums-3",
        seed=3,
        steps=steps,
        model=Model(hidden=128, layers=3, heads=4),
        task=Task(largest=9, median=4.0, spread=0.4, longest=10, careless=0.7),
        warmup=Warmup(steps=200, rate=3e-3),
        batching=Batching(mode="sync", prompts=24, responses=8),
        sampling=Sampling(max_tokens=80),
        optimiser=Optimiser(rate=5e-4),
        rollout=Rollout(running=192, room_tokens=17000, max_length=88),
    )
    second = replace(first, name="sums-5", seed=5)
    return DemoJob(first, engine), DemoJob(second, engine)


def rewards(out: Path) -> tuple[float, ...]:
    """The reward of each step that the job has made, from the file that the job writes."""
    path = out / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(json.loads(line)["reward"] for line in lines)
