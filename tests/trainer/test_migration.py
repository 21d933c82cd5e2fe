"""A rollout's tail moves together on the controller's word, and the next job begins on the node that is free: both come
to the bytes that they come to alone."""

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from rollmux.client import Mux, aside
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.weave import Timing
from rollmux.protocol.messages import Said
from rollmux.runtime import engine as engines
from rollmux.runtime.engine import LocalEngine
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.workers import Workers
from tests.client.world import Crowd, World, job_data
from tests.service.serving import CHEAP, DEAR, Served, served
from tests.trainer.jobs import TINY, alone, left_behind, tiny

STEPS = 3
ROLLOUT = {"workers": 2, "max_length": 48, "room_tokens": 4096}
DOUBLE = {"hidden": 16, "layers": 1, "heads": 2, "dtype": "float64"}
TASK = {"prompts": 40, "largest": 3, "median": 2, "spread": 0.5, "longest": 5, "careless": 0.3}
WARMUP = {"steps": 120, "batch": 16, "rate": 1e-2}
WIDE = {"nodes": 2, "duration_s": 5.0}
TAIL = {"requests": 20, "requests_per_node": 20, "bulk_s": 4.0, "trigger": 0.3}


def job(seed: int) -> dict[str, Any]:
    return {**TINY, "seed": seed, "steps": STEPS, "model": DOUBLE, "rollout": ROLLOUT, "warmup": WARMUP, "task": TASK}


Moved = list[tuple[str, int]]


def slow(monkeypatch: pytest.MonkeyPatch, moved: Moved, step_s: float = 0.01) -> None:
    """Rounds that last long enough to be told of, and progress that is told often. One that begins with one worker
    lasts long enough on any machine for others to join it, until that was seen once."""
    real = LocalEngine.step

    def step(engine: LocalEngine) -> list[engines.Event]:
        if engine.unfinished:
            is_short = moved[-1:] == [("at the beginning", 1)] and ("in the middle", 2) not in moved
            sleep(0.5 if is_short else step_s)
        return real(engine)

    monkeypatch.setattr(LocalEngine, "step", step)
    monkeypatch.setattr(aside, "INTERVAL_S", 0.01)


def moves(monkeypatch: pytest.MonkeyPatch) -> Moved:
    """How many workers were there from when a rollout began, and from when some came or went in the middle of it."""
    found: Moved = []
    real = Workers.share

    def share(workers: Workers, numbers: Collection[int]) -> None:
        found.append(("in the middle" if workers.untold else "at the beginning", len(numbers)))
        real(workers, numbers)

    monkeypatch.setattr(Workers, "share", share)
    return found


def elastic_neighbour(
    mux: Mux,
    over: Event,
    begun: Callable[[tuple[str, ...]], object] = lambda nodes: None,
    work: Callable[[], None] = lambda: sleep(0.1),
) -> None:
    """Makes room where it is told to, and begins on as many nodes as there are."""
    mux.runtime_hook("shrink")(lambda keep, free: None)
    with mux:
        for _ in mux.steps(1000):
            with mux.phase("rollout") as phase:
                begun(phase.nodes)
                mux.progress(9, 10)
                work()
            with mux.phase("train"):
                pass
            if over.is_set():
                return


def until_a_round_begins_without(moved: Moved, over: Event) -> Callable[[], None]:
    """What a neighbour does on the node that was made free for it. In the middle of that round it is given back."""

    def work() -> None:
        so_far, until = len(moved), monotonic() + 20.0
        sleep(0.1)
        if ("in the middle", 1) in moved and ("in the middle", 2) not in moved:
            while ("at the beginning", 1) not in moved[so_far:] and not over.is_set() and monotonic() < until:
                sleep(0.01)

    return work


