"""Pages that are one file each: style and script stand in it, and a security policy names their hashes."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib.resources import files


def asset(package: str, name: str) -> str:
    """A file that comes with a package."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def joined(scripts: Iterable[str]) -> str:
    """Joins these into one closed script, in their order: each uses what stands before it."""
    return f'(() => {{\n"use strict";\n{"".join(scripts)}}})();\n'


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with each {{name}} replaced by the part of that name."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def source(text: str) -> str:
    """How a security policy names a style or a script."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
