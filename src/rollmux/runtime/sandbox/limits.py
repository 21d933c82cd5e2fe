"""What one run may take, and what is run.

Invariant: every limit is a positive number, so every run ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks
from rollmux.errors import InvalidSpec, Problem

MIB = 1 << 20
BOM = "\ufeff"  # Python drops it at the beginning of a file, but not of a text


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run and of all the processes that it starts, together.

    `address_bytes` limits the address space of each single process: beyond it an allocation fails,
    while the tree's limit ends the run. None: no such limit, for runtimes that reserve far more than they use (node,
    java, Go).
    """

    cpu_s: float = 30.0
    wall_s: float = 60.0
    memory_bytes: int = 512 * MIB
    address_bytes: int | None = 1024 * MIB
    output_bytes: int = 4 * MIB
    disk_bytes: int = 64 * MIB
    disk_files: int = 4096
    # Together these also bound the memory that only the kernel holds, for open files.
    processes: int = 32
    open_files: int = 64

    def __post_init__(self) -> None:
        checks = Checks("limits")
        checks.number("cpu_s", self.cpu_s, 1e-3, MAX_SECONDS, "give the CPU seconds of all processes together")
        checks.number("wall_s", self.wall_s, 1e-3, MAX_SECONDS, "give at least the CPU seconds, for what sleeps")
        checks.whole("memory_bytes", self.memory_bytes, MIB, MAX_COUNT, "an interpreter alone needs some 16 MiB")
        if self.address_bytes is not None:
            checks.whole("address_bytes", self.address_bytes, 64 * MIB, MAX_COUNT, "leave it out with None")
        checks.whole("output_bytes", self.output_bytes, 1, 1024 * MIB, "it is held in memory")
        checks.whole("disk_bytes", self.disk_bytes, 4096, MAX_COUNT, "the file system of a run is in memory")
        checks.whole("disk_files", self.disk_files, 16, MAX_COUNT, "files, folders and links together")
        checks.whole("processes", self.processes, 1, 32_768, "processes and threads together")
        checks.whole("open_files", self.open_files, 16, 1 << 20, "of each process")
        checks.require()


@dataclass(frozen=True, slots=True)
class Program:
    """Python source, run in a warm interpreter, or a command with its arguments. It starts beside `files`."""

    source: str = ""
    command: tuple[str, ...] = ()
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.source) == bool(self.command):
            remedy = "give Python source or a command, and not both"
            raise InvalidSpec("program", (Problem("program.source", self.source, "one of two", remedy),))
        for name in self.files:
            parts = PurePosixPath(name).parts
            if name.startswith("/") or ".." in parts or not parts or "\0" in name:
                problem = Problem("program.files", name, "a path below the folder of the run", "leave out / and ..")
                raise InvalidSpec("program", (problem,))
