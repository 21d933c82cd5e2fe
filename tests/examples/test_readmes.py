"""What the examples' pages show of the scripts is in the scripts."""

import re
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES

PAGES = sorted(EXAMPLES.glob("*/README.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.parent.name for page in PAGES])
def test_the_code_on_a_page_is_that_of_its_script(page: Path) -> None:
    scripts = [script.read_text() for script in page.parent.glob("*.py")]
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S):
        assert any(block in script for script in scripts), block


def test_the_difference_that_the_first_page_shows_is_that_of_its_scripts() -> None:
    page, after = ((EXAMPLES / "four_lines" / name).read_text() for name in ("README.md", "after.py"))
    (block,) = re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)
    lines = [line[1:] for line in block.splitlines() if line]
    assert len(lines) == 6
    places = [after.splitlines().index(line) for line in lines]
    assert places == sorted(places)
