"""The arithmetic task, which goes on asking: what it says depends on what was said, and takes as long as it likes.

Nothing here needs torch.
"""

import os
import time

from rollmux.runtime.rewards import FunctionTask, Kind
from rollmux.trainer.tasks import Arithmetic, Needs

TURNS = 4  # at most


def answer(*said: str) -> str | None:
    """A turn of even length is asked back, until there were enough."""
    last = said[-1]
    return f"{len(last) % 10}*=" if len(last) % 2 == 0 and len(said) < 2 * TURNS - 1 else None


def answered(said: list[str]) -> str | None:
    return answer(*said)


def answered_some_time(said: list[str]) -> str | None:
    """Nobody knows how long, and no two runs alike."""
    time.sleep(os.urandom(1)[0] / 255 * 0.03)
    return answer(*said)


def fails_on_the_second(said: list[str]) -> str | None:
    if len(said) > 1:
        raise ValueError("asked twice")
    return answer(*said)


def hangs(said: list[str]) -> str | None:
    time.sleep(1000)
    return None


def worth(said: list[str]) -> float:
    return len("".join(said)) / 100


class Talks(Arithmetic):
    """By a function of this module."""

    needs = Needs([Kind.FUNCTION], [__name__], talks=True)

    def __init__(self, by: str, plain: Arithmetic) -> None:
        self.__dict__.update(plain.__dict__)
        self._by = by

    def shown(self, number: int, random: object, *said: str) -> str:
        return "1:2;" if len(said) < 2 else "123:;"

    def reply(self, number: int, *said: str) -> str | None:  # type: ignore[override]
        return answer(*said)

    def reward(self, number: int, *said: str) -> float:
        return worth(list(said))

    def reply_asked(self, number: int, *said: str) -> FunctionTask:  # type: ignore[override]
        return FunctionTask(f"{__name__}:{self._by}", {"said": said})

    def asked(self, number: int, *said: str) -> FunctionTask:
        return FunctionTask(f"{__name__}:worth", {"said": said})