def test_a_rollout_that_moves_aside_and_grows_again_trains_what_it_trains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(**job(0)), tmp_path / "alone", alone())
    world, crowd, over, moved = World(rollout=2, lease_s=5.0), Crowd(), Event(), moves(monkeypatch)
    slow(monkeypatch, moved)
    wants = {"rollout": WIDE, "tail": TAIL, "elastic_rollout": True}
    other = world.connect(job_data("other", **wants))
    with world.connect(job_data("job", **wants)) as mux:
        crowd.start(partial(elastic_neighbour, other, over, work=until_a_round_begins_without(moved, over)))
        train(tiny(**job(0)), tmp_path / "woven", mux)
    over.set()
    crowd.join()
    assert [world.ended(name) for name in ("job", "other")] == ["finished"] * 2
    assert {("at the beginning", 1), ("in the middle", 2), ("in the middle", 1)} <= set(moved)
    assert world.said("job", Said.SHRUNK)
    steps = [json.loads(line) for line in (tmp_path / "alone" / METRICS).read_text().splitlines()]
    assert all(step["update"]["gradient_norm"] > 0 for step in steps)
    assert left_behind(tmp_path / "woven") == left_behind(tmp_path / "alone")


# -- with a controller and jobs in processes of their own --------------------------------------------------------------

CLUSTER = Cluster(
    Pool("rollout", CHEAP, on_demand=False, max_nodes=2), Pool("train", DEAR, on_demand=False, max_nodes=1)
)
RULES = Rules(timing=Timing(lease_s=10.0, drain_s=5.0), checks=Checks.ALL)

# `rollmux train`, with rounds that last long enough to be told of; the first to be ready waits for the other.
SCRIPT = """
import sys, time
from pathlib import Path
import rollmux.trainer.job
from rollmux.cli import app
from rollmux.client import aside
from rollmux.runtime.engine import LocalEngine

aside.INTERVAL_S = 0.02
real = LocalEngine.step
def step(engine):
    time.sleep(0.03 if engine.unfinished else 0.0)
    return real(engine)
LocalEngine.step = step

here, name = Path.cwd(), sys.argv.pop(1)
(here / f"{name}.ready").touch()
until = time.monotonic() + 120
while len(list(here.glob("*.ready"))) < 2 and time.monotonic() < until:
    time.sleep(0.02)
app()
"""


def submitted(there: Served, folder: Path, name: str, seed: int) -> None:
    """Hands a training job to the controller, which starts it."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(job(seed)), encoding="utf-8")
    command = [sys.executable, "paced.py", name, "train", f"{name}.yaml", "--out", name]
    wants = {
        "name": name,
        "slo": 6.0,
        "iterations": STEPS,
        "rollout": WIDE,
        "train": {"nodes": 1, "duration_s": 1.0},
        "tail": TAIL,
        "elastic_rollout": True,
        "command": command,
        "folder": str(folder),
        "env": {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    }
    there.post("/v1/jobs", wants)


def until_ended(there: Served, name: str, limit_s: float = 180.0) -> None:
    end = monotonic() + limit_s
    while (view := there.get(f"/v1/jobs/{name}"))["state"] != "ended":
        assert monotonic() < end, there.get(f"/v1/jobs/{name}/log")
        sleep(0.1)
    assert view["reason"] == "finished", there.get(f"/v1/jobs/{name}/log")


def begun_on_freed(spans: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Who has begun a rollout on a node that another's rollout had given back before its own end."""
    rollouts = [span for span in spans if span["kind"] == "rollout"]
    return [
        (later["job"], use["node"])
        for tail in rollouts
        for use in tail["uses"]
        for later in rollouts
        if later["job"] != tail["job"]
        if use["ended_s"] <= later["started_s"] < tail["ended_s"]
        and use["node"] in {each["node"] for each in later["uses"]}
    ]


@pytest.mark.slow  # each job takes seconds to import torch
def test_the_next_job_begins_on_a_freed_node_while_the_tail_runs_on_and_both_train_what_they_train_alone(
    tmp_path: Path,
) -> None:
    for seed, name in enumerate("ab"):
        train(tiny(**job(seed)), tmp_path / "alone" / name, alone())
    (tmp_path / "paced.py").write_text(SCRIPT)
    with served(tmp_path / "controller", CLUSTER, RULES) as there:
        for seed, name in enumerate("ab"):
            submitted(there, tmp_path, name, seed)
        for name in "ab":
            until_ended(there, name)
        spans = there.get("/v1/history")["spans"]
    assert all(span["how"] == "finished" for span in spans)
    assert begun_on_freed(spans), spans
    for name in "ab":
        assert left_behind(tmp_path / name) == left_behind(tmp_path / "alone" / name)
