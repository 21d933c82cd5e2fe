"""Memory that the processes of an attempt share: a folder of their own, which is removed when the last has ended.

What they put there, such as weights that one rank hands to others, would otherwise outlive them until somebody finds it
or the machine is restarted. Every keeper loads this module, so it imports next to nothing.
"""

import os
from contextlib import suppress

ROOT = "/dev/shm"
VARIABLE = "ROLLMUX_MEMORY"


def path_of(marker: str, keeper: int) -> str:
    """Where the folder is: each keeper has its own, and it can be found with the marker alone."""
    return f"{beginning_of(marker)}{keeper}"


def beginning_of(marker: str) -> str:
    """What the folders of all keepers with this marker begin with."""
    return f"{ROOT}/rollmux-{marker.partition('=')[2]}-"


def make(path: str) -> dict[str, str]:
    """Makes the folder; returns what ranks find in their environment: nothing if this machine has no such memory."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        return {}
    return {VARIABLE: path}


def remove(path: str) -> None:
    """Removes the folder with all that is in it. A process that still maps a file keeps its content until it ends."""
    for folder, names, files in os.walk(path, topdown=False):
        for name in files:
            with suppress(OSError):
                os.unlink(f"{folder}/{name}")
        for name in names:
            with suppress(OSError):
                inner = f"{folder}/{name}"
                os.unlink(inner) if os.path.islink(inner) else os.rmdir(inner)
    with suppress(OSError):
        os.rmdir(path)


def remove_all(marker: str) -> None:
    """Removes the folders of all keepers with this marker, none of which lives any more."""
    with suppress(OSError):
        for name in os.listdir(ROOT):
            path = f"{ROOT}/{name}"
            if path.startswith(beginning_of(marker)):
                remove(path)
