"""What a process may be to those that it starts, and to the one that started it, where the system knows such ties.

Linux does. Elsewhere nobody dies with a parent, and orphans become the first process's: they are looked for instead.
"""

import ctypes

from rollmux import system

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl if system.IS_LINUX else None


def adopt_orphans() -> bool:
    """Whether those below this process become its children when their parents are gone."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _prctl is not None


def hear_of_parents_end(number: int) -> None:
    """This signal comes when the thread ends that started this process, if the system can send it."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number)
