"""What warm modules have registered for the end of their process, such as the removal of a folder: no fork does it.

Invariant: a fork calls at its end only what has been registered in it, or by Python's own modules.
"""

import atexit
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_noted: list[Callable[..., Any]] = []


@contextmanager
def noted() -> Iterator[None]:
    """Notes what is registered within, but by Python's own modules: multiprocessing waits at the end, say."""
    register = atexit.register

    def noting(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        by = str(sys._getframe(1).f_globals.get("__name__", ""))
        if by.partition(".")[0] not in sys.stdlib_module_names:
            _noted.append(function)
        return register(function, *arguments, **named)

    atexit.register = noting  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register


def forget() -> None:
    """In a fork: takes back what was noted, and all finalizers, such as those of temporary folders."""
    for function in _noted:
        atexit.unregister(function)
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
