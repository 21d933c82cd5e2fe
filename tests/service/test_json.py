"""Every command says what it has to say as data too, and what it then prints is JSON and nothing else."""

import json
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.protocol.cluster_file import read_cluster
from rollmux.service.door import Door
from tests.service.running import CLUSTER, ROLLMUX, clean_env
from tests.service.serving import RULES, served
from tests.test_repository import ROOT

# Those that print no figures, and what they print or write instead.
WITHOUT = {
    "serve": "it goes on; its log is JSON by --log-format",
    "model fetch": "a folder",
    "states": "a page",
    "workload make": "a file",
    "workload import": "a file",
}
# Those that speak to no controller have tests of their own.
OFFLINE = {"demo", "simulate", "plan", "sweep", "job-sim", "train", "evaluate", "workload describe"}


def commands(group: Any, *above: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_but_few_has_the_option() -> None:
    lacking = {name for name, command in COMMANDS.items() if not any("--json" in p.opts for p in command.params)}
    assert lacking == set(WITHOUT)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each command of the service said, in an order in which all of them have something to say."""
    folder = tmp_path_factory.mktemp("controller") / "c"
    found: dict[str, Any] = {}
    here = ("--folder", str(folder))

    def run(name: str, *words: str, read: Callable[[str], Any] = json.loads) -> None:
        result = CliRunner().invoke(app, [*name.split(), *words, "--json", *here])
        assert result.exit_code == 0, f"{name}: {result.output}"
        found[name] = read(result.stdout)

    with served(folder, read_cluster(CLUSTER), RULES) as there:
        (folder / "url").write_text(there.service.url)
        (folder / "admin.token").write_text(there.admin)
        (folder / "admin.token").chmod(0o600)
        run("token create", "alice")
        run("token list")
        run("token revoke", "alice")
        run("submit", str(ROOT / "examples" / "job.yaml"))
        run("env")
        for name in ("explain", "story", "logs", "bill"):
            run(name, "arithmetic")
        run("status")
        run("trace")
        run("top", "--once")
        run("drain", "rollout-0")
        run("undrain", "rollout-0")
        run("doctor")
        run("journal backup")
        run("cancel", "arithmetic")
    run("journal verify")
    run("journal story", "arithmetic")
    run("journal replay")
    return found


def test_each_command_of_the_service_prints_data(said: dict[str, Any]) -> None:
    assert set(said) == set(COMMANDS) - set(WITHOUT) - OFFLINE
    assert all(each for each in said.values())


def test_a_shell_that_finds_no_controller_hears_of_it(tmp_path: Path) -> None:
    words = f'eval "$({shlex.join(ROLLMUX)} env --wait 0 --folder {tmp_path})"'
    done = subprocess.run(["bash", "-c", words], env=clean_env(), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "where is the controller? Give --folder, or" in done.stderr


def test_a_shell_waits_for_no_controller_that_it_can_not_come_to_know(tmp_path: Path) -> None:
    (tmp_path / "url").mkdir()
    words = [*ROLLMUX, "env", "--folder", str(tmp_path), "--wait", "3600"]
    done = subprocess.run(words, env=clean_env(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "false\n")
    assert "give --folder" in " ".join(done.stderr.replace("│", " ").split())


def test_a_shell_that_waits_for_a_controller_says_for_which_and_how_long(tmp_path: Path) -> None:
    words = [*ROLLMUX, "env", "--folder", str(tmp_path), "--wait", "2"]
    done = subprocess.run(words, env=clean_env(), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "false\n"
    assert done.stderr.startswith("waits for a controller, 2 s at most: where is the controller?")
    assert done.stderr.count("waits for") == 1


def test_a_shell_waits_no_longer_than_it_says_for_a_controller_that_starts(tmp_path: Path) -> None:
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        (tmp_path / "url").write_text(f"http://127.0.0.1:{at.getsockname()[1]}")
        door = Door(at)
        words = [*ROLLMUX, "env", "--folder", str(tmp_path), "--wait", "0"]
        done = subprocess.run(words, env=clean_env(), capture_output=True, text=True, check=False, timeout=15)
        door.close()
    assert done.stdout == "false\n"
    assert "the controller is starting" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shell_whose_wait_is_broken_off_starts_no_job_without_a_controller(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = [*ROLLMUX, "env", "--folder", str(tmp_path), "--wait", "3600"]
    with subprocess.Popen(words, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("waits for a controller")
        waiting.send_signal(number)
        assert waiting.communicate(timeout=60)[0] == "false\n"
        assert waiting.returncode == 128 + number


def test_the_data_say_what_was_done_to_what(said: dict[str, Any]) -> None:
    assert said["cancel"] == {"job": "arithmetic", "ok": True}
    assert said["drain"] == said["undrain"] == {"node": "rollout-0", "ok": True}
    assert said["token revoke"] == {"name": "alice", "ok": True}
    assert said["token create"]["token"].startswith("rollmux_")
    assert said["env"].keys() == {"ROLLMUX_URL", "ROLLMUX_TOKEN"}
    assert said["submit"]["job"] == said["bill"]["job"] == "arithmetic"
    assert said["journal verify"]["records"] == len(said["journal replay"])
    assert said["journal verify"]["jobs_live"] + said["journal verify"]["jobs_ended"] == 1
    assert any("JobSubmitted" in line for line in said["journal story"]["lines"])
