"""How a run ended, as the side that hostile code can't reach has seen it."""

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Why a run is over. All but the last two are the program's own doing."""

    EXITED = "exited"
    SIGNALLED = "ended by a signal"
    CPU_LIMIT = "CPU limit"
    WALL_LIMIT = "wall limit"
    MEMORY_LIMIT = "memory limit"
    OUTPUT_LIMIT = "output limit"
    PROCESS_LIMIT = "process limit"
    CANCELLED = "cancelled"
    BROKEN = "the sandbox failed"


@dataclass(frozen=True, slots=True)
class Ended:
    """`status` is the exit status or the signal's number; `memory_bytes` what the whole tree took."""

    cause: Cause
    status: int
    stdout: bytes
    stderr: bytes
    cpu_s: float
    wall_s: float
    memory_bytes: int
    detail: str = ""

    @property
    def succeeded(self) -> bool:
        """It ended by itself and said that all was well. What that is worth is for the caller to judge."""
        return self.cause is Cause.EXITED and self.status == 0
