"""Whether a folder has all weights of a model, as far as that can be seen from here.

A server takes a folder that lacks weights, and says that all went well: vLLM leaves those as they were or, in a layer
that is made of several, as whatever its memory held. And SGLang ends if a folder is damaged, or of another model. So
the headers of the folder's safetensors are read; the weights themselves are not.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from rollmux.runtime.engine.errors import UpdateRefused

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
# The same weights in Mistral's names, and adapters: no trainer writes these.
OTHERS = ("consolidated", "adapter_model")
OUTPUT = "lm_head.weight"  # may be missing if it is tied to the embedding, which a folder need not say
HEADER_MOST = 100 << 20  # the format allows no more
SHOWN = 3
Shapes = Mapping[str, tuple[int, ...]]


def weights_in(folder: str) -> Shapes:
    """The folder's weights; empty if it can't be seen from here or has another form. `ValueError` if it is damaged."""
    place, found = Path(folder), dict[str, tuple[int, ...]]()
    try:
        index = place / INDEX
        file_of = json.loads(index.read_bytes())["weight_map"] if index.exists() else {}
        files = set(file_of.values())
        for file in sorted(place.glob("*.safetensors")):
            if file.name in files if files else not file.name.startswith(OTHERS):
                found |= _weights_in_file(file)
        if lacking := sorted(file_of.keys() - found.keys()):
            raise ValueError(f"{INDEX} names {len(lacking)} weights that no file has ({_named(lacking)})")
    except OSError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder!r} can't be read as safetensors: {error!s:.200}") from error
    return found


def _weights_in_file(file: Path) -> Shapes:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > HEADER_MOST:
            raise ValueError(f"{file.name} has a header of {size} bytes")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    told = 8 + size + max((each["data_offsets"][1] for each in header.values()), default=0)
    if told != (there := file.stat().st_size):
        raise ValueError(f"{file.name} is to have {told} bytes, and has {there}")
    return {name: tuple(each["shape"]) for name, each in header.items()}


def vocabulary_in(folder: str) -> int | None:
    """How many tokens the model of a folder has; None if that can't be seen from here."""
    try:
        told = json.loads((Path(folder) / CONFIG).read_bytes())
        size = (told | (told.get("text_config") or {})).get("vocab_size")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return size if type(size) is int and size > 0 else None


def require_whole(folder: str, wanted: Shapes) -> Shapes:
    """The weights in `folder`; `UpdateRefused` if it is damaged, or any of `wanted` is missing or of another shape."""
    try:
        found = weights_in(folder)
    except ValueError as error:
        raise UpdateRefused(f"{error}: write it anew, and give it its name when it is whole") from error
    if found:
        require_same(repr(folder), found, wanted)
    return found


def require_same(what: str, found: Shapes, wanted: Shapes) -> None:
    """`UpdateRefused` if any of `wanted` is missing from `found`, or of another shape there."""
    lacking = sorted(name for name in wanted.keys() - found.keys() if not name.endswith(OUTPUT))
    if lacking:
        raise UpdateRefused(
            f"{what} lacks {len(lacking)} of the model's {len(wanted)} weights ({_named(lacking)}), and would be "
            "taken without a word: give all of them"
        )
    other = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    if other:
        first = f"{list(found[other[0]])}, not {list(wanted[other[0]])}"
        raise UpdateRefused(f"{what} is of another model: {_named(other)} of another shape, {first}")


def _named(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
