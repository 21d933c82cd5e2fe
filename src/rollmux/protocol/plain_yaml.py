"""YAML files as plain data. No key may be there twice: YAML would keep the last one in silence.

A file that is of another kind than its reader wants is named: each of its keys would be a problem, and none the cause.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rollmux.errors import InvalidSpec, Problem

TO_SUBMIT, TO_TRAIN, CLUSTER = "rollmux submit", "rollmux train", "--cluster"

# Keys that only files for this have: its own, or those of a part.
_SIGNS = {
    TO_SUBMIT: {"slo", "command"},
    TO_TRAIN: {"task", "objective", "warmup", "optimiser"},
    CLUSTER: {"rollout.node", "train.node", "shared.node"},
}


class _Loader(yaml.SafeLoader):
    """Plain data only, and each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


# JSON's numbers are YAML's since 1.2; what reads 1.1 takes 2e-05 for a text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?[eE][-+]?\d+\Z", re.ASCII), list("-0123456789")
)


def read_plain(path: Path, subject: str, wanted: str = "") -> object:
    """What the file holds, or InvalidSpec about this subject, also where it is for something else than is wanted."""
    content = _loaded(path, subject)
    meant = _meant(content)
    if wanted and meant and wanted not in meant:
        problem = Problem("content", f"a file for `{meant[0]}`", f"one for `{wanted}`", f"give it to `{meant[0]}`")
        raise InvalidSpec(subject, (problem,))
    return content


def _meant(content: object) -> list[str]:
    if not isinstance(content, Mapping):
        return []
    parts = [(key, part) for key, part in content.items() if isinstance(part, Mapping)]
    keys = set(content) | {f"{key}.{inner}" for key, part in parts for inner in part}
    return [what for what, signs in _SIGNS.items() if signs & keys]


def _loaded(path: Path, subject: str) -> object:
    with path.open(encoding="utf-8-sig") as file:
        try:
            # A subclass of the safe loader. ValueError: dates and numbers that YAML takes for such, and bad UTF-8.
            return yaml.load(file, _Loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problem = Problem("content", " ".join(str(error).split()), "well-formed YAML in UTF-8", "mend it there")
            raise InvalidSpec(subject, (problem,)) from error
