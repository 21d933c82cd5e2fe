"""A log whose reader stalls: the controller goes on, loses no more than it must, and says how much that was."""

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import pytest

from rollmux.service import logs
from tests.service.running import Running, running
from tests.service.serving import job
from tests.waiting import until

# Of a call that is noted: so long a line is as much as half of what a pipe holds.
LONG = "x" * 30_000


@contextmanager
def unread(folder: Path) -> Iterator[tuple[Running, BinaryIO]]:
    """A controller whose log goes into a pipe, and the end of that which nobody reads yet."""
    reads, writes = os.pipe()
    json_lines = ("--log-format", "json")
    with open(reads, "rb") as end, open(writes, "wb") as start, running(folder, *json_lines, stderr=start) as there:
        start.close()
        yield there, end


def note(there: Running, calls: range) -> None:
    """Has a line written for each call, which is answered."""
    for number in calls:
        assert there.call("POST", f"/v1/jobs/{LONG}-{number}/cancel").status_code == 404


def test_a_log_that_nobody_reads_holds_nobody_up_and_what_is_missing_of_it_is_told(tmp_path: Path) -> None:
    most = logs.MOST_BYTES // len(LONG) + 20
    lines: list[dict[str, Any]] = []
    with unread(tmp_path) as (there, end):
        note(there, range(most))
        assert there.call("POST", "/v1/jobs", job("a")).status_code == 200
        attached = there.call("POST", "/v1/jobs/a/attach", {"instance": "one", "wait_s": 5.0}).json()
        asked = {"attempt": attached["attempt"], "kind": "rollout", "iteration": 0, "wait_s": 5.0}
        assert there.call("POST", "/v1/jobs/a/ask", asked).json()["lease"]
        reader = Thread(target=lambda: lines.extend(map(json.loads, end)))
        reader.start()
        until(lambda: missing_in(lines))
        note(there, range(most, most + 5))
        there.process.send_signal(signal.SIGTERM)
        assert there.process.wait(30) == 0
        reader.join()
    calls = [line["fields"]["call"] for line in lines if line["logger"] == "rollmux.audit"]
    kept = [int(call.rpartition("-")[2].removesuffix("/cancel")) for call in calls if LONG in call]
    assert kept == [*range(len(kept) - 5), *range(most, most + 5)]
    assert len(calls) + missing_in(lines) == most + 5 + 1  # one is about the job


def missing_in(lines: list[dict[str, Any]]) -> int:
    """So many lines are said to be missing."""
    return sum(line.get("fields", {}).get("missing", 0) for line in lines)


def test_a_log_that_nobody_reads_holds_up_no_end(tmp_path: Path) -> None:
    with unread(tmp_path) as (there, _):
        note(there, range(5))
        there.process.send_signal(signal.SIGTERM)
        assert there.process.wait(30) == 0


def test_lines_that_could_not_be_written_are_counted_until_that_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    with open(reads, "rb", buffering=0) as end, open(writes, "wb"):
        scribe = logs.Scribe(writes)
        scribe.setFormatter(logs.JsonLines())
        with monkeypatch.context() as patched, open("/dev/full", "wb") as full:
            patched.setattr(scribe, "_to", full.fileno())
            for text in ("lost", "lost", "lost"):
                scribe.emit(logging.makeLogRecord({"msg": text}))
                scribe.flush()
        scribe.emit(logging.makeLogRecord({"msg": "written"}))
        scribe.flush()
        lines = [json.loads(line) for line in end.read(10_000).splitlines()]
    assert [line["fields"]["missing"] for line in lines[:-1]] == [3]
    assert lines[-1]["message"] == "written"
