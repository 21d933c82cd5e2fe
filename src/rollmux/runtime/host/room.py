"""How much memory the node has to give right now, whatever the budget says: the kernel's word and the container's."""

from contextlib import suppress

from rollmux.system import group_bytes, memory_bytes


def available_bytes() -> int | None:
    """The bytes; None if neither says."""
    group = group_bytes()
    known = [] if group is None else [group[0] - group[1]]
    with suppress(FileNotFoundError):
        known.append(memory_bytes()[0])
    return min(known, default=None)
