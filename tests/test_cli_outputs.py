"""Where commands may write: said before the work, with what would help."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli.outputs import require_folder, require_writable, write_text
from rollmux.service.tokens import Role, Tokens
from rollmux.sim.generate import GENERATORS
from rollmux.sim.workload_file import write_workload

ROLLMUX = str(Path(sys.executable).with_name("rollmux"))

WHERE = "(PYTHONDEVMODE=1 shows where)"


@pytest.mark.parametrize("name", ["new.json", "there.json"])
def test_a_file_in_a_folder_that_is_there_is_fine_and_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.json").write_text("before")
    require_writable("--json", tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.json", "before")]


def test_nothing_standard_output_and_devices_are_fine() -> None:
    for out in (None, Path("-"), Path("/dev/null")):
        require_writable("--json", out)


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("", "must be a file, this is a folder; name a file in it"),
        ("no/out.json", "is not; make it first"),
        ("file/out.json", "file is a file; name a file in a folder"),
    ],
)
def test_what_can_not_be_a_file_is_refused(tmp_path: Path, name: str, trouble: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.BadParameter) as refused:
        require_writable("--report", tmp_path / name)
    assert refused.value.message.startswith(f"--report {tmp_path / name}: must be ")
    assert refused.value.message.endswith(trouble)


@pytest.mark.parametrize(
    ("name", "trouble"), [("there.json", "name another one"), ("new.json", "name a file in another one")]
)
def test_what_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, trouble: str
) -> None:
    (tmp_path / "there.json").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # nothing is closed to root
    with pytest.raises(typer.BadParameter, match=trouble):
        require_writable("--json", tmp_path / name)


def test_a_full_disk_behind_standard_output_is_said_too() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [ROLLMUX, "simulate", "--workload", "burst", "--policy", "solo", "--json", "-"]
        wrote = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert wrote.returncode == 2
    assert "No space left on device" in wrote.stderr


def test_a_name_that_is_no_text_is_written_as_far_as_it_is_one(tmp_path: Path) -> None:
    name = os.fsdecode(b"J\xf6b")  # of a file from an old system
    write_text(f"jobs of {name}\n", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "jobs of J\\udcf6b\n"


def test_what_fails_while_writing_is_said_too(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"can't write .*out\.json: No such file"):
        write_text("text", tmp_path / "gone" / "out.json")


@pytest.mark.parametrize("words", ["states", "--help", "token create lost --folder {folder}"])
def test_a_full_disk_behind_any_command_is_one_line(tmp_path: Path, words: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [ROLLMUX, *words.format(folder=tmp_path).split()]
        wrote = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (wrote.returncode, wrote.stderr) == (1, f"Error: No space left on device {WHERE}\n")
    assert Tokens(tmp_path, time.time).names() == [], "a token that nobody has seen is none"


def test_letters_that_standard_output_does_not_have_are_left_out(tmp_path: Path) -> None:
    Tokens(tmp_path, time.time).create("für", Role.ADMIN)
    command = [ROLLMUX, "token", "list", "--folder", str(tmp_path)]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    wrote = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (wrote.returncode, wrote.stdout) == (0, "f?r: admin\n"), wrote.stderr


def test_a_file_that_can_not_be_made_is_said_by_name() -> None:
    result = CliRunner().invoke(app, ["model", "fetch", "smollm2", "--out", "/proc/x/y"])
    assert (result.exit_code, result.output) == (1, "Error: /proc/x: No such file or directory\n")


def commands_of(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands_of(command, *before, name)
        else:
            yield (*before, name), command


COMMANDS = list(commands_of(get_command(app)))


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_the_help_of_each_option_is_shown_whole(words: tuple[str, ...], command: Any) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "500"})
    shown = " ".join(result.output.split())
    for each in command.params:
        told = (each.help or "").replace("\\[", "[")
        assert " ".join(told.split()) in shown


def test_whoever_develops_sees_where() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        env = os.environ | {"PYTHONDEVMODE": "1"}
        wrote = subprocess.run(
            [ROLLMUX, "states"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env
        )
    assert "Traceback" in wrote.stderr


@pytest.mark.parametrize(
    ("words", "usual", "narrow"),
    [
        ("simulate --workload {mixed} --policy solo,most-idle --fidelity pace", "most-idle", "most-idle"),
        ("plan {mixed} --policy solo", "rollout-0", "job-1 "),
        ("job-sim --setup 7B/8k --system sync --steps 1", "mean length", "sync "),
        (
            "sweep --workload {mixed} --policy random,most-idle --seeds 2 --workers 1 --out {results}",
            "100.0% ± 0.0%",
            "most-idle",
        ),
        ("demo --virtual --hours 1", "rollout-0", "7B-8K-single "),
    ],
)
@pytest.mark.parametrize("columns", [80, 40])
def test_no_figure_and_no_name_is_cut_on_a_terminal(
    words: str, usual: str, narrow: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", str(columns))
    mixed = tmp_path / "mixed.csv"
    write_workload(GENERATORS["mixed"](0, 6), mixed)
    result = CliRunner().invoke(app, words.format(mixed=mixed, results=tmp_path / "results.jsonl").split())
    assert result.exit_code == 0, result.output
    assert (usual if columns == 80 else narrow) in result.stdout
    assert "…" not in result.stdout


@pytest.mark.parametrize("name", ["new", "new/below", "there"])
def test_a_folder_for_results_is_made_unless_it_is_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    require_folder("--out", tmp_path / name)
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize(("name", "trouble"), [("file", "this is no folder"), ("gone", "this is no folder")])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str, trouble: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "disk-that-is-not-mounted")
    with pytest.raises(typer.BadParameter) as refused:
        require_folder("--out", tmp_path / name)
    assert refused.value.message == f"--out {tmp_path / name}: {trouble}; name another folder"


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # nothing is closed to root
    with pytest.raises(typer.BadParameter, match="you may not write there; name another folder"):
        require_folder("--out", tmp_path)


@pytest.mark.parametrize(
    "words", ["demo --engine replay --out {folder}", "train {job} --out {folder}", "serve --folder {folder} --port 0"]
)
def test_where_no_folder_can_be_made_the_option_for_another_one_is_named(words: str) -> None:
    folder = "/sys/rollmux"  # where nobody makes folders
    job = Path(__file__).parent.parent / "examples" / "train" / "arithmetic.yaml"
    option = next(word for word in words.split() if word in ("--out", "--folder"))
    result = CliRunner().invoke(app, words.format(folder=folder, job=job).split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert folder in result.stderr
    assert option in result.stderr
    assert "another" in result.stderr
