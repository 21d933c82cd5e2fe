"""A job with an engine of its own: what it learns is the same alone and in company, and its state waits on the host."""

import os
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES, alone, command, controller, gain
from tests.forking import Play, begun

SCRIPT = EXAMPLES / "own_engine" / "job.py"
SEEDS = {"a": "1", "b": "2"}


def test_two_copies_whose_state_comes_and_goes_learn_what_each_learns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    expected = {
        name: alone(SCRIPT, name, seed, str(memory), said=tmp_path / f"{name}-alone") for name, seed in SEEDS.items()
    }
    assert gain(expected["a"][:-1]) > 1.5
    assert expected["a"][:-1] != expected["b"][:-1]
    with controller(tmp_path / "controller", monkeypatch) as board:
        command("drain", "rollout-0")  # so that neither is done before the other has begun
        copies = {name: woven(tmp_path, name, seed, memory) for name, seed in SEEDS.items()}
        board.wait(lambda jobs: len(jobs) == len(SEEDS))
        command("undrain", "rollout-0")
        learnt = {name: copy.printed() for name, copy in copies.items()}
        assert {view["reason"] for view in board.jobs()} == {"finished"}
    assert {name: said[:-1] for name, said in learnt.items()} == {name: said[:-1] for name, said in expected.items()}
    assert {wakes(said) for said in expected.values()} == {1}
    assert all(wakes(said) > 1 for said in learnt.values())
    assert {path.name for path in memory.iterdir()} == {"limit", "lock"}, "all host memory was given back"


def woven(folder: Path, name: str, seed: str, memory: Path) -> Play:
    return begun(SCRIPT, name, seed, str(memory), said=folder / name, env=dict(os.environ))


def wakes(said: list[str]) -> int:
    return int(said[-1].split()[1].rstrip(","))
