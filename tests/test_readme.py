"""What the README shows is what comes out. Commands of which it shows no output run, too: `test_repository.py`."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.test_repository import console_blocks, is_preparation

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def measured(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["measured"]


@pytest.mark.parametrize(
    ("shown", "policy"),
    [
        ("dedicated nodes", "solo"),
        ("training nodes only", "colocated"),
        ("`paper`", "paper"),
        ("the optimum", "optimal"),
        ("`rollmux`", "rollmux"),
    ],
)
def test_what_each_policy_costs_is_what_was_measured_last(shown: str, policy: str) -> None:
    (line,) = re.findall(rf"^\| {shown}[^|]*\|(.*)\| [^|]*\|$", README, re.M)
    rows = [
        row for row in measured("fluid")["rows"] if (row["jobs"], row["policy"], row["played"]) == (300, policy, "pace")
    ]
    assert [row["workload"] for row in rows] == ["mixed", "balanced", "rollout-heavy", "train-heavy"]
    assert [f"{row['whole-node']['mean']:.2f}" for row in rows] == re.findall(r"[\d.]+", line)
    assert [row["SLO"] for row in rows] == [1.0] * 4


def test_the_figures_of_the_controller_and_of_decisions_are_those_measured_last() -> None:
    text = " ".join(README.split())
    parts = {row["part"]: row for row in measured("permits")["rows"]}
    grants, looked_at = parts["grants"], parts["grants, looked at"]["p99_ms"]
    assert f"takes {grants['p50_ms']:.1f} ms, p99 {grants['p99_ms']:.1f} ms, {looked_at:.1f} ms while" in text
    constant, varying = (100 * goal["value"] for goal in measured("weave")["goals"][:2])
    assert f"within {constant:.1f} % of the forecast where phases are constant, and within {varying:.1f} % of" in text
    few, many = (
        row for row in measured("decisions")["rows"] if row["policy"] == "rollmux" and row["jobs"] in (100, 20000)
    )
    assert f"takes {few['p50']:.2f} ms with 100 jobs in the cluster and {many['p50']:.0f} ms with 20,000" in text
    assert f"(p99 {few['p99']:.1f} and {many['p99']:.0f} ms;" in text
    away_s = measured("recovery")["rows"][-1]["worst s"]
    assert f"back after {away_s:.1f} s" in text
