"""Hides special tokens that stand in a text which the model is told, while a chat template writes the text.

Else a page that a tool has read could end the tool's turn, and speak for the model. Invariant: a hidden text comes back
as it was, and apart from what the template writes.
"""

import re
from collections.abc import Sequence

from rollmux.runtime.rewards import Message

_MARK = "zvqj"  # templates that trim or quote leave it as it is, and it is found again in upper case, too


def hidden(messages: Sequence[Message], special: Sequence[str]) -> tuple[list[Message], str]:
    """The messages with a number between two marks in place of each special token; and the mark, which none of them
    has."""
    mark = _MARK
    while any(mark in text.lower() for message in messages for text in message.values()):
        mark += "x"
    longest_first = sorted(filter(None, special), key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def without(text: str) -> str:
        return known.sub(lambda found: f"{mark}{special.index(found[0])}{mark}", text)

    return [{name: without(text) for name, text in message.items()} for message in messages], mark


def parted(written: str, mark: str, special: Sequence[str]) -> list[str]:
    """The written text in pieces, cut wherever a token was hidden; these tokens are at the odd places."""
    pieces = re.split(rf"{mark}(\d+){mark}", written, flags=re.IGNORECASE)
    return [special[int(piece)] if place % 2 else piece for place, piece in enumerate(pieces)]
