"""Job code that fails in every way: contained to the job, its owner sees why, and its neighbour works on (F16)."""

import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rollmux.service.local.process_tree import everything
from tests.service.serving import PAIR, Served, job, served

NEIGHBOUR = """
import time, rollmux
with rollmux.connect() as mux:
    for step in mux.steps(4):
        for kind in ("rollout", "train"):
            with mux.phase(kind):
                time.sleep(0.05)
"""
BAD = """
import ctypes, os, signal, subprocess, sys, threading, time, rollmux
def bad():
    {what}
with rollmux.connect() as mux:
    with mux.phase({kind!r}):
        bad()
    with mux.phase("train"):
        bad()
"""
WAYS = {
    "raises": ('raise ValueError("the loss is nan")', "its last line: ValueError: the loss is nan"),
    "exits": ("os._exit(3)", "rank 0 ended with exit code 3; it printed nothing"),
    "says it is done, and is not": ("sys.exit(5)", "rank 0 ended with exit code 5"),
    "segfaults": ("ctypes.string_at(0)", "rank 0 was ended by SIGSEGV"),
    "aborts": ("os.abort()", "rank 0 was ended by SIGABRT"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)", "rank 0 was ended by SIGKILL"),
    "wants too much memory": ("x = bytearray(1 << 50)", "its last line: MemoryError"),
    "leaves a child behind": (
        'subprocess.Popen(["sleep", "600"], start_new_session=True); raise OSError("gone")',
        "its last line: OSError: gone",
    ),
    "recurses": ("bad()", "RecursionError"),
    "dies with all its threads at work": (
        "[threading.Thread(target=time.sleep, args=(600,)).start() for _ in range(9)]; os._exit(9)",
        "rank 0 ended with exit code 9",
    ),
}


def until_ended(there: Served, name: str, limit_s: float = 60.0) -> str:
    end = time.monotonic() + limit_s
    while there.get(f"/v1/jobs/{name}")["state"] != "ended":
        assert time.monotonic() < end, there.get(f"/v1/jobs/{name}")
        time.sleep(0.05)
    how: str = there.service.controller.machine.state.ended[name]
    return how


def submit(there: Served, folder: Path, name: str, script: str, **more: Any) -> None:
    (folder / f"{name}.py").write_text(script)
    command = [sys.executable, f"{name}.py"]
    there.post("/v1/jobs", job(name, command=command, folder=str(folder), iterations=4, **more))


QUICK = ("raises", "segfaults", "wants too much memory", "leaves a child behind")


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_what_a_job_s_code_does_to_itself_is_its_own_business(tmp_path: Path, way: str) -> None:
    what, why = WAYS[way]
    with served(tmp_path / "controller", PAIR) as there:
        submit(there, tmp_path, "neighbour", NEIGHBOUR, max_attempts=1)
        submit(there, tmp_path, "bad", BAD.format(what=what, kind="rollout"), max_attempts=2)
        how = until_ended(there, "bad")
        assert how.startswith("failed 2 times, at last: ")
        assert why in how
        assert why in there.get("/v1/jobs/bad")["reason"]  # its owner sees it
        assert until_ended(there, "neighbour") == "finished"
    folder = str(tmp_path)
    assert not [p.pid for p in everything() if _works_in(p.pid, folder)], "something of it is still there"


def _works_in(pid: int, folder: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == folder
    except OSError:
        return False


@pytest.mark.parametrize("megabytes", [20, pytest.param(1000, marks=pytest.mark.slow)], ids=["20 MB", "1 GB"])
def test_whoever_prints_without_end_keeps_nobody_up_and_fills_no_disk(tmp_path: Path, megabytes: int) -> None:
    script = f"""
import rollmux
with rollmux.connect() as mux:
    for step in mux.steps(4):
        with mux.phase("rollout"):
            if step == 0:
                for _ in range({megabytes} * 16):
                    print("x" * 65535)
        with mux.phase("train"):
            print("trains", step, flush=True)
"""
    with served(tmp_path / "controller", PAIR) as there:
        submit(there, tmp_path, "neighbour", NEIGHBOUR, max_attempts=1)
        submit(there, tmp_path, "loud", script, max_attempts=1)
        assert until_ended(there, "loud", 300.0) == "finished"
        assert until_ended(there, "neighbour", 300.0) == "finished"
        assert there.get("/v1/jobs/loud/log?lines=1")["lines"] == ["trains 3"]
        kept = sum(path.stat().st_size for path in (tmp_path / "controller").rglob("*.log*"))
    assert kept < 20e6 * 1.2


TIMED = """
import time, rollmux
with rollmux.connect() as mux:
    for step in mux.steps({steps}):
        began = time.monotonic()
        for kind in ("rollout", "train"):
            with mux.phase(kind):
                time.sleep(0.05)
        print(time.monotonic() - began, flush=True)
"""


def iteration_beside(folder: Path, script: str) -> float:
    """What an iteration takes a job that shares its nodes with this one: the median."""
    with served(folder / "controller", PAIR) as there:
        submit(there, folder, "partner", script, max_attempts=3)
        (folder / "timed.py").write_text(TIMED.format(steps=24))
        command = [sys.executable, "timed.py"]
        there.post("/v1/jobs", job("timed", command=command, folder=str(folder), iterations=24, max_attempts=1))
        assert until_ended(there, "timed", 120.0) == "finished"
        return median(map(float, there.get("/v1/jobs/timed/log?lines=100")["lines"]))


@pytest.mark.slow
def test_iterations_beside_a_job_that_fails_take_no_longer_than_beside_one_that_works(tmp_path: Path) -> None:
    pairs: list[tuple[float, float]] = []
    for look in range(3):  # a machine that is busy with something else slows one of them, and not each time
        good, bad = tmp_path / f"good-{look}", tmp_path / f"bad-{look}"
        good.mkdir()
        bad.mkdir()
        good_s = iteration_beside(good, TIMED.format(steps=4))
        bad_s = iteration_beside(bad, BAD.format(what="time.sleep(0.05); os.abort()", kind="rollout"))
        if bad_s <= 1.5 * good_s + 0.05:
            return
        pairs.append((good_s, bad_s))
    pytest.fail(f"seconds beside the one that works, and the one that fails: {pairs}")
