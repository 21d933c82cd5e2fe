"""The seam of a task: prompts by number, what a response to one of them is worth, and what it is told in between.

A response is one turn of the model's or several: what is `said` are its turns, with what it was told between them, as
the task has told it: in texts, or in messages.
Invariant: a reward or a reply depends on the prompt's number and what was said alone. A task that can't tell raises,
and the response is failed, never zero.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, runtime_checkable

from rollmux.runtime.rewards import FunctionTask, Kind, Told
from rollmux.runtime.rewards import Task as Asked


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """One of these ends a turn, and is its last token."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: tuple[int, ...]) -> str: ...

    def told(self, told: Any, last: int) -> tuple[int, ...]:
        """What stands behind a turn with this last token, up to where the next one begins, if the task says this."""


class OneTurn:
    """Of a task that says nothing to a response."""

    def reply_asked(self, number: int, *said: Any) -> None: ...

    def reply(self, number: int, *said: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pool needs to score and to answer a task's responses.

    `modules` hold the functions for it; they load without torch, and `folders` are where they are looked for too.
    """

    kinds: Collection[Kind]
    modules: Sequence[str] = ()
    folders: Sequence[str] = ()
    talks: bool = False  # some responses are answered


class Task(Protocol):
    """What is learnt."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def __len__(self) -> int:
        """The prompts of an epoch."""

    def prompt(self, number: int) -> str: ...

    @property
    def needs(self) -> Needs:
        """For what `asked` and `reply_asked` give."""

    @property
    def digest(self) -> str:
        """Of what decides prompts and rewards beside the settings; empty where nothing does."""

    def asked(self, number: int, *said: Any) -> Asked:
        """What a reward pool is asked for this response's reward."""

    def reply_asked(self, number: int, *said: Any) -> FunctionTask | None:
        """What a pool is asked for the reply to the last turn; None where the response is over."""


@runtime_checkable
class MadeTask(Task, Protocol):
    """One that makes up its prompts, and so knows what is right."""

    def shown(self, number: int, random: Random, *said: Any) -> str:
        """The next turn for the warm-up to imitate, good or not so good."""

    def reply(self, number: int, *said: Any) -> Told | None:
        """What is told next; None where the response is over."""

    def reward(self, number: int, *said: Any) -> float:
        """What it is worth. Both are what a pool would say, here and now."""
