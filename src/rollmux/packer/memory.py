"""All that a batcher remembers, and the checkpoint made of it.

A checkpoint is plain JSON values. A batcher restored from it answers every later event as the saved one would have.
"""

from collections import deque
from typing import Any

from rollmux.errors import InvalidSpec, Problem
from rollmux.packer.batching import Batching
from rollmux.packer.eta import EtaPolicy
from rollmux.packer.known_long import KnownLong
from rollmux.packer.ledger import Ledger
from rollmux.packer.length_bias import LengthBias
from rollmux.packer.long_queue import Deferred, LongQueue
from rollmux.packer.prompt import Prompt, Request
from rollmux.packer.round import Round, Terms

VERSION = 1


class Memory:
    """The rounds, the queue and the books."""

    __slots__ = (
        "batching",
        "bias",
        "drawing",
        "dry",
        "eta",
        "fresh",
        "known_long",
        "ledger",
        "left",
        "number",
        "queue",
        "round",
        "told_tokens",
        "unheard",
    )

    def __init__(self, batching: Batching, eta: EtaPolicy, known_long: KnownLong | None) -> None:
        self.batching = batching
        self.eta = eta
        self.known_long = known_long
        self.queue = LongQueue(batching.lanes, batching.max_wait_rounds)
        self.ledger = Ledger()
        self.bias = LengthBias()
        self.number = 0  # of the last round started
        self.round: Round | None = None
        self.left: int | None = None  # rounds to come, with the one under way; None where the job does not say
        self.drawing = {domain: 0 for domain, _ in batching.lanes}  # prompts asked for that have not come yet
        self.fresh: dict[str, deque[Prompt]] = {domain: deque() for domain, _ in batching.lanes}  # for the next round
        self.dry: set[str] = set()  # domains whose data have ended
        self.unheard: dict[Request, bool] = {}  # aborted in the last round; whether its length counts as offered
        self.told_tokens = 0  # tokens that events have told of since the last batch

    def lane_of(self, prompt: Prompt) -> str:
        """The lane of a prompt: its domain, but without quotas all domains share one lane."""
        return prompt.domain if self.batching.quotas else ""

    def drawable(self, domain: str, count: int) -> int:
        """How many of `count` more prompts may be drawn: no more than the rounds to come would train."""
        if domain in self.dry:
            return 0
        if self.left is None:
            return count
        waiting = self.drawing[domain] + len(self.fresh[domain]) + len(self.queue.lanes[domain])
        if self.round is not None:
            waiting += self.round.lanes[domain].running
        return max(0, min(count, self.left * self.queue.quotas[domain] - waiting))

    def is_over(self, request: Request) -> bool:
        """Whether the request belongs to a round that is over."""
        return 0 < request.round <= self.number - (self.round is not None)

    def state(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "batching": _settings(self.batching),
            "policies": _policies(self.eta, self.known_long),
            "eta": self.eta.state(),
            "known_long": None if self.known_long is None else self.known_long.state(),
            "number": self.number,
            "left": self.left,
            "round": None if self.round is None else self.round.state(),
            "queue": [
                [domain, [[entry.round, *_fields(entry.prompt)] for entry in lane]]
                for domain, lane in self.queue.lanes.items()
            ],
            "fresh": [[domain, [_fields(prompt) for prompt in prompts]] for domain, prompts in self.fresh.items()],
            "drawing": dict(self.drawing),
            "dry": sorted(self.dry),
            "unheard": [[r.round, _fields(r.prompt), r.sample, counts] for r, counts in self.unheard.items()],
            "told_tokens": self.told_tokens,
            "ledger": self.ledger.state(),
            "bias": self.bias.state(),
        }

    def restore(self, state: dict[str, Any], terms: Terms) -> None:
        """Takes over a checkpoint. Raises InvalidSpec if it is broken, or of another version, settings or policies."""
        problems = self._misfits(state)
        if problems:
            raise InvalidSpec("checkpoint", problems)
        try:
            self._restore(state, terms)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            remedy = "give back unchanged what state() returned"
            raise InvalidSpec("checkpoint", (Problem("state", repr(error), "a whole checkpoint", remedy),)) from error

    def _misfits(self, state: dict[str, Any]) -> tuple[Problem, ...]:
        if not isinstance(state, dict) or state.get("version") != VERSION:
            version = state.get("version") if isinstance(state, dict) else state
            return (Problem("state.version", version, f"{VERSION}", "use the release that wrote the checkpoint"),)
        found = []
        for part, now in (
            ("batching", _settings(self.batching)),
            ("policies", _policies(self.eta, self.known_long)),
        ):
            then = state.get(part, {})
            for name, value in now.items():
                if then.get(name) != value:
                    limit = f"{then.get(name)!r} as in the checkpoint"
                    found.append(Problem(f"{part}.{name}", value, limit, "restore with what it was made with"))
        return tuple(found)

    def _restore(self, state: dict[str, Any], terms: Terms) -> None:
        self.eta.restore(state["eta"])
        if self.known_long is not None:
            self.known_long.restore(state["known_long"])
        self.number = state["number"]
        self.left = state.get("left")  # an older checkpoint does not say
        self.round = None if state["round"] is None else Round.from_state(state["round"], terms)
        for domain, entries in state["queue"]:
            for deferred_in, *fields in entries:
                self.queue.defer(domain, Deferred(deferred_in, Prompt(*fields)))
        for domain, prompts in state["fresh"]:
            self.fresh[domain].extend(Prompt(*fields) for fields in prompts)
        self.drawing.update(state["drawing"])
        self.dry.update(state["dry"])
        self.unheard = {
            Request(number, Prompt(*fields), sample): counts for number, fields, sample, counts in state["unheard"]
        }
        self.told_tokens = state["told_tokens"]
        self.ledger = Ledger.from_state(state["ledger"])
        self.bias = LengthBias.from_state(state["bias"])


def _fields(prompt: Prompt) -> list[int | str]:
    return [prompt.epoch, prompt.id, prompt.domain]


def _settings(batching: Batching) -> dict[str, Any]:
    """The settings that can't change during a job. The others, such as factors and retries, are read anew and may."""
    return {
        "prompts": batching.prompts,
        "responses": batching.responses,
        "race": batching.race.value,
        "quotas": [list(lane) for lane in batching.lanes],
        "max_wait_rounds": batching.max_wait_rounds,
    }


def _policies(eta: EtaPolicy, known_long: KnownLong | None) -> dict[str, Any]:
    return {"eta": type(eta).__name__, "known_long": None if known_long is None else type(known_long).__name__}
