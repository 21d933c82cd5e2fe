"""Counting, for a model that was taught to talk: to `Count from 8 to 11.` the answer is `8, 9, 10, 11` and no more.

An example stands before each question. The lengths of right answers have a long tail. Half of a reward is for the share
of numbers that are right from the first on, so that a model that begins well and talks on has something to learn from.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import exp
from operator import eq
from random import Random

from rollmux.runtime.rewards import FunctionTask, Kind
from rollmux.trainer.seeds import derived
from rollmux.trainer.tasks.pretrained import Pretrained, without_end
from rollmux.trainer.tasks.task import Needs, OneTurn

SYSTEM = "You count."
EXAMPLE = (4, 7)
BETWEEN = ", "


class Counting(OneTurn):
    """`count` prompts: from a number up to `largest`, 2 to `longest` numbers long, lognormal around `median`."""

    needs, digest = Needs([Kind.FUNCTION], [__name__]), ""

    def __init__(
        self, seed: int, count: int, largest: int, median: float, spread: float, longest: int, tokenizer: Pretrained
    ) -> None:
        random = Random(derived(seed, "counting"))
        self.tokenizer = tokenizer
        self._ranges = []
        for _ in range(count):
            first = random.randint(1, largest)
            numbers = min(longest, max(2, round(median * exp(random.gauss(0.0, spread)))))
            self._ranges.append((first, first + numbers - 1))

    def __len__(self) -> int:
        return len(self._ranges)

    def prompt(self, number: int) -> str:
        question, answer = _question(*EXAMPLE), BETWEEN.join(_numbers(*EXAMPLE))
        example = ("system", SYSTEM), ("user", question), ("assistant", answer)
        return self.tokenizer.talk([*example, ("user", _question(*self._ranges[number]))])

    def shown(self, number: int, random: Random, *said: str) -> str:
        return BETWEEN.join(_numbers(*self._ranges[number])) + self.tokenizer.ends[0]

    def reward(self, number: int, *said: str) -> float:
        return worth(*self._ranges[number], self.tokenizer.ends, said[-1])

    def asked(self, number: int, *said: str) -> FunctionTask:
        first, last = self._ranges[number]
        arguments = {"first": first, "last": last, "ends": list(self.tokenizer.ends), "response": said[-1]}
        return FunctionTask(f"{__name__}:{worth.__name__}", arguments)


def worth(first: int, last: int, ends: Sequence[str], response: str) -> float:
    """The reward: half for the share of numbers right from the first on, half for a right answer that ends there."""
    right, said = _numbers(first, last), without_end(response, ends)
    so_far = takewhile(bool, map(eq, said.split(BETWEEN), right))
    share = sum(1 for _ in so_far) / len(right)
    return (share + (said == BETWEEN.join(right) and said != response)) / 2


def _question(first: int, last: int) -> str:
    return f"Count from {first} to {last}."


def _numbers(first: int, last: int) -> list[str]:
    return [str(each) for each in range(first, last + 1)]
