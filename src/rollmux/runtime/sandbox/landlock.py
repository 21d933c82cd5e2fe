"""Landlock: a process and its children give up all of the file system except what is named.

Invariant: whatever the kernel's version of Landlock can restrict is restricted; the rest is left to the namespaces.
"""

import os
import struct
from collections.abc import Sequence

from rollmux.runtime.sandbox import kernel

# linux/landlock.h, bit by bit: execute, write, read, list, remove, make; from versions 2, 3, 5 refer, truncate, ioctl.
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_FIRST_VERSION = (1 << 13) - 1
SINCE_TRUNCATE = 3  # before, it lets any file be cut off by its name
_BY_VERSION = ((2, 1 << 13), (SINCE_TRUNCATE, 1 << 14), (5, 1 << 15))
_OF_FILES = _EXECUTE | _WRITE | _READ | 1 << 14 | 1 << 15
_TCP = 1 | 2  # bind and connect, from version 4
_SCOPES = 1 | 2  # abstract sockets and signals, from version 6


def restrict(version: int, readable: Sequence[str], writable: Sequence[str]) -> None:
    """Restricts this process, and all that it starts from now on."""
    handled = _FIRST_VERSION
    for since, bit in _BY_VERSION:
        handled |= bit if version >= since else 0
    attributes = struct.pack("=Q", handled)
    attributes += struct.pack("=Q", _TCP) if version >= 4 else b""
    attributes += struct.pack("=Q", _SCOPES) if version >= 6 else b""
    ruleset = kernel.landlock_ruleset(attributes)
    for path in readable:
        _allow(ruleset, path, handled & (_EXECUTE | _READ | _LIST))
    for path in writable:
        _allow(ruleset, path, handled)
    kernel.landlock_restrict(ruleset)
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    kernel.landlock_allow(ruleset, path, access if os.path.isdir(path) else access & _OF_FILES)
