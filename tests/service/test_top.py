"""`rollmux top` in a real terminal, over a controller that works, dies and comes back."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli.jobs import earlier
from rollmux.cli.top import Watcher
from rollmux.cli.top_screen import screen
from rollmux.protocol.views import ClusterView, JobView, LaneView, NodeView
from rollmux.service.door import Door
from tests.ports import free_port
from tests.service.running import ROLLMUX, Running, clean_env, running
from tests.service.serving import job, served
from tests.service.terminal import CTRL_C, ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR, plain, terminal

LEASE = ("--lease-s", "600")


def share(there: Running) -> None:
    """Job a holds the node for rollouts, b waits for it, c is in line."""
    for name in "abc":
        slo = 2.5 if name in "ab" else 1.05
        assert there.call("POST", "/v1/jobs", job(name, slo=slo)).status_code == 200
    for name in "ab":
        body = {"instance": "one", "wait_s": 5.0}
        attempt = there.call("POST", f"/v1/jobs/{name}/attach", body).json()["attempt"]
        ask = {"attempt": attempt, "kind": "rollout", "iteration": 0}
        lease = there.call("POST", f"/v1/jobs/{name}/ask", ask).json()["lease"]
        if lease is not None:
            there.call("POST", f"/v1/jobs/{name}/report", {"said": "started", "epoch": lease["epoch"]})


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """For those who only look."""
    with running(tmp_path_factory.mktemp("there"), *LEASE) as found:
        share(found)
        yield found


def said(there: Running, *words: str) -> str:
    done = subprocess.run(
        [*ROLLMUX, "top", "--folder", str(there.folder), *words],
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_it_shows_who_works_and_who_waits_survives_the_controllers_death_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    with (
        running(tmp_path / "c", *LEASE, port=port) as there,
        terminal("top", "--folder", str(there.folder), "--every", "0.3") as shown,
    ):
        share(there)
        first = shown.until("rollout(0) running for", "rollout(0): a for", "an hour shared", "queued", "% busy")
        assert ENTER_SCREEN in shown.drawn
        (node,) = [line for line in first.splitlines() if "rollout-0" in line]
        assert node.split() == ["group-0", "rollout-0", "rollout", "ready", "a"]
        there.process.kill()
        gone = shown.until("no controller answers", "(since 1 s)")
        assert "rollout(0): a" in gone, "what was known last is still there"
        with running(there.folder, *LEASE, port=port):
            shown.until("rollout(0): a", without="no controller answers")
            shown.press(CTRL_C)
            assert shown.ended() == 0
        assert LEAVE_SCREEN in shown.drawn
        assert SHOW_CURSOR in shown.drawn
        assert "Traceback" not in shown.drawn


def test_a_signal_leaves_the_terminal_as_it_was(there: Running) -> None:
    with terminal("top", "--folder", str(there.folder)) as shown:
        shown.until("rollout(0): a")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.ended() == 0
        assert LEAVE_SCREEN in shown.drawn


def test_a_controller_that_is_not_there_yet_is_waited_for() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with terminal("top", "--url", url, "--token", "x") as shown:
        shown.until("no answer yet", "is `rollmux serve` running?")
        shown.press(CTRL_C)
        assert shown.ended() == 0


def test_a_controller_that_is_starting_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as at, closing(Door(at)), httpx.Client() as client:
        watcher = Watcher(f"http://127.0.0.1:{at.getsockname()[1]}", "a-token", None, client)
        assert "is starting" in watcher.look().trouble


def test_one_look_is_text_or_data(there: Running) -> None:
    assert "rollout(0): a" in said(there, "--once")
    frame: dict[str, Any] = json.loads(said(there, "--once", "--json"))
    views = {view["job"]: view for view in frame["cluster"]["jobs"]}
    assert frame["trouble"] == ""
    assert views["b"]["lanes"][0]["waits_for"] == ["a"]
    assert [(wait["job"], wait["kind"]) for wait in frame["history"]["waits"]] == [("b", "rollout")]
    assert views["a"]["slo_headroom"] is None


def test_where_nobody_looks_on_it_wants_to_know_how_often(there: Running) -> None:
    done = subprocess.run(
        [*ROLLMUX, "top", "--folder", str(there.folder)],
        env=clean_env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--once" in done.stderr


def test_looks_as_json_are_a_line_each(there: Running) -> None:
    words = [*ROLLMUX, "top", "--folder", str(there.folder), "--json", "--every", "0.1"]
    with subprocess.Popen(words, env=clean_env(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, text=True) as looks:
        assert looks.stdout is not None
        lines = [json.loads(looks.stdout.readline()) for _ in range(3)]
        looks.send_signal(signal.SIGINT)
        assert looks.wait(30) == 0
    assert [line["unix_s"] for line in lines] == sorted({line["unix_s"] for line in lines})


def a_job(number: int, **more: Any) -> JobView:
    lane = LaneView("rollout", "waiting", 3, ("r",), 0, None, ("other",), 12.0)
    known = {"iterations": 9, "solo_s": 10.0, "iteration_s": 11.0, "recent_s": 12.0, "slowdown": 2.5, "slo": 2.0}
    first = (f"job-{number}", "t", "running", "group-0", 1, ("r",), ("t",), 4)
    return JobView(*first, **{**known, "usd_per_hour_alone": 1.0, "lanes": (lane,), **more})


@pytest.mark.parametrize(("height", "width"), [(24, 80), (24, 160), (50, 120)])
@pytest.mark.parametrize("trouble", ["", "no controller answers"])
def test_a_large_cluster_fits_on_the_screen_and_says_what_it_leaves_out(height: int, width: int, trouble: str) -> None:
    nodes = tuple(NodeView(f"rollout-{i}", "rollout", "ready", False, "group-0", ()) for i in range(300))
    cluster = ClusterView(1.0, 1, tuple(map(a_job, range(500))), nodes, 1.0, 2.0, 0.5)
    console = Console(width=width, height=height)
    with console.capture() as captured:
        console.print(screen("http://x", cluster, None, trouble, width, height))
    text = captured.get()
    assert len(text.splitlines()) <= height
    assert "more" in text
    assert "other, about" in text
    assert "-25%" in text
    assert "job-1 " in text, "names are whole"


def test_jobs_that_have_ended_are_counted_where_an_older_controller_does_not() -> None:
    cluster = ClusterView(1.0, 1, (a_job(0), *[replace(a_job(i), state="ended") for i in (1, 2)]), (), 1.0, 2.0, 0.5)
    console = Console(width=160)
    with console.capture() as captured:
        console.print(screen("http://x", cluster, None, "", 160))
    assert "2 have ended" in captured.get()
    assert earlier(cluster) == ()
    assert earlier(replace(cluster, ended=5))[0].startswith("3 jobs have ended before these")


@pytest.mark.parametrize("columns", [30, 40, 50, 70])
def test_a_narrow_terminal_shows_fewer_columns_and_every_name_whole(there: Running, columns: int) -> None:
    names = ("math-seed-1", "math-seed-2")
    for name in names:
        assert there.call("POST", "/v1/jobs", job(name, slo=1.05)).status_code == 200
    for command in ("top", "status", "bill"):
        with terminal(command, "--folder", str(there.folder), size=(60, columns)) as shown:
            if command == "top":
                text = shown.until(*names)
            else:
                assert shown.ended() == 0
                text = plain(shown.drawn)
        rows = [re.search(rf"(?m)^ *{name} .*$", text) for name in names]
        assert all(row and len(row[0].rstrip()) <= columns for row in rows), text


def test_a_terminal_that_can_t_be_drawn_on_is_told_to_look_once(there: Running) -> None:
    with terminal("top", "--folder", str(there.folder), kind="dumb") as shown:
        assert shown.ended() == 2
        assert "--once" in shown.drawn


def test_a_controller_that_its_folder_names_is_trusted_only_by_its_certificate_whatever_the_environment_names(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    with served(tmp_path, certificate=certificate) as there:
        (tmp_path / "url").write_text(there.service.local_url)
        (tmp_path / "admin.token").write_text(there.admin)
        env = {"ROLLMUX_URL": "http://127.0.0.1:1", "SSL_CERT_FILE": None}
        words = ["top", "--once", "--json", "--folder", str(tmp_path)]
        done = CliRunner().invoke(app, words, env=env)
        assert (done.exit_code, "CERTIFICATE_VERIFY_FAILED" in done.output) == (2, True)
        assert CliRunner().invoke(app, words, env=env | {"SSL_CERT_FILE": str(certificate[0])}).exit_code == 0
