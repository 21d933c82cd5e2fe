"""Memory that the processes of an attempt share: a folder of it that is theirs, and that goes when the last has ended.

What they put there, such as weights that one rank hands to others, would otherwise outlive them until somebody finds it
or the machine is restarted. Loaded by every keeper, so it imports next to nothing.
"""

import os
from contextlib import suppress

ROOT = "/dev/shm"
VARIABLE = "ROLLMUX_MEMORY"


def path_of(marker: str, keeper: int) -> str:
    """Where it is: a keeper's own, and to be found by whoever knows the marker only."""
    return f"{beginning_of(marker)}{keeper}"


def beginning_of(marker: str) -> str:
    """What the folders of all keepers with this marker begin with."""
    return f"{ROOT}/rollmux-{marker.partition('=')[2]}-"


def make(path: str) -> dict[str, str]:
    """What ranks find in their environment: nothing where this machine has no such memory to give."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        return {}
    return {VARIABLE: path}


def remove(path: str) -> None:
    """With all that is in it. Whoever still maps a file of it keeps that until it ends."""
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
    """Of every keeper with this marker, none of which lives any more."""
    with suppress(OSError):
        for name in os.listdir(ROOT):
            path = f"{ROOT}/{name}"
            if path.startswith(beginning_of(marker)):
                remove(path)
