"""Warm starts: a phase's state in host memory, moved onto the device and off it as fast as memory allows.

`Resident` is what a phase takes as its state; a `Budget` is shared by all jobs of a node. A `Visitor` lives in the
process's own memory, where it is read and written between phases.
"""

from rollmux.runtime.host import Budget, Holding, HostMemoryError, NameTaken, NoRoom, Unfit
from rollmux.runtime.residency.errors import BadCopy, Changed, NotFreed
from rollmux.runtime.residency.memory import CpuMemory, Memory
from rollmux.runtime.residency.resident import Resident
from rollmux.runtime.residency.visitor import Visitor

__all__ = [
    "BadCopy",
    "Budget",
    "Changed",
    "CpuMemory",
    "Holding",
    "HostMemoryError",
    "Memory",
    "NameTaken",
    "NoRoom",
    "NotFreed",
    "Resident",
    "Unfit",
    "Visitor",
]
