"""Other people's trackers for `rollmux train --track`: each step as flat numbers, such as `reward` and `update/loss`.

Some trackers are known by name; `module:function` is called with the step and its numbers. A tracker begins with the
first step that it is told, so a process that follows the leader has none. Invariant: a tracker ends no run and holds
none up. It hears all steps in order, in a thread of its own; the log says how many it has not heard in the end.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self

from rollmux.checks import Checks, one_of
from rollmux.trainer.metrics import Record
from rollmux.trainer.settings import JobFile

TENSORBOARD = "tensorboard"
# A tracker that is so many steps behind misses steps until it has caught up a little.
MOST_BEHIND = 1000
# Once the run is over a tracker has so long for the steps that it has not heard yet, and for its own end.
END_S = 30.0

log = logging.getLogger("rollmux")


class Begun(NamedTuple):
    """A tracker's functions that are told a step, and the end of the run (whether it has failed)."""

    tell: Callable[[int, dict[str, float]], object]
    end: Callable[[bool], object] = lambda failed: None


class Tracking:
    """A tracker with this name, from the first step that it is told to the end of the `with`. InvalidSpec if there is
    no such tracker.
    """

    def __init__(self, name: str, job: JobFile, folder: Path) -> None:
        self._name, self._begin = name, _own(name) if ":" in name else partial(_known(name), job, folder)
        self._thread = Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._next = SimpleQueue[tuple[int, dict[str, float]] | None]()
        self._told = self._heard = 0
        self._is_behind = self._has_failed = False
        self._run_failed = False

    def __call__(self, step: int, found: Record) -> None:
        if self._has_failed:
            return
        if not self._told:
            self._thread.start()
        self._told += 1
        was_behind, self._is_behind = self._is_behind, self._next.qsize() >= MOST_BEHIND
        if not self._is_behind:
            self._next.put((step, flat(found)))
        elif not was_behind:
            log.warning("the tracker %s is %d steps behind: it is not told step %d", self._name, MOST_BEHIND, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._told:
            return
        self._run_failed = error is not None
        self._next.put(None)
        self._thread.join(END_S)
        if self._thread.is_alive():
            log.warning("the tracker %s has not come to its end in %g s: it is not waited for", self._name, END_S)
        if (missing := self._told - self._heard) and not self._has_failed:
            log.warning("the tracker %s has not heard %d of %d steps", self._name, missing, self._told)

    def _run(self) -> None:
        begun: Begun | None = None
        try:
            while (told := self._next.get()) is not None:
                begun = begun or self._begin(told[0])
                begun.tell(*told)
                self._heard += 1
            if begun is not None:
                begun.end(self._run_failed)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a tracker may raise anything
            self._has_failed = True
            told_of = f"{type(error).__name__}: {error}"
            log.warning(
                "the tracker %s has failed (%s): the run goes on, and it is told nothing more", self._name, told_of
            )


def flat(found: Record) -> dict[str, float]:
    """The numbers of a step. Epochs are one number, the newest's, and failures their sum: their names change."""
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
    """The name of the run's folder, even if it is given as `.`."""
    return folder.resolve().name


def _tensorboard(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    writer = module.SummaryWriter(folder / TENSORBOARD, purge_step=step)  # removes later steps, which did not count

    def tell(step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Begun(tell, lambda failed: writer.close())


def _like_wandb(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    own = module.__name__.upper()
    project, name = os.environ.get(f"{own}_PROJECT") or job.name, os.environ.get(f"{own}_NAME") or _name(folder)
    here = {"dir": folder} if own == "WANDB" else {}
    module.init(project=project, name=name, config=_settings(job), **here)

    def end(failed: bool) -> None:
        module.finish(**{"exit_code": int(failed)} if own == "WANDB" else {})  # trackio knows no failed runs

    return Begun(lambda step, numbers: module.log(numbers, step=step), end)


def _mlflow(module: Any, job: JobFile, folder: Path, step: int) -> Begun:
    if not os.environ.get("MLFLOW_EXPERIMENT_NAME"):
        module.set_experiment(job.name)
    module.start_run(run_name=_name(folder))
    module.log_params(_settings(job))
    return Begun(
        lambda step, numbers: module.log_metrics(numbers, step=step),
        lambda failed: module.end_run("FAILED" if failed else "FINISHED"),
    )
