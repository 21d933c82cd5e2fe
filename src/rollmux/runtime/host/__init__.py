"""The host memory of a node, shared out among everything that keeps something in it for long, of all jobs."""

from rollmux.runtime.host.budget import Budget, Claim, Holding
from rollmux.runtime.host.errors import Busy, HostMemoryError, NameTaken, NoRoom, NotKept, Unfit

__all__ = ["Budget", "Busy", "Claim", "Holding", "HostMemoryError", "NameTaken", "NoRoom", "NotKept", "Unfit"]
