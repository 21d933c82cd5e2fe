"""Waiting for what other threads and processes do: no longer than it takes, and not for ever."""

import asyncio
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


async def eventually(holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Comes back once it holds; the loop has its turns meanwhile."""
    end = monotonic() + within_s
    while not holds():
        assert monotonic() < end, "it has not come true"
        await asyncio.sleep(LOOK_S)
