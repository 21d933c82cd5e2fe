"""What the repository says of itself is true: its commands run, its targets exist, its core stands alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from tests.shortened import shorten

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PREPARATIONS = ("make", "git clone", "pip install", "cd")  # of the reader's machine, not run here
COMMAND_LIMIT_S = 120


class Block(NamedTuple):
    """The `$ ` commands of a fenced console or bash block, continued lines joined, and the output it shows of them."""

    commands: list[str]
    output: str


def console_blocks(text: str) -> list[Block]:
    found = []
    for block in re.findall(r"^```(?:console|bash)\n(.*?)^```$", text, re.M | re.S):
        lines = block.replace("\\\n", " ").splitlines(keepends=True)
        commands = [line[2:].rstrip("\n") for line in lines if line.startswith("$ ")]
        if commands:
            found.append(Block(commands, "".join(line for line in lines if not line.startswith("$ "))))
    return found


def is_preparation(command: str) -> bool:
    return re.match(rf"(?:{'|'.join(PREPARATIONS)})(?:\s|$)", command) is not None


def make_targets(text: str) -> set[str]:
    """The targets of every `make` that a text shows as code."""
    calls: list[str] = re.findall(r"(?:^\$ |`)make(?![\w.])([^`\n#;&|]*)", text, re.M)
    words = [word for call in calls for word in call.split()]
    return {word for word in words if not word.startswith("-") and "=" not in word}


def repository_files() -> list[Path]:
    """What a commit of the working tree would hold."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository whose `.venv` is the environment of this run, and whose first job has little warm-up."""
    copy = tmp_path / "rollmux"
    for source in repository_files():
        target = copy / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    shorten(copy / "examples" / "train" / "arithmetic.yaml", {"warmup: {steps: 150,": "warmup: {steps: 2,"})
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


BLOCKS = console_blocks(README.read_text(encoding="utf-8")) if README.exists() else []


def test_the_readme_shows_commands() -> None:
    assert BLOCKS


WITHOUT_OUTPUT = [block.commands for block in BLOCKS if not block.output]  # the others: `test_readme.py`


def with_few_jobs(command: str, folder: Path) -> str:
    """A workload that has a name is a file of its own with few jobs: all of them take five seconds of a core."""
    for name in re.findall(r"--workload (\w+)(?= )", command):
        file = folder / f"{name}.csv"
        made = CliRunner().invoke(app, ["workload", "make", name, "--jobs", "40", "-o", str(file)])
        assert made.exit_code == 0, made.output
        command = command.replace(f"--workload {name} ", f"--workload {file} ")
    return command


@pytest.mark.parametrize("commands", WITHOUT_OUTPUT, ids=[block[0] for block in WITHOUT_OUTPUT])
def test_the_commands_of_a_readme_block_run_in_order(commands: list[str], checkout: Path) -> None:
    path = f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        if is_preparation(command):
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", with_few_jobs(command, checkout)],
            cwd=checkout,
            env=os.environ | {"PATH": path},
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


def test_the_controller_of_the_readme_starts_and_two_jobs_share_its_nodes(checkout: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    assert "rollmux serve" in block
    afterwards = """
    for job in $(jobs -p | tail -n +2); do wait "$job"; done
    rollmux status --json > status.json
    kill "$(jobs -p | head -n 1)"
    wait
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROLLMUX_")}
    env["PATH"] = f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block + afterwards],
        cwd=checkout,
        env=env | {"HOME": str(tmp_path), "ROLLMUX_PORT": "0"},
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0.6 s" in done.stdout or "No jobs." in done.stdout, "rollmux status shows what there is"
    assert {f"{name}: step 4 is done" for name in "ab"} <= set(done.stdout.splitlines())
    jobs = json.loads((checkout / "status.json").read_text(encoding="utf-8"))["jobs"]
    assert {(job["job"], job["reason"]) for job in jobs} == {("a", "finished"), ("b", "finished")}


def test_every_make_target_that_the_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    documents = [path for path in repository_files() if path.suffix == ".md"]
    named = {str(path): make_targets(path.read_text(encoding="utf-8")) for path in documents}
    assert {path: names - targets for path, names in named.items() if names - targets} == {}


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    private = re.compile(rb"(?<![\w.~-])/(?:work|home|root)/")
    assert [str(path) for path in repository_files() if private.search(path.read_bytes())] == []


def test_the_mux_loads_nothing_but_the_standard_library() -> None:
    program = """
import sys
before = set(sys.modules)
from rollmux.mux import *
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names - {"rollmux"}))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["rollmux.client", "rollmux.cli.remote"])
def test_who_calls_a_controller_loads_nothing_that_decides(module: str) -> None:
    """A job, and a look at the cluster, are ready the sooner."""
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    deciding = {"rollmux.mux.cluster_machine", "rollmux.mux.forecast", "rollmux.mux.plan", "rollmux.service"}
    assert module in done.stdout.split()
    assert deciding.isdisjoint(done.stdout.split())


def test_commands_are_found_in_blocks_and_nowhere_else() -> None:
    text = """
$ not in a block
```console
$ rollmux demo
its output
$ rollmux plan \\
    --jobs 3
```
```python
$ not a console
```
```bash
$ cd rollmux
$ cdrom
```
"""
    blocks = console_blocks(text)
    assert blocks == [
        (["rollmux demo", "rollmux plan      --jobs 3"], "its output\n"),
        (["cd rollmux", "cdrom"], ""),
    ]
    assert [is_preparation(command) for command in blocks[1].commands] == [True, False]


def test_make_targets_are_found_in_code_and_not_in_prose() -> None:
    text = "First make sure, then `make demo`; `make.py` is none:\n$ make -j2 PYTHON=python3 lint test  # both\n"
    assert make_targets(text) == {"demo", "lint", "test"}
