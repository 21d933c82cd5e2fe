"""Reading what a server says without trusting it: each wrong type is a `ValueError` that names the field."""

import json
from typing import Any

from rollmux.runtime.engine.http.calls import Over, Piece

OVERS = {"stop": Over.STOP, "length": Over.LENGTH, "abort": Over.ABORT}


def thing(data: bytes) -> dict[str, Any]:
    """A JSON object."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"an object was expected, not {found!r:.120}")
    return found


def tokens(name: str, found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(each) is int and each >= 0 for each in found):
        raise ValueError(f"{name}: token ids were expected, not {found!r:.120}")
    return tuple(found)


def logprobs(name: str, found: object) -> tuple[float | None, ...]:
    if not isinstance(found, list) or not all(each is None or type(each) in (int, float) for each in found):
        raise ValueError(f"{name}: numbers were expected, not {found!r:.120}")
    return tuple(found)


def count(name: str, found: object) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{name}: a count was expected, not {found!r:.120}")
    return found


def over(found: object) -> Over | None:
    if found is None:
        return None
    return OVERS.get(found, Over.ERROR) if isinstance(found, str) else Over.ERROR


def error(found: object) -> Piece:
    """The piece for what both servers send in place of tokens when they fail in the middle of a stream."""
    message = found.get("message") if isinstance(found, dict) else found
    return Piece(over=Over.ERROR, why=f"the server says: {message!s:.300}")
