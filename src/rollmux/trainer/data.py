"""The order in which prompts are drawn: each of a task's prompts once in every epoch, shuffled anew for each.

Invariant: what is drawn next depends on the seed and the position alone, so the position is the whole checkpoint.
"""

from random import Random

from rollmux.packer import Prompt
from rollmux.trainer.seeds import derived


class Data:
    """Draws the numbers of `count` prompts, epoch after epoch."""

    def __init__(self, count: int, seed: int, position: int = 0) -> None:
        self._count, self._seed = count, seed
        self._shuffled: tuple[int, list[int]] = (-1, [])
        self.position = position

    @property
    def epoch(self) -> int:
        """The epoch of the next prompt."""
        return self.position // self._count

    def draw(self) -> Prompt:
        epoch, place = divmod(self.position, self._count)
        self.position += 1
        return Prompt(epoch, self._order(epoch)[place])

    def _order(self, epoch: int) -> list[int]:
        if self._shuffled[0] != epoch:
            numbers = list(range(self._count))
            Random(derived(self._seed, "order", epoch)).shuffle(numbers)
            self._shuffled = epoch, numbers
        return self._shuffled[1]
