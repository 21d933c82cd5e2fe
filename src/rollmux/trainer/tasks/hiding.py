"""What is told, given to a chat template without the special tokens that are written in it.

A page that a tool has read could end the tool's turn, and speak for the model. Invariant: what was hidden comes back as
it was, and apart from what the template writes.
"""

import re
from collections.abc import Sequence

from rollmux.runtime.rewards import Message

_MARK = "zvqj"  # a template that trims or quotes leaves it as it is, and one that shouts is understood


def hidden(messages: Sequence[Message], special: Sequence[str]) -> tuple[list[Message], str]:
    """With a number between two marks for each special token; and the mark, which nothing of what is told has."""
    mark = _MARK
    while any(mark in text.lower() for message in messages for text in message.values()):
        mark += "x"
    longest_first = sorted(filter(None, special), key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def without(text: str) -> str:
        return known.sub(lambda found: f"{mark}{special.index(found[0])}{mark}", text)

    return [{name: without(text) for name, text in message.items()} for message in messages], mark


def parted(written: str, mark: str, special: Sequence[str]) -> list[str]:
    """What was written, cut wherever something was hidden; that stands between the pieces."""
    pieces = re.split(rf"{mark}(\d+){mark}", written, flags=re.IGNORECASE)
    return [special[int(piece)] if place % 2 else piece for place, piece in enumerate(pieces)]
