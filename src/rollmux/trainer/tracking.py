"""Other people's trackers for `rollmux train --track`: each step as flat numbers, such as `reward` and `update/loss`.

Some go by their names; `module:function` is called with the step and its numbers. A tracker begins with the first step
that it is told, so that a process which follows another one has none. Invariant: a tracker ends no run, and prints
nothing among what the run prints. What it raises is told, and it is called no more.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple

from rollmux.checks import Checks, one_of
from rollmux.trainer.metrics import Record
from rollmux.trainer.settings import JobFile

TENSORBOARD = "tensorboard"

log = logging.getLogger("rollmux")


class Begun(NamedTuple):
    """How it is told a step, and its end."""

    tell: Callable[[int, dict[str, float]], object]
    end: Callable[[], object] = lambda: None


class Tracking:
    """A tracker with this name. InvalidSpec where there is none."""

    def __init__(self, name: str, job: JobFile, folder: Path) -> None:
        self._name, self._begun = name, Begun(self._first)
        self._begin = _own(name) if ":" in name else partial(_known(name), job, folder)
        self._is_well = True

    def __call__(self, step: int, found: Record) -> None:
        self._tried(lambda: self._begun.tell(step, flat(found)))

    def close(self) -> None:
        self._tried(self._begun.end)

    def _first(self, step: int, numbers: dict[str, float]) -> None:
        self._begun = self._begin(step)
        self._begun.tell(step, numbers)

    def _tried(self, call: Callable[[], object]) -> None:
        if not self._is_well:
            return
        try:
            with redirect_stdout(sys.stderr):
                call()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever somebody else's code raises
            self._is_well = False
            told = f"{type(error).__name__}: {error}"
            log.warning(
                "the tracker %s has failed (%s): the run goes on, and it is told nothing more", self._name, told
            )


def flat(found: Record) -> dict[str, float]:
    """The numbers of a step. Of epochs the newest one's number alone, and of failures the sum: others are ever new."""
    told = {name: value for name, value in found.items() if name not in ("step", "kind", "epochs", "failures")}
    told |= {"epoch": max(map(int, found["epochs"]), default=0), "failures": sum(found["failures"].values())}
    return dict(_leaves(told, "/"))


def _leaves(values: Mapping[str, Any], between: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((name + between + inner, leaf) for inner, leaf in _leaves(value, between))
        else:
            yield name, value


def _own(name: str) -> Callable[[int], Begun]:
    """A function of the user's, in a module that Python finds, or that is in the folder where the command was given."""
    module, _, function = name.partition(":")
    limit = "a module and a function in it"
    if "" not in sys.path:
        sys.path.append("")
    try:
        with redirect_stdout(sys.stderr):
            tell = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise _refusal(name, limit, f"mend its name ({error})") from error
    except (Exception, SystemExit) as error:
        told = f"mend the module, which raises {type(error).__name__}: {error}"
        raise _refusal(name, "a module that can be imported", told) from error
    if not callable(tell):
        raise _refusal(name, limit, f"this is a {type(tell).__name__}")
    if iscoroutinefunction(tell):
        raise _refusal(name, limit, "nobody awaits it: write def instead of async def")
    return lambda step: Begun(tell)


def _known(name: str) -> Callable[[JobFile, Path, int], Begun]:
    begins = {TENSORBOARD: _tensorboard, "wandb": _like_wandb, "trackio": _like_wandb, "mlflow": _mlflow}
    if name not in begins:
        limit, remedy = one_of(begins, name)
        raise _refusal(name, f"{limit}, or module:function", remedy)
    try:
        module = import_module("torch.utils.tensorboard" if name == TENSORBOARD else name)
    except ImportError as error:
        raise _refusal(name, "a tracker that is installed", f"pip install {name}") from error
    return partial(begins[name], module)


def _refusal(name: str, limit: str, remedy: str) -> Exception:
    return Checks("options").refusal("track", name, limit, remedy)


def _settings(job: JobFile) -> dict[str, Any]:
    return dict(_leaves(asdict(job), "."))


def _name(folder: Path) -> str:
    """Of the run, also where its folder is `.`."""
    return folder.resolve().name


def _tensorboard(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    writer = module.SummaryWriter(folder / TENSORBOARD, purge_step=step)  # later ones did not count

    def tell(step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Begun(tell, writer.close)


def _like_wandb(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    own = module.__name__.upper()
    project, name = os.environ.get(f"{own}_PROJECT") or job.name, os.environ.get(f"{own}_NAME") or _name(folder)
    here = {"dir": folder} if own == "WANDB" else {}
    module.init(project=project, name=name, config=_settings(job), **here)
    return Begun(lambda step, numbers: module.log(numbers, step=step), module.finish)


def _mlflow(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    if not os.environ.get("MLFLOW_EXPERIMENT_NAME"):
        module.set_experiment(job.name)
    module.start_run(run_name=_name(folder))
    module.log_params(_settings(job))
    return Begun(lambda step, numbers: module.log_metrics(numbers, step=step), module.end_run)
