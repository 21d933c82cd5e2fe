"""The reference job learns: what a careless model is worth rises by reinforcement, step by step, alone."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rollmux.trainer.job import train
from rollmux.trainer.job_file import read_job, read_job_file
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.settings import JobFile
from tests.trainer.jobs import alone

EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "arithmetic.yaml"
SMALL: dict[str, Any] = {
    "steps": 25,
    "model": {"hidden": 48, "layers": 2, "heads": 4},
    "task": {"prompts": 60, "largest": 4, "median": 2, "spread": 0.6, "longest": 8, "careless": 0.8},
    "warmup": {"steps": 80, "batch": 16, "rate": 8e-3},
    "batching": {"prompts": 8, "responses": 8},
    "sampling": {"max_tokens": 60},
    "optimiser": {"rate": 2e-3},
    "rollout": {"max_length": 80, "room_tokens": 16384},
}

SEEDS = 4


def rewards(job: JobFile, folder: Path) -> list[float]:
    train(job, folder, alone())
    return [json.loads(line)["reward"] for line in (folder / METRICS).read_text().splitlines()]


def test_the_reward_of_a_small_model_rises_within_seconds(tmp_path: Path) -> None:
    found = rewards(read_job(SMALL), tmp_path)
    assert fmean(found[-5:]) > fmean(found[:5]) + 0.15, found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "reinforce"])
@pytest.mark.parametrize("mode", ["tail", "sync"])
def test_every_algorithm_learns_in_every_mode(algorithm: str, mode: str, tmp_path: Path) -> None:
    """By the mean of some seeds: one run of so few steps may end in a dip, on one processor and not on another."""
    job = {**SMALL, "objective": {"algorithm": algorithm}, "batching": {**SMALL["batching"], "mode": mode}}
    runs = [rewards(read_job({**job, "seed": seed}), tmp_path / str(seed)) for seed in range(SEEDS)]
    rises = [fmean(found[-5:]) - fmean(found[:5]) for found in runs]
    assert fmean(rises) > 0.1, (rises, runs)


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path) -> None:
    found = rewards(read_job_file(EXAMPLE), tmp_path)
    assert fmean(found[-10:]) > fmean(found[:10]) + 0.2, found
