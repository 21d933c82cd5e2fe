"""Training jobs that take a second: a tiny model, short answers, a few steps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

import rollmux
from rollmux.client import Mux
from rollmux.trainer import parts
from rollmux.trainer.job_file import MODEL, read_job
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.settings import JobFile
from rollmux.trainer.settings import Task as TaskSettings
from rollmux.trainer.summary import SUMMARY
from rollmux.trainer.tasks import Arithmetic, build_task
from tests.trainer.scores import Score, Scored

TINY: Mapping[str, Any] = {
    "steps": 6,
    "model": {"hidden": 16, "layers": 1, "heads": 2},
    "task": {"prompts": 40, "largest": 5, "median": 2, "spread": 0.5, "longest": 5},
    "warmup": {"steps": 5, "batch": 8, "rate": 1e-2},
    "batching": {"prompts": 3, "responses": 4, "eta_prompts": 1.34, "race": "generated"},
    "sampling": {"max_tokens": 30},
    "rollout": {"max_length": 48, "room_tokens": 4096},
}


def tiny(**changed: Any) -> JobFile:
    """The tiny job with other values, of whole sections or within them."""
    data: dict[str, Any] = dict(TINY)
    for name, value in changed.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return read_job(data)


def alone() -> Mux:
    """No controller, whatever the environment says."""
    return rollmux.connect(url="")


def left_behind(folder: Path) -> tuple[bytes, ...]:
    """All that must be equal where two runs are: what each step came to, weights, what became of prompts."""
    return tuple((folder / name).read_bytes() for name in (METRICS, f"{MODEL}/model.safetensors", SUMMARY))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def require_equal_but_for_rounding(one: tuple[bytes, ...], two: tuple[bytes, ...], rel: float = 1e-9) -> None:
    """Of what two runs in doubles left behind: the same responses and prompts, and gradients added in another order."""
    (metrics, weights, counted), (others, other_weights, other_counted) = one, two
    assert other_counted == counted
    for line, other in zip(metrics.splitlines(), others.splitlines(), strict=True):
        mine, theirs = json.loads(line), json.loads(other)
        assert theirs.pop("update") == pytest.approx(mine.pop("update"), rel=rel, abs=rel / 1000)
        assert theirs == mine
    tensors, other_tensors = load(weights), load(other_weights)
    assert other_tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(other_tensors[name], tensor, rtol=100 * rel, atol=rel)


def score_by(by: Score, patched: pytest.MonkeyPatch) -> None:
    """Every run's pool asks this function from now on."""

    def built(settings: TaskSettings, seed: int, model: str) -> Scored:
        plain = build_task(settings, seed, model)
        assert isinstance(plain, Arithmetic)
        return Scored(by, plain)

    patched.setattr(parts, "build_task", built)
