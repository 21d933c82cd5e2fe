"""YAML files as plain data. No key may be there twice: YAML would keep the last one in silence.

If a file is of another kind than its reader wants, the error says which: else each of its keys would be a problem, and
none the cause. What is said beside a file (`optimiser.rate=1e-4`) counts as if it stood in the file.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import yaml

from rollmux.errors import InvalidSpec, Problem

TO_SUBMIT, TO_TRAIN, CLUSTER = "rollmux submit", "rollmux train", "--cluster"

# For each kind of file, keys that only such files have: keys of the file itself, or of a part.
_SIGNS = {
    TO_SUBMIT: {"slo", "command"},
    TO_TRAIN: {"task", "objective", "warmup", "optimiser"},
    CLUSTER: {"rollout.node", "train.node", "shared.node"},
}


class _Loader(yaml.SafeLoader):
    """Plain data only, and each key once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as it stands in the file: later, merged keys (`<<`) are among its own."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add(key.value)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """JSON writes a character beyond the first 65,536 as two escapes, which this library takes for two of them."""
        return _TWO_HALVES.sub(_joined, super().construct_scalar(node))


class _Dumper(yaml.SafeDumper):
    """Quotes texts that the loader would take for something else, and escapes line breaks that are not ASCII's: YAML
    would read them as ASCII's."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, '"' if _BREAKS & set(text) else None)


def _joined(halves: re.Match[str]) -> str:
    return halves[0].encode("utf-16", "surrogatepass").decode("utf-16")


_TWO_HALVES = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_BREAKS = set("\x85\u2028\u2029")
_Dumper.add_representer(str, _Dumper.represent_str)

# Since YAML 1.2 JSON's numbers are numbers; this library reads YAML 1.1, and would take 2e-05 for a text.
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?[eE][-+]?\d+\Z", re.ASCII),
        list("-0123456789"),
    )


def read_plain(path: Path, subject: str, wanted: str = "", changes: Sequence[str] = ()) -> object:
    """What the file holds, with these changes. Raises InvalidSpec about this subject, also if the file is for something
    else than is wanted."""
    with path.open(encoding="utf-8-sig") as file:
        content = _loaded(file, subject, "content")
    meant = _meant(content)
    if wanted and meant and wanted not in meant:
        problem = Problem("content", f"a file for `{meant[0]}`", f"one for `{wanted}`", f"give it to `{meant[0]}`")
        raise InvalidSpec(subject, (problem,))
    for change in changes:
        content = _changed(content, change, subject)
    return content


def written_plain(data: Mapping[str, Any]) -> str:
    """A file's text, from which `read_plain` reads the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _changed(content: object, change: str, subject: str) -> dict[str, Any]:
    """The content with the change `KEY=VALUE`: dots lead to a part's key, and the value is written as in the file."""
    key, is_said, value = change.partition("=")
    *parts, last = key.split(".")
    if not is_said or not all((*parts, last)):
        remedy = "as in rollout.nodes=2, with values as in the file"
        raise InvalidSpec(subject, (Problem("changes", change, "KEY=VALUE, with dots before a part's key", remedy),))
    changed = inner = _part(content, "the file", change, subject)
    for part in parts:
        inner[part] = inner = _part(inner.get(part), part, change, subject)
    inner[last] = found = _loaded(value, subject, key) if value else ""
    if isinstance(found, str) and found.count("#") < value.count("#"):
        limit, remedy = "without a comment, which ends it at #", "put the text in quotes, within those of the shell"
        raise InvalidSpec(subject, (Problem(key, value, limit, remedy),))
    return changed


def _part(content: object, name: str, change: str, subject: str) -> dict[str, Any]:
    """A copy of a part's keys: an anchor's content stands at several places, and only one of them is to change."""
    if content is None:
        return {}
    if isinstance(content, dict):
        return dict(content)
    raise InvalidSpec(subject, (Problem("changes", change, f"keys in {name}, which has none", "give its value whole"),))


def _meant(content: object) -> list[str]:
    if not isinstance(content, Mapping):
        return []
    parts = [(key, part) for key, part in content.items() if isinstance(part, Mapping)]
    keys = set(content) | {f"{key}.{inner}" for key, part in parts for inner in part}
    return [what for what, signs in _SIGNS.items() if signs & keys]


def _loaded(text: str | TextIO, subject: str, place: str) -> object:
    try:
        # A subclass of the safe loader. ValueError: what looks like a date or a number and is none, and bad UTF-8.
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = Problem(place, _why(error), "well-formed YAML in UTF-8", "mend it there")
        raise InvalidSpec(subject, (problem,)) from error


def _why(error: Exception) -> str:
    """What is wrong, and where, in one short line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
