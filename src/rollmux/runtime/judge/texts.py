"""From a template and its fields to tokens.

Invariant: only the template has special tokens. What a response writes is text, even if it spells the end of a turn.
"""

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

Encode = Callable[[str, bool], list[int]]  # text, and whether it may name special tokens


def encoder(tokenizer: Any) -> Encode:
    """The `Encode` of a Hugging Face tokenizer."""

    def encode(text: str, special: bool) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        return found

    return encode


def prompt_tokens(encode: Encode, template: str, fields: Mapping[str, str]) -> tuple[int, ...]:
    """The template's own text and the fields between it, each encoded by itself."""
    tokens: list[int] = []
    own = ""
    for text, name, _, _ in Formatter().parse(template):
        own += text  # ends at a brace that is written twice
        if name is not None:
            tokens += encode(own, True) if own else []
            tokens += encode(fields[name], False)
            own = ""
    return (*tokens, *(encode(own, True) if own else []))
