"""Waiting for what other threads and processes do: no longer than it takes, and not for ever."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

WITHIN_S, LOOK_S = 60.0, 0.01


def until(holds: Callable[[], T], within_s: float = WITHIN_S, instead: Callable[[], object] = str) -> T:
    """What is given once it holds; `instead` tells what there is where it does not come in time."""
    end = monotonic() + within_s
    while not (found := holds()):
        assert monotonic() < end, instead()
        sleep(LOOK_S)
    return found
