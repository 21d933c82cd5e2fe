"""Files of jobs as they are shipped, but for their length."""

from collections.abc import Mapping
from pathlib import Path


def shorten(path: Path, shorter: Mapping[str, str]) -> None:
    """Says the shorter of both where the file says the other."""
    text = path.read_text(encoding="utf-8")
    for long, short in shorter.items():
        assert long in text
        text = text.replace(long, short)
    path.write_text(text, encoding="utf-8")
