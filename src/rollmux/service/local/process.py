"""What is known of a process. Loaded by every keeper, so it imports next to nothing."""

from typing import NamedTuple


class Process(NamedTuple):
    """What its system says of it. `start` tells it from others that have its number before or after it.

    It is counted as the system counts it: from the boot, or on the wall clock.
    """

    pid: int
    parent: int
    session: int
    start: int
    alive: bool
