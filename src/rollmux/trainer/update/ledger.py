"""The rewards of a batch, and the advantages that follow from them.

Invariant: advantages depend only on which responses there are. Sums are exact before they are rounded (`math.fsum`), so
neither the order of arrival nor the split over replicas changes a bit of an advantage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Self

from rollmux.errors import IllegalEvent
from rollmux.packer.gradient_share import Count
from rollmux.trainer.update.objective import Baseline, Objective


@dataclass(frozen=True, slots=True)
class Entry:
    """The part of a sample on which other samples' advantages and the counts depend."""

    group: str
    reward: float
    tokens: int  # drawn


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and deviation of some values. If all are equal, the mean is exactly their value, and the deviation 0."""

    mean: float
    deviation: float
    equal: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        low, high = min(values), max(values)
        if low == high:
            return cls(low, 0.0, True)
        mean = fsum(values) / len(values)
        return cls(mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1)), False)


@dataclass(frozen=True, slots=True)
class Affine:
    """What the whole batch does to an advantage: (x - shift) * scale."""

    shift: float = 0.0
    scale: float = 1.0

    def of(self, advantage: float) -> float:
        return (advantage - self.shift) * self.scale


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete batch: how much of it is trained, and how it changes advantages. `total` None: all was dropped."""

    total: Count | None
    affine: Affine
    rewards: Spread
    advantages: Spread | None
    dropped: int


class Ledger:
    """The samples so far, by group."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._groups: dict[str, list[Entry]] = {}

    @property
    def entries(self) -> list[Entry]:
        return [entry for entries in self._groups.values() for entry in entries]

    def book(self, entries: Iterable[Entry]) -> None:
        """Books all of these entries; none, and raises, if a group would have too many."""
        size, more = self._objective.group_size, list(entries)
        if size is not None:
            held = {entry.group: len(self._groups.get(entry.group, ())) for entry in more}
            for entry in more:
                held[entry.group] += 1
            self._refuse(group for group, count in held.items() if count > size)
        for entry in more:
            self._groups.setdefault(entry.group, []).append(entry)

    def is_known(self, group: str) -> bool:
        """Whether this group's advantages are final, except for the whole batch's part in them."""
        size = self._objective.group_size
        return not self._objective.needs_group or len(self._groups[group]) == size

    def drops(self, group: str) -> bool:
        return self._objective.drop_equal_groups and self._spread(group).equal

    def own_advantages(self, entries: Sequence[Entry]) -> list[float]:
        """The advantages before the whole batch's part in them."""
        if self._objective.baseline is not Baseline.GROUP_MEAN:
            return [entry.reward for entry in entries]
        spreads = {group: self._spread(group) for group in {entry.group for entry in entries}}
        return [self._in_group(entry.reward, spreads[entry.group]) for entry in entries]

    def whole(self) -> Whole:
        """The batch as it stands, taken as complete."""
        if not self._groups:
            raise IllegalEvent("the batch has no sample: add some, or skip the update")
        size = self._objective.group_size
        self._refuse(group for group, entries in self._groups.items() if size not in (None, len(entries)))
        dropped = {group for group in self._groups if self.drops(group)}
        kept = [entry for entry in self.entries if entry.group not in dropped]
        rewards = Spread.of([entry.reward for entry in self.entries])
        if not kept:
            return Whole(None, Affine(), rewards, None, len(dropped))
        advantages = Spread.of(self.own_advantages(kept))
        total = Count(len(kept), sum(entry.tokens for entry in kept))
        return Whole(total, self._affine(advantages), rewards, advantages, len(dropped))

    def _spread(self, group: str) -> Spread:
        return Spread.of([entry.reward for entry in self._groups[group]])

    def _in_group(self, reward: float, group: Spread) -> float:
        if not self._objective.group_std:
            return reward - group.mean
        return (reward - group.mean) / (group.deviation + self._objective.epsilon)

    def _affine(self, advantages: Spread) -> Affine:
        if self._objective.whiten:
            return Affine(advantages.mean, 1 / (advantages.deviation + self._objective.epsilon))
        return Affine(advantages.mean) if self._objective.needs_batch else Affine()

    def _refuse(self, groups: Iterable[str]) -> None:
        wrong = sorted(groups)
        if wrong:
            raise IllegalEvent(
                f"{len(wrong)} groups, first {wrong[0]!r}, have or would have other than "
                f"{self._objective.group_size} samples: give all of each once, or set group_size to None"
            )
