"""Trackers hear flat numbers, begin with the first step that is told, and end no run whatever they do."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.trainer.tracking import Tracking, flat
from tests.trainer.jobs import tiny

FOUND: dict[str, Any] = {
    "step": 4,
    "kind": "short",
    "reward": 0.5,
    "failures": {"score:exact: a ValueError": 2, "code": 1},
    "epochs": {"9": {"drawn": 3}, "10": {"drawn": 1}},
    "update": {"loss": -0.1, "tokens": 7},
    "seconds": {"rollout": 1.5},
}
NUMBERS = {"reward": 0.5, "epoch": 10, "failures": 3, "update/loss": -0.1, "update/tokens": 7, "seconds/rollout": 1.5}

Calls = list[tuple[Any, ...]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is called of modules that stand for the real ones."""
    calls: Calls = []
    for variable in ("WANDB_PROJECT", "WANDB_NAME", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)

    def module(name: str, *functions: str) -> None:
        def noting(function: str) -> Any:
            return lambda *given, **named: calls.append((function, *given, named))

        found = ModuleType(name)
        for function in functions:
            setattr(found, function, noting(function))
        monkeypatch.setitem(sys.modules, name, found)

    module("wandb", "init", "log", "finish")
    module("trackio", "init", "log", "finish")
    module("mlflow", "set_experiment", "start_run", "log_params", "log_metrics", "end_run")

    class Writer:
        def __init__(self, folder: Path, purge_step: int) -> None:
            calls.append(("writer", folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append(("scalar", name, value, step))

        def flush(self) -> None:
            calls.append(("flush",))

        def close(self) -> None:
            calls.append(("close",))

    board: Any = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    return calls


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the user's, which is in the folder where the command is given."""
    lines = [
        "heard = []",
        "def tell(step, numbers): heard.append((step, numbers)); print('told')",
        "def fails(step, numbers): heard.append(step); raise RuntimeError('no network')",
        "def leaves(step, numbers): heard.append(step); raise SystemExit('no key')",
        "async def waits(step, numbers): heard.append(step)",
        "number = 3",
    ]
    (tmp_path / "own_tracker.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "own_tracker", raising=False)
    return "own_tracker"


def heard() -> list[Any]:
    found: list[Any] = sys.modules["own_tracker"].heard
    return found


def tracked(name: str) -> Tracking:
    return Tracking(name, tiny(name="sums", optimiser={"rate": 1e-4}), Path("runs") / "first")


def test_numbers_are_flat_and_of_things_that_come_again() -> None:
    assert flat(FOUND) == NUMBERS


def test_a_function_of_ones_own_hears_each_step(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    tracking = tracked(f"{own}:tell")
    tracking(4, FOUND)
    tracking(5, FOUND)
    tracking.close()
    assert heard() == [(4, NUMBERS), (5, NUMBERS)]
    assert capsys.readouterr() == ("", "told\n" * 2)  # the run's own lines may be read by a program


@pytest.mark.parametrize(("name", "raised"), [("fails", "RuntimeError: no network"), ("leaves", "SystemExit: no key")])
def test_one_that_fails_is_told_of_once_and_called_no_more(
    own: str, name: str, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = tracked(f"{own}:{name}")
    with caplog.at_level(logging.WARNING, "rollmux"):
        tracking(4, FOUND)
        tracking(5, FOUND)
        tracking.close()
    assert heard() == [4]
    (said,) = caplog.messages
    assert f"{own}:{name} has failed ({raised})" in said


@pytest.mark.parametrize(
    "name",
    ["own_tracker:nothing", "no_such_module:tell", "own_tracker:number", "own_tracker:waits", ":tell", "wandbb"],
)
def test_what_is_no_tracker_is_refused_before_anything_is_trained(own: str, name: str) -> None:
    with pytest.raises(InvalidSpec, match="track"):
        tracked(name)


@pytest.mark.parametrize("content", ["def (:", "raise ValueError('no key')", "raise SystemExit('no key')", "1 / 0"])
def test_a_module_that_cant_be_imported_is_refused_with_what_it_raises(
    own: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tracker.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidSpec, match=r"broken_tracker:tell.*mend the module, which raises [A-Z]"):
        tracked("broken_tracker:tell")


def test_one_that_is_not_installed_is_refused_with_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(InvalidSpec, match="pip install trackio"):
        tracked("trackio")


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_whoever_is_told_nothing_begins_nothing(called: Calls, name: str) -> None:
    tracked(name).close()
    assert called == []


@pytest.mark.parametrize(("name", "here"), [("wandb", {"dir": Path("runs/first")}), ("trackio", {})])
def test_a_run_of_weights_and_biases_has_the_jobs_name_and_its_settings(
    called: Calls, name: str, here: dict[str, Path]
) -> None:
    tracking = tracked(name)
    tracking(4, FOUND)
    tracking.close()
    (_, began), *rest = called
    config = began.pop("config")
    assert began == {"project": "sums", "name": "first", **here}
    assert config["optimiser.rate"] == 1e-4
    assert config["name"] == "sums"
    assert rest == [("log", NUMBERS, {"step": 4}), ("finish", {})]


def test_what_the_environment_says_of_a_run_goes_first(called: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "maths")
    monkeypatch.setenv("WANDB_NAME", "try 3")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "maths")
    for name in ("wandb", "mlflow"):
        tracked(name)(4, FOUND)
    assert [call[-1]["project"] for call in called if call[0] == "init"] == ["maths"]
    assert [call[-1]["name"] for call in called if call[0] == "init"] == ["try 3"]
    assert "set_experiment" not in {call[0] for call in called}


@pytest.mark.parametrize(("name", "begins", "by"), [("wandb", "init", "name"), ("mlflow", "start_run", "run_name")])
def test_a_run_in_the_folder_where_one_is_has_that_folders_name(
    called: Calls, name: str, begins: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Tracking(name, tiny(), Path("."))(4, FOUND)
    assert [call[-1][by] for call in called if call[0] == begins] == [tmp_path.name]


def test_mlflow_hears_settings_then_steps(called: Calls) -> None:
    tracking = tracked("mlflow")
    tracking(4, FOUND)
    tracking.close()
    assert [call[0] for call in called] == ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"]
    assert called[0] == ("set_experiment", "sums", {})
    assert called[1] == ("start_run", {"run_name": "first"})
    assert called[2][1]["optimiser.rate"] == 1e-4
    assert called[3] == ("log_metrics", NUMBERS, {"step": 4})


def test_tensorboard_forgets_what_is_told_again(called: Calls) -> None:
    tracking = tracked("tensorboard")
    tracking(4, FOUND)
    tracking.close()
    assert called[0] == ("writer", Path("runs/first/tensorboard"), 4)
    assert {call[1:] for call in called if call[0] == "scalar"} == {(*each, 4) for each in NUMBERS.items()}
    assert called[-2:] == [("flush",), ("close",)]
