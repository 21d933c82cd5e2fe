"""How a run ended, as the side that hostile code can't reach has seen it."""

import signal
from dataclasses import dataclass
from enum import Enum

from rollmux.runtime.sandbox.protections import SandboxError


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
        """The program ended by itself with status 0. The caller has to judge what that is worth."""
        return self.cause is Cause.EXITED and self.status == 0

    @property
    def ran_out_of_time(self) -> bool:
        return self.cause in (Cause.CPU_LIMIT, Cause.WALL_LIMIT)

    def require_whole(self) -> None:
        """SandboxError if the sandbox broke off: the program may be run again."""
        if self.cause is Cause.BROKEN:
            raise SandboxError(f"{self.cause.value}: {self.detail}")

    def require_not_killed(self) -> None:
        """The same if the program was killed. Only for trusted code: other code may have killed itself."""
        self.require_whole()
        if self.cause is Cause.SIGNALLED and self.status == signal.SIGKILL:
            raise SandboxError(f"{self.cause.value}: {self.detail}")
