"""The long-prompt queue: deferred prompts, oldest first, in the lane of their domain.

Invariant: if every round from now on were long, each prompt would be trained at most `max_wait` rounds after it was
deferred. A short round is run only if that still holds after it, so the bound holds whatever is launched.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollmux.packer.prompt import Prompt


class Deferred(NamedTuple):
    """A prompt that lost its race in this round."""

    round: int
    prompt: Prompt


class LongQueue:
    """The prompts that wait for a long round."""

    __slots__ = ("lanes", "max_wait", "quotas", "size")

    def __init__(self, quotas: Iterable[tuple[str, int]], max_wait: int) -> None:
        self.quotas = dict(quotas)
        self.max_wait = max_wait
        self.lanes: dict[str, deque[Deferred]] = {domain: deque() for domain in self.quotas}
        self.size = 0

    def defer(self, domain: str, entry: Deferred) -> None:
        self.lanes[domain].append(entry)
        self.size += 1

    def take(self, domain: str, count: int, now: int) -> list[Deferred]:
        """Up to `count` prompts of a lane, the oldest first; none that was deferred in this round runs in it again."""
        lane = self.lanes[domain]
        taken: list[Deferred] = []
        while len(taken) < count and lane and lane[0].round < now:
            taken.append(lane.popleft())
        self.size -= len(taken)
        return taken

    def must_run(self, round_number: int, surplus: Mapping[str, int]) -> bool:
        """Whether this round has to be long: a whole batch waits, or a prompt would otherwise wait too long."""
        if self.size >= sum(self.quotas.values()):
            return True
        return any(self._presses(domain, round_number, surplus[domain]) for domain in self.quotas)

    def _presses(self, domain: str, round_number: int, surplus: int) -> bool:
        """Whether a short round would leave too little time for the prompts that wait and those that it may defer."""
        lane, quota = self.lanes[domain], self.quotas[domain]
        if not lane:
            return False
        if len(lane) + surplus > self.max_wait * quota:
            return True
        # The first prompt of each batch has waited longer than the rest of it: it is enough to look at the first ones.
        firsts = range(0, len(lane), quota)
        return any(lane[place].round + self.max_wait <= round_number + place // quota for place in firsts)
