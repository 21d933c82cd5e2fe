"""Order between processes that share memory and no lock.

A processor of the ARM kind may show two writes to another process in either order, and may read ahead; one of the x86
kind does neither. Python has no fence, but it has locks. To take one and to give it back both synchronize
memory (POSIX, "Memory Synchronization"): on AArch64 what comes before a lock is given back is done before what comes
after the next one is taken.
"""

from threading import Lock


def barrier() -> None:
    """All reads and writes before this call come before all those after it, for every process that looks on."""
    fresh = Lock()  # of this call alone: nobody waits for it, and no forked child finds it held
    for _ in range(2):  # in one turn of a lock accesses from before and from after may meet
        fresh.acquire()
        fresh.release()
