"""The arithmetic task, scored by functions that take as long as they like, fail, or hang. Nothing here needs torch."""

import os
import time
from collections.abc import Callable, Sequence

from rollmux.runtime.rewards import FunctionTask, Kind
from rollmux.trainer.tasks import Arithmetic, Needs
from rollmux.trainer.tasks.arithmetic import worth

Score = Callable[[int, int, str], float]


def some_time(one: int, other: int, response: str) -> float:
    """Nobody knows how long, and no two runs alike."""
    time.sleep(os.urandom(1)[0] / 255 * 0.04)
    return worth(one, other, response)


def fails_on_short(one: int, other: int, response: str) -> float:
    if len(response) < 8:
        raise ValueError("too short to be read")
    return some_time(one, other, response)


def hangs(one: int, other: int, response: str) -> float:
    time.sleep(1000)
    return 0.0


class Scored(Arithmetic):
    """With another function of this module."""

    needs = Needs([Kind.FUNCTION], [__name__])

    def __init__(self, by: Score, plain: Arithmetic) -> None:
        self.__dict__.update(plain.__dict__)
        self._by = by

    def asked(self, number: int, *said: str) -> FunctionTask:
        return FunctionTask(f"{__name__}:{self._by.__name__}", super().asked(number, *said).arguments)


def alive(pids: Sequence[int]) -> list[int]:
    """Those of them that still run: what is dead and not yet buried does not."""
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [] if state == b"Z" else [pid]
    return found
