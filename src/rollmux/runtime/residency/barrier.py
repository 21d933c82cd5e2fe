"""Order between processes that share memory and no lock.

A processor of the ARM kind may show another process two writes in either order, and read ahead of what it has read; one
of the x86 kind does neither. Python has no fence, but it has locks. To take one and to give it back both synchronize
memory (POSIX, "Memory Synchronization"): on AArch64 what comes before a lock is given back is done before what comes
after the next one is taken.
"""

from threading import Lock


def barrier() -> None:
    """What was read and written before comes before what is read and written after it, whoever looks on."""
    fresh = Lock()  # nobody waits for it, and no fork finds it held
    for _ in range(2):  # into one turn of a lock both sides may move, and meet there
        fresh.acquire()
        fresh.release()
