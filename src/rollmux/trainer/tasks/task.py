"""The seam of a task: prompts by number, and what a response to one of them is worth.

Invariant: a reward depends on the prompt's number and the response alone. A task that can't tell raises, and the
response is failed, never zero.
"""

from collections.abc import Collection
from random import Random
from typing import Protocol

from rollmux.runtime.rewards import Kind
from rollmux.runtime.rewards import Task as Asked


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """One of these ends a response, and is its last token."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: tuple[int, ...]) -> str: ...


class Task(Protocol):
    """What is learnt."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def __len__(self) -> int:
        """The prompts of an epoch."""

    def prompt(self, number: int) -> str: ...

    def shown(self, number: int, random: Random) -> str:
        """An answer for the warm-up to imitate, good or not so good."""

    def reward(self, number: int, response: str) -> float:
        """Here and now."""

    @property
    def kinds(self) -> Collection[Kind]:
        """What a reward pool needs for what `asked` gives."""

    def asked(self, number: int, response: str) -> Asked:
        """The same reward, as a pool is asked for it. Functions are this module's, which loads without torch."""
