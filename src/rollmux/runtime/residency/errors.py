"""What can go wrong with resident state. Nothing here is raised before the state is safe on one side at least.

HostMemoryError
├── NoRoom, NameTaken, Busy, Unfit    of the node's budget (`rollmux.runtime.host`); nothing was changed
├── BadCopy     there is no whole version on the host: the job has to start cold
├── NotFreed    the state is safe on the host, but something else still holds the device's memory
└── Changed     state that is declared read-only was changed on the device; it was left there
"""

from rollmux.runtime.host.errors import HostMemoryError


class BadCopy(HostMemoryError):
    """No whole version is on the host."""


class NotFreed(HostMemoryError):
    """The device's memory is still held, by tensors that are not part of the state."""


class Changed(HostMemoryError):
    """Read-only state differs from what was loaded."""
