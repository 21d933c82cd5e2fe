"""The seam of a task: prompts by number, the reward of a response, and the replies between its turns.

A response is one turn of the model or several. `said` are its turns, and between them what the task replied: texts, or
messages.
Invariant: a reward or a reply depends only on the prompt's number and what was said. If a task can't tell it raises,
and the response has failed: it is no zero.
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
        """The tokens that end a turn: one of them is its last token."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, tokens: tuple[int, ...]) -> str: ...

    def told(self, told: Any, last: int) -> tuple[int, ...]:
        """The tokens from a turn that ends with `last` to the beginning of the next turn, if the task replies this."""


class OneTurn:
    """The replies of a task that never replies: there are none."""

    def reply_asked(self, number: int, *said: Any) -> None: ...

    def reply(self, number: int, *said: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pool needs to score and answer a task's responses.

    `modules` have the functions; they load without torch, and may be in `folders`, too.
    """

    kinds: Collection[Kind]
    modules: Sequence[str] = ()
    folders: Sequence[str] = ()
    talks: bool = False  # some turns get replies


class Task(Protocol):
    """A task that a model learns."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def __len__(self) -> int:
        """The number of prompts in an epoch."""

    def prompt(self, number: int) -> str: ...

    @property
    def needs(self) -> Needs:
        """What a pool needs for the tasks of `asked` and `reply_asked`."""

    @property
    def digest(self) -> str:
        """A digest of all that decides prompts and rewards beside the settings; empty if nothing does."""

    def asked(self, number: int, *said: Any) -> Asked:
        """The task for a reward pool that gives this response's reward."""

    def reply_asked(self, number: int, *said: Any) -> FunctionTask | None:
        """The task for a pool that gives the reply to the last turn; None if the response is over."""


@runtime_checkable
class MadeTask(Task, Protocol):
    """A task that makes its own prompts, and so knows right answers."""

    def shown(self, number: int, random: Random, *said: Any) -> str:
        """The next turn that the warm-up shows the model to imitate; it need not be good."""

    def reply(self, number: int, *said: Any) -> Told | None:
        """The reply to the last turn; None if the response is over."""

    def reward(self, number: int, *said: Any) -> float:
        """The response's reward. Like `reply` it is computed here and now, and is what a pool would give."""
