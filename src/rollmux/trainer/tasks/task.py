"""The seam of a task: prompts by number, and what a response to one of them is worth.

Invariant: a reward depends on the prompt's number and the response alone. A task that can't tell raises, and the
response is failed, never zero.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pool needs to score a task's responses.

    `modules` hold the functions that score; they load without torch, and `folders` are where they are looked for too.
    """

    kinds: Collection[Kind]
    modules: Sequence[str] = ()
    folders: Sequence[str] = ()


class Task(Protocol):
    """What is learnt."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def __len__(self) -> int:
        """The prompts of an epoch."""

    def prompt(self, number: int) -> str: ...

    @property
    def needs(self) -> Needs:
        """For what `asked` gives."""

    @property
    def digest(self) -> str:
        """Of what decides prompts and rewards beside the settings; empty where nothing does."""

    def asked(self, number: int, response: str) -> Asked:
        """What a reward pool is asked for this response's reward."""


@runtime_checkable
class MadeTask(Task, Protocol):
    """One that makes up its prompts, and so knows what is right."""

    def shown(self, number: int, random: Random) -> str:
        """An answer for the warm-up to imitate, good or not so good."""

    def reward(self, number: int, response: str) -> float:
        """What a pool would say, here and now."""
