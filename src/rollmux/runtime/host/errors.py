"""What can go wrong with a node's host memory. Nothing was taken when one of these is raised.

HostMemoryError
├── NoRoom      the budget, the node's real memory or what the job has declared would be exceeded
├── NameTaken   a living process holds memory under this name
├── NotKept     nobody, dead or alive, has left anything under this name
├── Busy        the budget's lock was not free for long: a process stands still while it holds it
└── Unfit       this name, folder, state or option can't be used
"""

from rollmux.errors import RollmuxError


class HostMemoryError(RollmuxError):
    """Root of what the budget raises."""


class NoRoom(HostMemoryError):
    """Memory was refused before anything was taken."""


class NameTaken(HostMemoryError):
    """Somebody alive holds the name."""


class NotKept(HostMemoryError):
    """There is nothing to take over."""


class Busy(HostMemoryError):
    """The folder of the budget is locked."""


class Unfit(HostMemoryError):
    """What was given can't be used."""


def shown(nbytes: int) -> str:
    """Bytes as a reader takes them in."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes} bytes"
