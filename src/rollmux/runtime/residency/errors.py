"""What can go wrong with resident state. Nothing here is raised before the state is safe on one side at least.

ResidencyError
├── NoRoom      the node's budget, its real memory or what the job has declared would be exceeded; nothing was changed
├── NameTaken   a living process keeps state under this name
├── Busy        the budget's lock was not free for long: a process stands still while it holds it
├── BadCopy     there is no whole version on the host: the job has to start cold
├── NotFreed    the state is safe on the host, but something else still holds the device's memory
├── Changed     state that is declared read-only was changed on the device; it was left there
└── Unfit       what was given can't be held this way
"""

from rollmux.errors import RollmuxError


class ResidencyError(RollmuxError):
    """Root of what residency raises."""


class NoRoom(ResidencyError):
    """Memory was refused before anything was taken."""


class NameTaken(ResidencyError):
    """Somebody alive holds the name."""


class Busy(ResidencyError):
    """The folder of the budget is locked."""


class BadCopy(ResidencyError):
    """No whole version is on the host."""


class NotFreed(ResidencyError):
    """The device's memory is still held, by tensors that are not part of the state."""


class Changed(ResidencyError):
    """Read-only state differs from what was loaded."""


class Unfit(ResidencyError):
    """This state, name or option can't be used."""


def shown(nbytes: int) -> str:
    """Bytes as a reader takes them in."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes} bytes"
