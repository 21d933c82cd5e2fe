"""Trackers hear flat numbers, begin with the first step that is told, and neither end a run nor hold it up."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.trainer import tracking
from rollmux.trainer.tracking import Tracking, flat
from tests.trainer.jobs import tiny
from tests.waiting import until

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
        "from threading import Event",
        "may_go_on = Event()",
        "def tell(step, numbers): heard.append((step, numbers))",
        "def hangs(step, numbers): may_go_on.wait(60.0); heard.append(step)",
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


def told(name: str, *steps: int) -> None:
    """A run of these steps."""
    with tracked(name) as tracking:
        for step in steps:
            tracking(step, FOUND)


def test_a_function_of_ones_own_hears_each_step(own: str) -> None:
    told(f"{own}:tell", *range(4, 50))
    assert heard() == [(step, NUMBERS) for step in range(4, 50)]


@pytest.mark.parametrize(("name", "raised"), [("fails", "RuntimeError: no network"), ("leaves", "SystemExit: no key")])
def test_one_that_fails_is_told_of_once_and_called_no_more(
    own: str, name: str, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rollmux"):
        told(f"{own}:{name}", 4, 5)
    assert heard() == [4]
    (said,) = caplog.messages
    assert f"{own}:{name} has failed ({raised})" in said


def test_one_that_hangs_holds_nobody_up_and_what_it_has_not_heard_is_said(
    own: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "END_S", 0.01)
    with caplog.at_level(logging.WARNING, "rollmux"):
        told(f"{own}:hangs", 4, 5, 6)
    assert heard() == []
    sys.modules["own_tracker"].may_go_on.set()
    assert caplog.messages == [
        f"the tracker {own}:hangs has not come to its end in 0.01 s: it is not waited for",
        f"the tracker {own}:hangs has not heard 3 of 3 steps",
    ]


def test_one_that_is_too_far_behind_misses_steps_until_it_has_caught_up(
    own: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "MOST_BEHIND", 2)
    with caplog.at_level(logging.WARNING, "rollmux"), tracked(f"{own}:hangs") as found:
        found(0, FOUND)
        until(lambda: not found._next.qsize())
        for step in range(1, 5):
            found(step, FOUND)
        sys.modules["own_tracker"].may_go_on.set()
        until(lambda: not found._next.qsize())
        found(5, FOUND)
    assert heard() == [0, 1, 2, 5]
    assert caplog.messages == [
        f"the tracker {own}:hangs is 2 steps behind: it is not told step 3",
        f"the tracker {own}:hangs has not heard 2 of 6 steps",
    ]


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
    told(name)
    assert called == []


@pytest.mark.parametrize(
    ("name", "here", "how"), [("wandb", {"dir": Path("runs/first")}, {"exit_code": 0}), ("trackio", {}, {})]
)
def test_a_run_of_weights_and_biases_has_the_jobs_name_and_its_settings(
    called: Calls, name: str, here: dict[str, Path], how: dict[str, int]
) -> None:
    told(name, 4)
    (_, began), *rest = called
    config = began.pop("config")
    assert began == {"project": "sums", "name": "first", **here}
    assert config["optimiser.rate"] == 1e-4
    assert config["name"] == "sums"
    assert rest == [("log", NUMBERS, {"step": 4}), ("finish", how)]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("wandb", ("finish", {"exit_code": 1})),
        ("trackio", ("finish", {})),
        ("mlflow", ("end_run", "FAILED", {})),
        ("tensorboard", ("close",)),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_run_that_fails_has_failed_for_its_trackers(
    called: Calls, name: str, last: tuple[Any, ...], error: type[BaseException]
) -> None:
    def fails(step: int) -> None:
        with tracked(name) as found:
            found(step, FOUND)
            raise error

    with pytest.raises(error):
        fails(4)
    assert called[-1] == last


def test_what_the_environment_says_of_a_run_goes_first(called: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "maths")
    monkeypatch.setenv("WANDB_NAME", "try 3")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "maths")
    for name in ("wandb", "mlflow"):
        told(name, 4)
    assert [call[-1]["project"] for call in called if call[0] == "init"] == ["maths"]
    assert [call[-1]["name"] for call in called if call[0] == "init"] == ["try 3"]
    assert "set_experiment" not in {call[0] for call in called}


@pytest.mark.parametrize(("name", "begins", "by"), [("wandb", "init", "name"), ("mlflow", "start_run", "run_name")])
def test_a_run_in_the_folder_where_one_is_has_that_folders_name(
    called: Calls, name: str, begins: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Tracking(name, tiny(), Path(".")) as found:
        found(4, FOUND)
    assert [call[-1][by] for call in called if call[0] == begins] == [tmp_path.name]


def test_mlflow_hears_settings_then_steps(called: Calls) -> None:
    told("mlflow", 4)
    assert [call[0] for call in called] == ["set_experiment", "start_run", "log_params", "log_metrics", "end_run"]
    assert called[-1] == ("end_run", "FINISHED", {})
    assert called[0] == ("set_experiment", "sums", {})
    assert called[1] == ("start_run", {"run_name": "first"})
    assert called[2][1]["optimiser.rate"] == 1e-4
    assert called[3] == ("log_metrics", NUMBERS, {"step": 4})


def test_tensorboard_forgets_what_is_told_again(called: Calls) -> None:
    told("tensorboard", 4)
    assert called[0] == ("writer", Path("runs/first/tensorboard"), 4)
    assert {call[1:] for call in called if call[0] == "scalar"} == {(*each, 4) for each in NUMBERS.items()}
    assert called[-2:] == [("flush",), ("close",)]
