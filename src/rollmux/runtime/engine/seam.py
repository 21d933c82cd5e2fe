"""The seam between whoever wants responses and whatever generates them.

An engine is driven by its owner: `step` does one piece of work and returns what came of it. An engine starts no thread
of its own and is called from one thread at a time. Nothing here needs torch.

Invariants: each request ends exactly once, by one `Ended` or by one `export`. Its tokens depend on the request and the
weights alone, not on what runs beside it, nor on preemption, suspension or a move to another engine (except for
servers that can't promise this: `engine.http` says which).
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
    KEEP = "keep"  # their tokens stay, and so do keys and values of the old weights: no pause, but twice off-policy


@dataclass(frozen=True, slots=True)
class Gauges:
    """How an engine stands, and what it has done since it was made."""

    running: int
    waiting: int
    room_tokens: int
    held_tokens: int  # what is in use of `room_tokens`, in whole pages
    nbytes: int  # memory held beside the model's own weights
    generated_tokens: int
    prefilled_tokens: int  # computed without drawing a token from each: prompts, and what was computed again
    recomputed_tokens: int  # those of them that had been computed before a preemption, suspension, update or move
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
        """Queues a request. `InvalidSpec`, with nothing changed, if it could never run or its id is in use."""

    def cancel(self, ids: Iterable[str]) -> None:
        """Ends requests with the tokens that they have. An id that is not there is no mistake: its request is over.

        Keys and values of theirs that rest are given up, too.
        """

    def export(self, ids: Iterable[str] | None = None) -> tuple[Unfinished, ...]:
        """Takes requests out: all of them if `ids` is None. Those that are not there are left out of the answer."""

    def adopt(self, unfinished: Iterable[Unfinished], mixed: bool = False) -> None:
        """Queues exported requests, all or none. Refuses tokens of another version unless `mixed`."""

    def update(self, version: int, weights: Mapping[str, Any] | None = None, begun: Begun = Begun.REFUSE) -> None:
        """From the next token on uses new weights: these, by name, or (None) those that the owner wrote in place."""

    def suspend(self, keep: bool = False) -> None:
        """Stops, and gives back the memory of keys and values unless `keep`. Does no harm if suspended already."""

    def resume(self) -> None:
        """Goes on where it stopped. Does no harm if it runs already."""

    def step(self) -> list[Event]:
        """Does one piece of work. A suspended or idle engine returns what is still to be told, without waiting."""

    def probe(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Computes greedy tokens at once, beside the requests."""

    def gauges(self) -> Gauges: ...

    def close(self) -> list[Event]:
        """Ends the requests that are left as cancelled, and gives all memory back. A second call returns nothing."""


def stream(engine: Engine) -> Iterator[Event]:
    """Drives an engine until nothing is left to do or it is suspended, and yields all events."""
    while True:
        events = engine.step()
        yield from events
        if not events and (not engine.unfinished or engine.is_suspended):
            return
