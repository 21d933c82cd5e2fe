"""Multiplication written out as repeated addition: to `7*3=` the answer is `3:7,2:14,1:21;`. Each step begins with the
number of additions still to be done.

The length of a right answer depends on the second factor, which has a long tail. Half of a reward is for the share of
steps that are right from the first on, so that a model learns from long answers before it gets them right.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import exp
from operator import eq
from random import Random

from rollmux.runtime.rewards import FunctionTask, Kind
from rollmux.trainer.seeds import derived
from rollmux.trainer.tasks.characters import Characters
from rollmux.trainer.tasks.task import Needs, OneTurn

ALPHABET = "0123456789*=:,;"
BETWEEN, END = ",", ";"


class Arithmetic(OneTurn):
    """`count` prompts: first factors up to `largest`, second ones lognormal around `median` and up to `longest`.

    `careless`: the share of the answers shown in the warm-up that stop too early. A model that has learnt this habit
    can answer well, and often does not: reinforcement removes the habit."""

    needs, digest = Needs([Kind.FUNCTION], [__name__]), ""

    def __init__(
        self, seed: int, count: int, largest: int, median: float, spread: float, longest: int, careless: float
    ) -> None:
        random = Random(derived(seed, "arithmetic"))
        self._careless = careless
        self.tokenizer = Characters(ALPHABET, END)
        self._factors = [
            (random.randint(2, largest), min(longest, max(1, round(median * exp(random.gauss(0.0, spread))))))
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._factors)

    def prompt(self, number: int) -> str:
        one, other = self._factors[number]
        return f"{one}*{other}="

    def shown(self, number: int, random: Random, *said: str) -> str:
        """An answer to show in the warm-up: some break off before their end."""
        steps = _steps(*self._factors[number])
        is_careless = random.random() < self._careless
        return _written(steps[: random.randrange(len(steps))] if is_careless else steps)

    def reward(self, number: int, *said: str) -> float:
        return worth(*self._factors[number], said[-1])

    def asked(self, number: int, *said: str) -> FunctionTask:
        one, other = self._factors[number]
        return FunctionTask(f"{__name__}:{worth.__name__}", {"one": one, "other": other, "response": said[-1]})


def worth(one: int, other: int, response: str) -> float:
    """The reward: half for the share of the steps that are right from the first on, half for a right answer."""
    right = _steps(one, other)
    first = takewhile(bool, map(eq, response.removesuffix(END).split(BETWEEN), right))
    share = sum(1 for _ in first) / len(right)
    return (share + (response == _written(right))) / 2


def _steps(one: int, other: int) -> list[str]:
    return [f"{other - step}:{one * (step + 1)}" for step in range(other)]


def _written(steps: Sequence[str]) -> str:
    return BETWEEN.join(steps) + END
