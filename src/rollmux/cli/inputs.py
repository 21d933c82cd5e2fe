"""What commands read: workloads and setups, by name or from files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import typer

from rollmux.cli.refusals import refusals
from rollmux.sim.generate import GENERATORS
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.setup_file import read_setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import read_workload

T = TypeVar("T")


def load_workload(name_or_path: str, seed: int) -> Workload:
    """The workload of this generator with this seed, or of this file. Raises BadParameter if it is neither."""
    if name_or_path in GENERATORS:
        return GENERATORS[name_or_path](seed)
    return _read("workload", name_or_path, GENERATORS, read_workload)


def load_setup(name_or_path: str) -> Setup:
    """The shipped setup of this name, or the setup in this file. Raises BadParameter if it is neither."""
    return SETUPS.get(name_or_path) or _read("setup", name_or_path, SETUPS, read_setup)


def _read(what: str, text: str, known: Iterable[str], read: Callable[[Path], T]) -> T:
    path = Path(text)
    with refusals():
        if path.is_file():
            return read(path)
    raise typer.BadParameter(f"there is no {what} or file {text!r}; choose {', '.join(known)}, or a file")
