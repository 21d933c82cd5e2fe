"""The seam between whoever wants responses and whatever generates them.

An engine is driven by its owner: `step` does one piece of work and tells what came of it. It starts no thread of its
own and is called from one thread at a time. Nothing here needs torch.

Invariants: each request ends exactly once, by one `Ended` or by one `export`; its tokens depend on the request and the
weights alone, not on what runs beside it, nor on preemption, suspension or a move to another engine (but for servers
that can't promise it: `engine.http` says which).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from rollmux.runtime.engine.requests import Event, GenerationRequest, Unfinished


class Begun(Enum):
    """What an update of the weights does with responses that have begun."""

    REFUSE = "refuse"  # on-policy: there must be none. Let them end, cancel them or export them first
    RECOMPUTE = "recompute"  # their tokens stay, their keys and values are computed anew
    KEEP = "keep"  # their tokens stay, and so do keys and values of the old weights: no pause, but off-policy twice


@dataclass(frozen=True, slots=True)
class Gauges:
    """How an engine stands, and what it has done since it was made."""

    running: int
    waiting: int
    room_tokens: int
    held_tokens: int  # of the room, in whole pages
    nbytes: int  # memory held beside the model's own weights
    generated_tokens: int
    prefilled_tokens: int  # computed without a token coming of each: prompts, and what was computed anew
    recomputed_tokens: int  # of these, what had been computed before: after preemption, suspension, update or a move
    preemptions: int
    ended: int


class Engine(Protocol):
    """What every engine can do."""

    @property
    def version(self) -> int:
        """The version of the weights that draw the next token."""

    @property
    def is_suspended(self) -> bool: ...

    @property
    def unfinished(self) -> int:
        """Requests that are neither over nor exported."""

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request. `InvalidSpec`, and nothing changed, if it could never run or its id is in use."""

    def cancel(self, ids: Iterable[str]) -> None:
        """Ends requests with what they have; those that are not there are over already, which is no mistake.

        Nothing rests of them any more.
        """

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        """Takes requests out, all if none are named. Those that are not there are not in the answer."""

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        """Queues exported requests, all or none. Tokens of another version are refused unless `mixed`."""

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        """From the next token on there are new weights: these, by name, or those that the owner wrote in place."""

    def suspend(self, keep: bool = False) -> None:
        """Stops, and gives back the memory of keys and values unless told to keep it. Harmless if suspended."""

    def resume(self) -> None:
        """Goes on where it stopped. Harmless if it runs."""

    def step(self) -> list[Event]:
        """One piece of work. Of a suspended or idle engine: what is still to be told, without waiting."""

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Greedy tokens, computed beside the requests and at once."""

    def gauges(self) -> Gauges: ...

    def close(self) -> list[Event]:
        """Ends what is left as cancelled and gives everything back. The second time there is nothing to tell."""


def stream(engine: Engine) -> Iterator[Event]:
    """Drives an engine until nothing is left to do or it is suspended, and tells all that happens."""
    while True:
        events = engine.step()
        yield from events
        if not events and (not engine.unfinished or engine.is_suspended):
            return
