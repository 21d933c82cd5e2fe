"""Whether a folder has all weights of a model, as far as that can be seen from here.

A server takes a folder that lacks some and says that all went well: vLLM leaves those as they were or, in a layer that
is put together of several, as anything that was in its memory. Names alone are read; shapes the server itself refuses.
"""

import json
from pathlib import Path

from rollmux.runtime.engine.errors import UpdateRefused

INDEX = "model.safetensors.index.json"
OUTPUT = "lm_head.weight"  # not written where it is one with the embedding, which a folder need not say
HEADER_MOST = 100 << 20  # the format allows no more
SHOWN = 3


def names_in(folder: str) -> frozenset[str]:
    """Of its safetensors. None are there where it can't be seen from here, has another form or is damaged."""
    place, found = Path(folder), set[str]()
    try:
        index = place / INDEX
        files = set(json.loads(index.read_bytes())["weight_map"].values()) if index.exists() else None
        for file in sorted(place.glob("*.safetensors")):
            if files is None or file.name in files:
                found |= _names_in_file(file)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return frozenset()
    return frozenset(found)


def _names_in_file(file: Path) -> set[str]:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > HEADER_MOST:
            raise ValueError(f"a header of {size} bytes")
        return set(json.loads(opened.read(size))) - {"__metadata__"}


def require_whole(folder: str, wanted: frozenset[str]) -> frozenset[str]:
    """The names in `folder`; `UpdateRefused` if any of those that are `wanted` are not there."""
    found = names_in(folder)
    lacking = sorted(name for name in wanted - found if not name.endswith(OUTPUT))
    if found and lacking:
        named = ", ".join(lacking[:SHOWN]) + (", ..." if len(lacking) > SHOWN else "")
        raise UpdateRefused(
            f"{folder!r} lacks {len(lacking)} of the model's {len(wanted)} weights ({named}), and the server would "
            "take it without a word: write all of them"
        )
    return found
