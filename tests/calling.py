"""Commands as a person calls them, in this process."""

import re

from typer import Typer
from typer.testing import CliRunner


def told(app: Typer, *words: object) -> tuple[int, str]:
    """The exit code and the output, without the frame and the line breaks of error messages."""
    result = CliRunner().invoke(app, [*map(str, words)])
    return result.exit_code, re.sub(r"[\s│]+", " ", result.output)


def printed(app: Typer, *words: object) -> str:
    """What `--json -` prints, and nothing else."""
    result = CliRunner().invoke(app, [*map(str, words), "--json", "-"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout
