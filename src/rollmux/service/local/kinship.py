"""Ties of a process to those that it starts, and to the one that started it, if the system knows such ties.

Linux does. Elsewhere no process dies with its parent, and orphans go to the system's first process: the keeper looks
for them instead.
"""

import ctypes

from rollmux import system

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl if system.IS_LINUX else None


def adopt_orphans() -> bool:
    """From now on processes below this one become its children when their parents end. False: the system can't."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _prctl is not None


def hear_of_parents_end(number: int) -> None:
    """This process gets the signal when the thread that started it ends, if the system can send it."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number)
