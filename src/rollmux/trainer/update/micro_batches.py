"""Which samples go through the model together: first which samples share a row, then which rows share a pass.

Invariant: each sample is in exactly one row, and each row in exactly one micro-batch. No micro-batch has more tokens
than the budget, padding counted, except for that of a single row with a single sample.
"""

from collections.abc import Sequence

from rollmux.trainer.sample import Sample

PASS_TOKENS = 128  # a pass costs about as much as so many tokens: up to this much padding is cheaper than a pass


def shared_rows(samples: Sequence[Sample], budget: int, pairs_per_token: float) -> list[list[int]]:
    """The samples' places in rows: samples of a group share a row, and compute their prompt once, if that is less work.

    Groups stay apart even if they have the same prompt: so rounding does not depend on other groups.
    Each token that is not computed again saves as much work as `pairs_per_token` pairs of attention; a shared row also
    computes, masked, the pairs between its samples. With 0 no row is shared.
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
    """The places in parts, in this order, each part as long as the budget allows."""
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
    """The rows' places in micro-batches, the widest first. A new one begins if the budget or the padding would be too
    much."""
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
