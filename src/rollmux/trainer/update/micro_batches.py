"""Which samples go through the model together.

Invariant: each sample is in exactly one micro-batch, and none but that of a single sample holds more than the budget,
padding counted.
"""

from collections.abc import Sequence

PADDED_PART = 0.25  # a row is begun anew rather than filled up by more than this; measured in benchmarks/update.py


def micro_batches(widths: Sequence[int], budget: int) -> list[list[int]]:
    """The samples' places, the widest first, cut where the next would be above the budget or mostly padding."""
    batches: list[list[int]] = []
    widest = 0
    for place in sorted(range(len(widths)), key=lambda place: -widths[place]):
        fits = batches and widest * (len(batches[-1]) + 1) <= budget
        if fits and widths[place] >= widest * (1 - PADDED_PART):
            batches[-1].append(place)
        else:
            batches.append([place])
            widest = widths[place]
    return batches
