"""What the README shows is what comes out. Commands of which it shows no output run, too: `test_repository.py`."""

import contextlib
import io
import re
from pathlib import Path

from typer.testing import CliRunner

from rollmux.cli import app
from tests.test_repository import console_blocks, is_preparation

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def lines(text: str) -> list[str]:
    """Words and numbers, whatever the width of a table."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")]


def test_each_command_shown_with_its_output_gives_that_output() -> None:
    shown = [block for block in console_blocks(README) if block.output and not is_preparation(block.commands[0])]
    assert len(shown) >= 2
    for commands, output in shown:
        (command,) = commands
        name, _, words = command.partition(" ")
        assert name == "rollmux"
        result = CliRunner().invoke(app, words.split())
        assert lines(result.output) == lines(output), command


def test_the_python_shown_prints_what_is_shown_below_it() -> None:
    shown = re.findall(r"^```python\n((?:(?!```).*\n)+)```\n\n```text\n((?:(?!```).*\n)+)```$", README, re.M)
    assert len(shown) >= 3
    for program, output in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "README.md", "exec"), {})
        assert printed.getvalue() == output
