"""Rollout workers in processes of their own: a run leaves the bytes that it leaves with all of them inside."""

import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rollmux.runtime.engine.beside import EngineBeside
from rollmux.trainer.job import train
from rollmux.trainer.workers import Workers
from tests.trainer.jobs import alone, left_behind, tiny

# In double precision sums that are rounded otherwise beside other company show nowhere.
JOB: dict[str, Any] = {"steps": 3, "model": {"dtype": "float64"}}


def leaves(folder: Path, **changed: Any) -> tuple[bytes, ...]:
    train(tiny(**{**JOB, **changed}), folder, alone())
    return left_behind(folder)


def test_a_run_with_workers_beside_it_leaves_what_it_leaves_with_one_inside(tmp_path: Path) -> None:
    inside = leaves(tmp_path / "inside")
    assert leaves(tmp_path / "beside", rollout={"workers": 2, "place": "beside"}) == inside


def test_a_run_whose_workers_are_killed_over_and_over_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, step, kills = Random(0), Workers.step, list[int]()

    def kills_some(self: Workers) -> Any:
        working = [engine.pid for engine in self.engines if isinstance(engine, EngineBeside) and engine.unfinished]
        if len(kills) < 8 and rng.random() < 0.1 and (pids := [pid for pid in working if pid is not None]):
            kills.append(rng.choice(pids))
            os.kill(kills[-1], signal.SIGKILL)
        return step(self)

    inside = leaves(tmp_path / "inside", steps=6)
    monkeypatch.setattr(Workers, "step", kills_some)
    assert leaves(tmp_path / "killed", steps=6, rollout={"workers": 2, "place": "beside"}) == inside
    assert len(kills) > 4
