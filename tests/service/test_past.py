"""`rollmux trace` and `rollmux bill`, of real jobs that share two nodes."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.protocol.cluster_file import read_cluster
from rollmux.service.history import seen
from tests.service.running import CLUSTER
from tests.service.serving import RULES, Served, served


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A controller on whose nodes two jobs have done five iterations each."""
    with served(tmp_path_factory.mktemp("controller"), read_cluster(CLUSTER), RULES) as found:
        env = {**os.environ, "ROLLMUX_URL": found.service.url, "ROLLMUX_TOKEN": found.admin}
        script = str(CLUSTER.parent / "job.py")
        copies = [subprocess.Popen([sys.executable, script, name], env=env) for name in "ab"]
        assert [copy.wait(60) for copy in copies] == [0, 0]
        yield found


def said(there: Served, *words: str, fails: bool = False) -> str:
    where = ("--url", there.service.url, "--token", there.admin)
    result = CliRunner().invoke(app, [*words, *where])
    assert (result.exit_code != 0) is fails, result.output
    return result.stdout if not fails else result.output


def test_the_trace_has_every_phase_on_its_node_one_after_the_other(there: Served, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert "Written:" in said(there, "trace", "--out", str(out))
    events: list[dict[str, Any]] = json.loads(out.read_text())["traceEvents"]
    nodes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[nodes[event["pid"], event["tid"]]].append(event)
    assert set(lanes) == {"rollout-0", "train-0"}
    for lane in lanes.values():
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(lane)), "a node held twice"
    done = {(e["args"]["job"], e["args"]["kind"], e["args"]["iteration"]) for lane in lanes.values() for e in lane}
    assert {(job, kind, step) for job in "ab" for kind in ("rollout", "train") for step in range(5)} <= done


def test_a_trace_says_what_is_forgotten_and_not_that_a_controller_is_young(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["trace", "--since", "1h", "--url", there.service.url, "--token", there.admin]
    assert CliRunner().invoke(app, words).stderr == ""
    monkeypatch.setattr(seen, "MOST_SHOWN", 3)
    assert "are not remembered" in CliRunner().invoke(app, words).stderr


def test_what_was_written_is_told_as_data_too(there: Served, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    told = json.loads(said(there, "trace", "--out", str(out), "--json"))
    assert told == {"written": str(out), "phases": len(there.get("/v1/history")["spans"])}
    assert json.loads(said(there, "trace", "--json")).keys() == json.loads(out.read_text()).keys()


def test_the_trace_shows_as_many_busy_seconds_as_the_books_have(there: Served) -> None:
    events = json.loads(said(there, "trace", "--since", "1h"))["traceEvents"]
    traced = sum(e["dur"] for e in events if e["ph"] == "X" and e["args"]["kind"] in {"rollout", "train", "sync"}) / 1e6
    pools = there.get("/v1/history")["pools"]
    assert traced == pytest.approx(sum(pool["busy_s"] for pool in pools), abs=0.01)


@pytest.mark.parametrize("since", ["1", "x", "0s", "3w", "40d", "-1h"])
def test_a_time_that_can_not_be_is_refused(there: Served, since: str) -> None:
    assert "write it like" in said(there, "trace", f"--since={since}", fails=True)


def test_bills_are_those_of_the_controller_and_add_up_to_the_clusters(there: Served) -> None:
    found = json.loads(said(there, "bill", "--json"))
    assert {job["job"] for job in found["jobs"]} == {"a", "b"}
    assert sum(job["usd"] for job in found["jobs"]) == pytest.approx(found["usd"], rel=1e-6)
    for job in found["jobs"]:
        assert json.loads(said(there, "bill", job["job"], "--json"))["iterations_done"] == 5
        assert {pool["pool"] for pool in job["held"]} == {"rollout", "train"}
    assert sum(job["alone_usd"] for job in found["jobs"]) > 0


def test_people_see_hours_dollars_and_what_was_saved(there: Served) -> None:
    text = said(there, "bill")
    assert "5 of 5" in text
    assert "finished" in text
    assert "with each job on its own" in text
    assert "there is no job 'nobody'" in said(there, "bill", "nobody", fails=True)
