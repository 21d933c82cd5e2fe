"""A controller that is killed again and again, while real jobs share nodes by its word: nothing is lost (F1, F2)."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rollmux
from rollmux.client.mux import Mux
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.recovery import recover
from rollmux.service.tokens import Role, Tokens
from tests.service.journals import Place, begun
from tests.service.serving import PAIR, RULES

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
PHASE = {"nodes": 1, "duration_s": 0.05}
LIMIT_S = 600.0


@dataclass
class Witness:
    """Sees who works when: no two on one node, and each step once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: dict[str, str] = field(default_factory=dict)
    done: list[tuple[str, str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def work(self, job: str, kind: str, step: int) -> None:
        with self.lock:
            if kind in self.busy:
                self.wrong.append(f"{job} and {self.busy[kind]} both do their {kind}")
            self.busy[kind] = job
        time.sleep(0.03)
        with self.lock:
            del self.busy[kind]
            self.done.append((job, kind, step))


def script(name: str, url: str, token: str, witness: Witness) -> None:
    """What a job's owner writes."""
    described: dict[str, Any] = {"name": name, "slo": 3.0, "iterations": STEPS, "rollout": PHASE, "train": PHASE}
    mux: Mux
    with rollmux.connect(url=url, token=token, job=described) as mux:
        for step in mux.steps(STEPS):
            for kind in ("rollout", "train"):
                with mux.phase(kind):
                    witness.work(name, kind, step)


@contextmanager
def lives(place: Place, port: int, records: int, before: bool) -> Iterator[list[int]]:
    """A controller that is started anew whenever it has died; yields how each life ended."""
    folder = place.folder
    command = [sys.executable, "-m", "tests.service.dying", str(folder), str(port), "--records", str(records)]
    command += ["--journal", place.url]
    command += ["--before"] * before
    endings: list[int] = []
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as running,
    ):
        try:
            yield endings
        finally:
            running.terminate()
            assert running.stdout is not None
            endings += [int(line) for line in running.stdout]  # until the last life has ended too


@pytest.mark.parametrize(
    ("records", "before"),
    [
        (12, False),
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.slow),
        pytest.param(5, True, marks=pytest.mark.slow),
    ],
    ids=["after every 12th record", "after every record", "before every second record", "before every fifth record"],
)
def test_a_controller_that_is_killed_all_the_time_loses_nothing(place: Place, records: int, before: bool) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = Tokens(place.folder, time.time).create("admin", Role.ADMIN)
    witness, url = Witness(), f"http://127.0.0.1:{port}"
    with lives(place, port, records, before) as endings:
        scripts = [threading.Thread(target=script, args=(name, url, token, witness)) for name in ("a", "b")]
        for each in scripts:
            each.start()
        for each in scripts:
            each.join(LIMIT_S)
            assert not each.is_alive(), (place.folder / "log").read_text()[-2000:]
    assert endings.count(-9) >= 2
    assert witness.wrong == []
    assert sorted(witness.done) == sorted(
        (name, kind, step) for name in ("a", "b") for kind in ("rollout", "train") for step in range(STEPS)
    )
    journal = begun(place)
    controller, _ = recover(journal, PAIR, RollmuxPolicy(), RULES)
    assert controller.machine.state.ended == {"a": "finished", "b": "finished"}
    journal.close()
