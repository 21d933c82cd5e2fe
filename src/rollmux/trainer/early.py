"""Training that begins while a round's last responses are still drawn: which workers make room for it, and which
prompts go out.

Invariant: which prompts go out, and in which order, depends on the responses' tokens alone, as all else in a round.
Which workers make room does not: engines may be ahead of each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollmux.packer import Prompt, RolloutSnapshot, StreamPolicy, TrainedPrompt
from rollmux.packer.stream import Replica, Shrink, Unfinished
from rollmux.trainer.sample import Sample


class Trains(Protocol):
    """Computes gradients of samples before their batch is complete, while it has nodes for that."""

    @property
    def has_nodes(self) -> bool: ...

    def begin_early(self) -> None:
        """A round begins: forgets the samples of a round that came to no update."""

    def train_early(self, samples: Sequence[Sample]) -> None:
        """Takes all samples of one prompt."""

    def go_on(self) -> None:
        """Called often: time to look after the processes that compute."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A response that is not over, on this worker. `tokens` are its tokens by the round's token clock."""

    name: str
    worker: int
    prompt_tokens: int
    tokens: int


class Early:
    """Early training of one rollout: at most `most` prompts of a batch.

    With a `policy` workers are freed for it, if the policy finds any, and prompts go out from its first check point.
    """

    def __init__(
        self, trains: Trains, most: int, responses: int, policy: StreamPolicy | None, room_tokens: int
    ) -> None:
        self.trains = trains
        self.sent = set[Prompt]()
        self._most, self._responses, self._policy, self._room = most, responses, policy, room_tokens
        self._from = 0 if policy is None else policy.check_points(responses)[0]
        self._done = 0
        self._has_freed = False

    def begin(self) -> None:
        self.sent.clear()
        self._done = 0
        self._has_freed = False
        self.trains.begin_early()

    def is_due(self, done: int) -> bool:
        """Whether to ask the policy which workers can go, now that `done` responses are done."""
        before, self._done = self._done, min(done, self._responses)
        policy = self._policy
        return policy is not None and not self._has_freed and policy.due(before, self._done, self._responses)

    @property
    def wanted(self) -> int:
        """How many prompts may go out now."""
        return self._most - len(self.sent) if self._done >= self._from else 0

    def freed(self, there: Iterable[int], under_way: Sequence[UnderWay], lengths: Sequence[int]) -> frozenset[int]:
        """The workers of `there` that are to go now. `lengths` are those of an earlier round's responses."""
        assert self._policy is not None
        decision = self._policy.decide(
            RolloutSnapshot(
                self._done,
                self._responses,
                tuple(Replica(_name(worker), 1, self._room) for worker in there),
                tuple(Unfinished(each.name, _name(each.worker), each.prompt_tokens, each.tokens) for each in under_way),
                tuple(lengths),
            )
        )
        if not isinstance(decision, Shrink):
            return frozenset()
        self._has_freed = True
        return frozenset(map(int, decision.free))

    def send(self, trained: TrainedPrompt, samples: Sequence[Sample]) -> None:
        self.sent.add(trained.prompt)
        self.trains.train_early(samples)


def _name(worker: int) -> str:
    return f"{worker:04}"
