"""Guessing a number, in several turns: asked `20?`, the model says `10;`, is told `<` or `>`, and guesses again.

The model has as many guesses as halving the possible numbers takes at most; a guess that is no longer possible is its
last. Half of a reward is for how much was ruled out, half for the number itself: halving pays best, and the warm-up
shows only how to guess.
"""

from math import log
from random import Random

from rollmux.runtime.rewards import FunctionTask, Kind
from rollmux.trainer.seeds import derived
from rollmux.trainer.tasks.characters import Characters
from rollmux.trainer.tasks.task import Needs

ALPHABET = "0123456789?<>;"
ASK, LOWER, HIGHER, END = "?", "<", ">", ";"
MOST_DIGITS = 100  # of a number: far beyond what is asked for, and Python refuses thousands of them


class Guessing:
    """`count` secret numbers. Each is between 1 and an upper limit of its own, which is at most `largest`.

    `careless`: the share of the warm-up's guesses that are any possible number; the others are in the middle.
    """

    needs, digest = Needs([Kind.FUNCTION], [__name__], talks=True), ""

    def __init__(self, seed: int, count: int, largest: int, careless: float) -> None:
        random = Random(derived(seed, "guessing"))
        self._careless = careless
        self.tokenizer = Characters(ALPHABET, END)
        self._numbers = []
        for _ in range(count):
            highest = random.randint(2, largest)
            self._numbers.append((highest, random.randint(1, highest)))

    def __len__(self) -> int:
        return len(self._numbers)

    def prompt(self, number: int) -> str:
        return f"{self._numbers[number][0]}{ASK}"

    def shown(self, number: int, random: Random, *said: str) -> str:
        low, high = _possible(*self._numbers[number], *said)
        return f"{random.randint(low, high) if random.random() < self._careless else (low + high) // 2}{END}"

    def reply(self, number: int, *said: str) -> str | None:
        return reply(*self._numbers[number], *said)

    def reward(self, number: int, *said: str) -> float:
        return worth(*self._numbers[number], *said)

    def reply_asked(self, number: int, *said: str) -> FunctionTask | None:
        return self._asked("reply_to", number, said)

    def asked(self, number: int, *said: str) -> FunctionTask:
        return self._asked("worth_of", number, said)

    def _asked(self, function: str, number: int, said: tuple[str, ...]) -> FunctionTask:
        highest, secret = self._numbers[number]
        return FunctionTask(f"{__name__}:{function}", {"highest": highest, "secret": secret, "said": said})


def guesses(highest: int) -> int:
    """How many guesses halving takes at most."""
    return highest.bit_length()


def reply(highest: int, secret: int, *said: str) -> str | None:
    """Lower or higher; None once the number is found, or can't be found any more."""
    *before, last = said[::2]
    low, high = _possible(highest, secret, *said[:-1])
    guess = _number(last)
    if guess is None or not low <= guess <= high or guess == secret or len(before) + 1 == guesses(highest):
        return None
    return LOWER if secret < guess else HIGHER


def worth(highest: int, secret: int, *said: str) -> float:
    """The reward: half for the part of the possible numbers that was ruled out, half for the number itself."""
    low, high = _possible(highest, secret, *said)
    return (1 - log(high - low + 1) / log(highest) + (_number(said[-1]) == secret)) / 2


def reply_to(highest: int, secret: int, said: list[str]) -> str | None:
    return reply(highest, secret, *said)


def worth_of(highest: int, secret: int, said: list[str]) -> float:
    return worth(highest, secret, *said)


def _possible(highest: int, secret: int, *said: str) -> tuple[int, int]:
    """The first and last number still possible after these guesses; a guess that was not possible tells nothing."""
    low, high = 1, highest
    for guess in map(_number, said[::2]):
        if guess is not None and low <= guess <= high:
            low, high = (
                (secret, secret) if guess == secret else (low, guess - 1) if secret < guess else (guess + 1, high)
            )
    return low, high


def _number(turn: str) -> int | None:
    text = turn.removesuffix(END)
    return int(text) if text.isdecimal() and text != turn and len(text) <= MOST_DIGITS else None
