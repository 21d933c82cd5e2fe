"""An ordinary training script and the same with four lines more: alone they are one, and woven nothing changes."""

import difflib
import json
from pathlib import Path

import pytest

from tests.examples.playing import EXAMPLES, alone, command, controller, gain

FOLDER = EXAMPLES / "four_lines"


def test_four_lines_are_added_and_none_is_changed() -> None:
    before, after = ((FOLDER / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    assert changes == [
        "+ import rollmux",
        "+ mux = rollmux.connect()",
        '+ @mux.phase("rollout")',
        '+ @mux.phase("train")',
    ]


def test_two_copies_that_share_nodes_learn_what_the_ordinary_script_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = alone(FOLDER / "before.py", "1", said=tmp_path / "before")
    assert gain(ordinary) > 1.5
    assert alone(FOLDER / "after.py", "1", said=tmp_path / "after") == ordinary
    with controller(tmp_path / "controller", monkeypatch) as board:
        for name in ("one", "two"):
            command("submit", str(FOLDER / f"{name}.yaml"))
        board.wait(lambda jobs: all(view["state"] == "ended" for view in jobs))
        assert {view["job"]: view["reason"] for view in board.jobs()} == {"one": "finished", "two": "finished"}
        woven = {name: json.loads(command("logs", name, "--json"))["lines"] for name in ("one", "two")}
    assert woven["one"] == ordinary
    assert len(woven["two"]) == len(ordinary)
    assert woven["two"] != ordinary
