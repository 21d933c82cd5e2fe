"""Which samples go through the model together: first who shares a row, then which rows share a pass.

Invariant: each sample is in exactly one row and each row in exactly one micro-batch, and none but that of a single row,
which is a single sample if need be, holds more than the budget, padding counted.
"""

from collections.abc import Sequence

from rollmux.trainer.sample import Sample

PASS_TOKENS = 128  # a pass costs about as much as so many more tokens: so much padding is cheaper than another pass


def shared_rows(samples: Sequence[Sample], budget: int, pairs_per_token: float) -> list[list[int]]:
    """The samples' places, those of a group together that compute their prompt once, where that is less work.

    Groups stay apart even where they ask the same: what is rounded how is then no matter of who else is here.
    A token that is not computed again saves as much as `pairs_per_token` pairs of attention cost, of which a row has
    those between its samples too, masked; with 0 nobody shares.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault((sample.group, sample.prompt), []).append(place)
    rows = []
    for (_, prompt), places in groups.items():
        for row in _cut(places, [len(samples[place].tokens) for place in places], budget - len(prompt)):
            saves = _saves(len(prompt), [len(samples[place].tokens) for place in row], pairs_per_token)
            rows += [row] if saves else [[place] for place in row]
    return rows


def _cut(places: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """In this order, each part as long as the budget allows."""
    parts: list[list[int]] = []
    room = 0
    for place, length in zip(places, lengths, strict=True):
        if parts and length <= room:
            parts[-1].append(place)
            room -= length
        else:
            parts.append([place])
            room = budget - length
    return parts


def _saves(prompt: int, lengths: Sequence[int], pairs_per_token: float) -> bool:
    fewer_tokens = (len(lengths) - 1) * prompt
    more_pairs = (prompt + sum(lengths)) ** 2 - sum((prompt + length) ** 2 for length in lengths)
    return pairs_per_token > 0 and fewer_tokens * pairs_per_token > more_pairs


def micro_batches(widths: Sequence[int], budget: int) -> list[list[int]]:
    """The rows' places, the widest first, cut where the next would be above the budget or too much padding."""
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
