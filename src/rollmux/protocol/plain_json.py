"""JSON texts as plain data. No key may be there twice: else the last one would silently count."""

import json
from typing import Any

import msgspec


def read_object(content: bytes) -> dict[str, Any]:
    """The keys and values of this text. Raises msgspec.DecodeError."""
    found = msgspec.json.decode(content, type=dict[str, Any])
    try:
        json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    return found


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"the key {name[:80]!r} is there twice")
        names.add(name)
