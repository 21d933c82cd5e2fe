"""What commands read: workloads and setups, by name or from files."""

from pathlib import Path

import typer

from rollmux.cli.refusals import refusals
from rollmux.sim.generate import GENERATORS
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.setup_file import read_setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.workload import Workload
from rollmux.sim.workload_file import read_workload


def load_workload(name_or_path: str, seed: int) -> Workload:
    """The workload of this generator with this seed, or of this file; BadParameter where it is neither."""
    if name_or_path in GENERATORS:
        return GENERATORS[name_or_path](seed)
    path = Path(name_or_path)
    if not _is_file(path):
        choice = f"{', '.join(GENERATORS)}, or a file"
        raise typer.BadParameter(f"there is no workload or file {name_or_path!r}; choose {choice}")
    with refusals():
        return read_workload(path)


def _is_file(path: Path) -> bool:
    with refusals():
        return path.is_file()


def load_setup(name_or_path: str) -> Setup:
    """The shipped setup of this name, or that of this file; BadParameter where it is neither."""
    if name_or_path in SETUPS:
        return SETUPS[name_or_path]
    path = Path(name_or_path)
    if not _is_file(path):
        choice = f"{', '.join(SETUPS)}, or a file"
        raise typer.BadParameter(f"there is no setup or file {name_or_path!r}; choose {choice}")
    with refusals():
        return read_setup(path)
