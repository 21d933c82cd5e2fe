"""What is known of a process. Every keeper loads this module, so it imports next to nothing."""

from typing import NamedTuple


class Process(NamedTuple):
    """What the system says of a process. `start` tells it from others that have its number before or after it.

    `start` is counted as the system counts it: from the boot, or on the wall clock.
    """

    pid: int
    parent: int
    session: int
    start: int
    alive: bool
