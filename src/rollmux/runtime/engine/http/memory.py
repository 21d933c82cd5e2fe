"""Whether a server that says it sleeps has let go of its memory.

No server tells over HTTP what it holds, so somebody else is asked: `nvidia_smi` asks the driver about its processes.
Invariant: nothing counts as asleep before the bytes are seen to be free (F9).
"""

import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from rollmux.checks import MAX_COUNT, MAX_SECONDS, Checks
from rollmux.runtime.engine.http.errors import MemoryHeld, MemoryUnknown, ServerMismatch

ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Memory:
    """A server's device memory: who tells how much it holds, and how much it may hold.

    `held` tells its bytes now; `environment` is that of its process. Asleep it may hold `asleep_bytes` (what the
    driver and captured graphs keep), reached within `settle_s`; over all sleeps it may gain `leak_bytes`.
    """

    held: Callable[[], int]
    environment: Mapping[str, str]
    asleep_bytes: int
    leak_bytes: int
    settle_s: float = 10.0

    def __post_init__(self) -> None:
        checks = Checks("memory")
        for name in ("asleep_bytes", "leak_bytes"):
            checks.whole(name, getattr(self, name), 0, MAX_COUNT, "give bytes")
        checks.number("settle_s", self.settle_s, 0, MAX_SECONDS, "give seconds")
        checks.require()
        for name in ALLOCATOR_SETTINGS:
            setting = self.environment.get(name, "")
            if "expandable_segments:true" in setting.lower().replace(" ", ""):
                raise ServerMismatch(
                    f"the server runs with {name}={setting}: with expandable segments its sleep frees nothing; start "
                    "it without"
                )

    def settle(self) -> int:
        """Waits until no more bytes are held than allowed, and they fall no further; returns the bytes held."""
        until = monotonic() + self.settle_s
        before, held = None, self.held()
        while held > self.asleep_bytes or held != before:
            if held > self.asleep_bytes and monotonic() >= until:
                raise MemoryHeld(
                    f"the server says that it sleeps but holds {held} bytes after {self.settle_s:g} s, "
                    f"{self.asleep_bytes} are allowed: end it before its memory is given away"
                )
            if monotonic() >= until + LOOK_EVERY_S:
                break  # little enough is held, though the number still changes
            sleep(LOOK_EVERY_S)
            before, held = held, self.held()
        return held


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process of this machine was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def nvidia_smi(pids: Collection[int], command: str = "nvidia-smi") -> Callable[[], int]:
    """Asks the driver how much processes of this machine hold, on all its GPUs together.

    A process that has touched a GPU is listed as long as it lives, asleep too. Ids as a container has them are not.
    """
    wanted = frozenset(pids)

    def held() -> int:
        query = [command, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        try:
            page = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
            rows = [line.split(",") for line in page.splitlines() if line.strip()]
            known = [int(used) * 2**20 for pid, used in rows if int(pid) in wanted]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise MemoryUnknown(
                f"{command} does not tell what {sorted(wanted)} hold, so nothing is free: {error}"
            ) from error
        if not known:
            raise MemoryUnknown(
                f"{command} lists none of {sorted(wanted)}, so nothing is known to be free: name the processes that "
                "compute, by the numbers that the driver knows them by"
            )
        return sum(known)

    return held
