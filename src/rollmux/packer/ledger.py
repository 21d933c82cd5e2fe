"""What became of each prompt: it is drawn once, and ends once as trained, filtered or failed.

Ids are kept for a domain's newest epoch and the one before, so that memory does not grow with the length of training.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from rollmux.packer.prompt import Prompt


class Outcome(Enum):
    """How a prompt left a round. A deferred prompt runs again; the others are at their end."""

    TRAINED = "trained"
    FILTERED = "filtered"
    FAILED = "failed"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Account:
    """The prompts of one epoch."""

    drawn: int = 0
    trained: int = 0
    filtered: int = 0
    failed: int = 0

    @property
    def waiting(self) -> int:
        """How many prompts were drawn and are not at their end: they run, wait in the queue or for the next round."""
        return self.drawn - self.trained - self.filtered - self.failed


class Ledger:
    """Counts per epoch, and the ids that can't be drawn again."""

    __slots__ = ("_counts", "_seen", "_waiting")

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, int]] = {}
        self._seen: dict[str, dict[int, set[int | str]]] = {}
        self._waiting: set[Prompt] = set()

    def refusal(self, prompt: Prompt) -> str | None:
        """Why this prompt can't be drawn now; None if it can."""
        if not isinstance(prompt.domain, str) or type(prompt.id) not in (int, str):
            return "an id is a whole number or a string, a domain a string"
        if type(prompt.epoch) is not int or prompt.epoch < 0:
            return "an epoch is a whole number from 0"
        epochs = self._seen.get(prompt.domain)
        if epochs is None:
            return None
        newest = max(epochs)
        if prompt.epoch < newest - 1:
            return f"epoch {newest} has begun: only it and the one before it are drawn from"
        return "it was drawn before" if prompt.id in epochs.get(prompt.epoch, ()) else None

    def draw(self, prompt: Prompt) -> None:
        epochs = self._seen.setdefault(prompt.domain, {})
        if prompt.epoch not in epochs:
            epochs[prompt.epoch] = set()
            for old in [epoch for epoch in epochs if epoch < max(epochs) - 1]:
                del epochs[old]
        epochs[prompt.epoch].add(prompt.id)
        self._waiting.add(prompt)
        counts = self._counts.setdefault(prompt.epoch, {"drawn": 0, "trained": 0, "filtered": 0, "failed": 0})
        counts["drawn"] += 1

    def end(self, prompt: Prompt, outcome: Outcome) -> None:
        self._waiting.remove(prompt)
        self._counts[prompt.epoch][outcome.value] += 1

    def accounts(self) -> dict[int, Account]:
        """What became of the prompts of each epoch so far."""
        return {epoch: Account(**counts) for epoch, counts in sorted(self._counts.items())}

    def waiting(self) -> tuple[Prompt, ...]:
        """The prompts that are not at their end."""
        return tuple(sorted(self._waiting))

    def state(self) -> dict[str, Any]:
        return {
            "counts": [[epoch, dict(counts)] for epoch, counts in self._counts.items()],
            "seen": [
                [domain, [[epoch, sorted(ids, key=_by_kind)] for epoch, ids in epochs.items()]]
                for domain, epochs in self._seen.items()
            ],
            "waiting": [[p.epoch, p.id, p.domain] for p in self.waiting()],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Ledger":
        ledger = cls()
        ledger._counts = {epoch: dict(counts) for epoch, counts in state["counts"]}
        ledger._seen = {domain: {epoch: set(ids) for epoch, ids in epochs} for domain, epochs in state["seen"]}
        ledger._waiting = {Prompt(*fields) for fields in state["waiting"]}
        return ledger


def _by_kind(identity: int | str) -> tuple[bool, int | str]:
    return isinstance(identity, str), identity
