"""`rollmux train`: what it prints, what it refuses."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.trainer.metrics import METRICS
from tests.trainer.jobs import TINY

runner = CliRunner()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.delenv("ROLLMUX_URL", raising=False)


def job(folder: Path, **changed: object) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**TINY, "warmup": {"steps": 2}, **changed}), encoding="utf-8")
    return str(path)


def test_each_step_is_a_line_and_the_folder_has_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = runner.invoke(app, ["train", job(tmp_path), "--out", str(out), "--steps", "2"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["1/2", "2/2"]
    assert all("reward" in line for line in lines[:2])
    assert {path.name for path in out.iterdir()} >= {METRICS, "times.jsonl", "checkpoints", "model"}


def test_json_prints_what_each_step_came_to_and_resume_goes_on_from_there(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--json", "--resume", "--steps"]
    first, second = runner.invoke(app, [*call, "1"]), runner.invoke(app, [*call, "3"])
    found = [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]
    assert [each["step"] for each in found] == [0, 1, 2]
    assert set(found[0]["seconds"]) == {"rollout", "train"}
    kept = [json.loads(line) for line in (tmp_path / "out" / METRICS).read_text().splitlines()]
    assert kept == [{name: value for name, value in each.items() if name != "seconds"} for each in found]


def test_a_wrong_file_is_refused_with_the_path_of_what_is_wrong(tmp_path: Path) -> None:
    done = runner.invoke(app, ["train", job(tmp_path, batchin={}), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "job.batchin" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    done = runner.invoke(app, ["train", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2


def test_a_folder_that_holds_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    call = ["train", job(tmp_path), "--out", str(tmp_path / "out"), "--steps", "1"]
    assert runner.invoke(app, call).exit_code == 0
    again = runner.invoke(app, call)
    assert again.exit_code == 1
    assert again.stderr.startswith("Error: the folder holds a run")
