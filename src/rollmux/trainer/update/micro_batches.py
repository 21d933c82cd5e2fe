"""Which samples go through the model together.

Invariant: each sample is in exactly one micro-batch, and none but that of a single sample holds more than the budget,
padding counted.
"""

from collections.abc import Sequence

PASS_TOKENS = 128  # a pass costs about as much as so many more tokens: so much padding is cheaper than another pass


def micro_batches(widths: Sequence[int], budget: int) -> list[list[int]]:
    """The samples' places, the widest first, cut where the next would be above the budget or too much padding."""
    batches: list[list[int]] = []
    widest = padding = 0
    for place in sorted(range(len(widths)), key=lambda place: -widths[place]):
        padding += widest - widths[place]
        if batches and widest * (len(batches[-1]) + 1) <= budget and padding <= PASS_TOKENS:
            batches[-1].append(place)
        else:
            batches.append([place])
            widest, padding = widths[place], 0
    return batches
