"""`torchrun` as a job's command: the ranks below all of its processes are one attempt, and share its leases."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rollmux
from rollmux.service.local.attempt_log import AttemptLog
from tests.service.commanded import Commanded, commanded
from tests.service.running import clean_env

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

NODE = "{name: n, gpus: 1, usd_per_gpu_hour: 1, hbm_gb: 1, host_memory_gb: 10}"
POOL = f"{{on_demand: false, max_nodes: 1, node: {NODE}}}"
PAIR = f"rollout: {POOL}\ntrain: {POOL}\n"
PHASE = {"nodes": 1, "duration_s": 0.2}
STEPS = 2
RESTART = "--max-restarts 1"
KINDS = ("rollout", "train")

# What a researcher writes, and words in one file in the order in which they are said.
RANK = """
import os, sys, time
import rollmux

words = os.open("words", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def say(*what):
    os.write(words, (" ".join(map(str, what)) + "\\n").encode())

def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)

class State:
    def load(self): pass
    def offload(self): pass

script, steps = sys.argv[1:]
phase, attempt = {"nodes": 1, "duration_s": 0.2}, os.environ.get("ROLLMUX_ATTEMPT", "0")
states = {kind: State() for kind in ("rollout", "train")}
with rollmux.connect(job={"name": "by-hand", "slo": 3.0, "rollout": phase, "train": phase}) as mux:
    me, world = mux.kin.rank, os.environ["WORLD_SIZE"]
    say("is", attempt, me, os.environ["RANK"], world, os.environ.get("ROLLMUX_MEMORY"))
    for step in mux.steps(int(steps)):
        for kind, state in states.items():
            with mux.phase(kind, state=state):
                say("begins", attempt, kind, step, me)
                if (script, kind, step) == ("eventful", "train", 1):
                    if attempt == "1" and me == 3:
                        os._exit(3)
                    until("go")
                say("ends", attempt, kind, step, me)
if script == "eventful" and me:
    until("leave")
"""

ONE_WORLD = (
    "exec {python} -m torch.distributed.run --nnodes $ROLLMUX_PROCESSES --nproc-per-node 2 --rdzv-backend c10d"
    " --rdzv-conf store_type=file --rdzv-endpoint $ROLLMUX_MEMORY/meeting {options} rank.py {script} {steps}"
)
STANDALONE = "exec {python} -m torch.distributed.run --standalone --nproc-per-node 2 {options} rank.py {script} {steps}"


def submit(there: Commanded, folder: Path, script: str, command: str, options: str) -> None:
    """A job of two nodes with a torchrun on each, and two ranks below each of these."""
    (folder / "rank.py").write_text(RANK)
    shell = command.format(python=sys.executable, script=script, steps=STEPS, options=options)
    there.submit("a", ["sh", "-c", shell], processes=2, ranks_per_process=2)


def words(folder: Path, first: str) -> list[list[str]]:
    """What has been said so far that begins so."""
    file = folder / "words"
    said = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [rest for word, *rest in said if word == first]


def require_phases_of_all(folder: Path, attempt: int, ranks: set[str], begun: int = 0) -> None:
    """In this attempt each rank went once through each phase, and none began before all had ended the one before."""
    said = [line.split() for line in (folder / "words").read_text().splitlines()]
    mine = [
        (word, kind, step, rank)
        for word, number, *rest in said
        if number == str(attempt) and word != "is"
        for kind, step, rank in [rest]
    ]
    expected = [
        (word, kind, str(step)) for step in range(begun, STEPS) for kind in KINDS for word in ("begins", "ends")
    ]
    assert sorted(mine) == sorted((*each, rank) for each in expected for rank in ranks)
    order = {phase: place for place, phase in enumerate(dict.fromkeys(each[1:] for each in expected))}
    places = [order[kind, step] for _, kind, step, _ in mine]
    assert places == sorted(places)


def require_way_for_another(there: Commanded) -> None:
    token = (there.folder / "admin.token").read_text()
    job: dict[str, Any] = {"name": "b", "slo": 3.0, "rollout": PHASE, "train": PHASE}
    with rollmux.connect(there.url, token, job) as mux:
        for kind in KINDS:
            with mux.phase(kind):
                pass


@pytest.mark.parametrize(
    ("command", "world", "options"),
    [
        (ONE_WORLD, "4", ""),
        pytest.param(STANDALONE, "2", "", marks=pytest.mark.slow),
        pytest.param(ONE_WORLD, "4", RESTART, marks=pytest.mark.slow),
    ],
    ids=["one", "two", "one that would start ranks again"],
)
def test_the_ranks_of_two_torchruns_are_one_attempt(tmp_path: Path, command: str, world: str, options: str) -> None:
    """One that dies ends it for all, and the next goes on after the last sync; a controller that is killed amid it does
    not end it; and the others make way for another job though one has ended."""
    with commanded(tmp_path / "controller", PAIR) as there:
        submit(there, tmp_path, "eventful", command, options)
        there.until(lambda: ["2", "train", "1", "3"] in words(tmp_path, "begins"))
        there.kill()
        there.start()
        (tmp_path / "go").touch()
        there.until(lambda: ["2", "train", str(STEPS - 1), "0"] in words(tmp_path, "ends"))
        require_way_for_another(there)
        (tmp_path / "leave").touch()
        assert there.until_ended("a") == "finished"
    told = words(tmp_path, "is")
    assert {attempt for attempt, *_ in told} == {"1", "2"}
    ranks, torchs, worlds, memories = map(set, zip(*(rest for attempt, *rest in told if attempt == "2"), strict=True))
    assert (ranks, worlds) == ({"0", "1", "2", "3"}, {world})
    assert torchs == {str(rank) for rank in range(int(world))}
    (memory,) = memories
    assert not Path(memory).exists()
    require_phases_of_all(tmp_path, 2, ranks, begun=1)


@pytest.mark.slow
def test_the_script_runs_unchanged_by_hand_without_a_controller_and_beside_one(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    command = STANDALONE.removeprefix("exec ").format(python=sys.executable, options="", script="runs", steps=STEPS)
    subprocess.run(command.split(), cwd=tmp_path, env=clean_env(), check=True, timeout=120)
    assert sorted(each[:4] for each in words(tmp_path, "is")) == [["0", "0", rank, "2"] for rank in "01"]
    (tmp_path / "words").unlink()
    with commanded(tmp_path / "controller", PAIR) as there:
        token = (there.folder / "admin.token").read_text()
        env = clean_env(ROLLMUX_URL=there.url, ROLLMUX_TOKEN=token)
        subprocess.run(command.split(), cwd=tmp_path, env=env, check=True, timeout=120)
        assert there.view("by-hand")["reason"] == "finished"
    require_phases_of_all(tmp_path, 0, {"0", "1"})


@pytest.mark.parametrize(
    ("options", "script", "said"),
    [
        ("", "raise ValueError('no such file')", "ValueError: no such file"),
        ("", "import os; os.kill(os.getpid(), 9)", "traceback : Signal 9 (SIGKILL) received by PID "),
        pytest.param(
            RESTART,
            "import os; raise ValueError(os.environ['TORCHELASTIC_RESTART_COUNT'])",
            "ValueError: 1",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["raises", "is_killed", "is_started_again"],
)
def test_why_a_rank_has_failed_is_told_and_not_what_torchrun_advises(
    tmp_path: Path, options: str, script: str, said: str
) -> None:
    (tmp_path / "rank.py").write_text(script)
    command = STANDALONE.removeprefix("exec ").format(python=sys.executable, options=options, script="", steps="")
    log = AttemptLog(str(tmp_path / "log"), 2**16)
    assert subprocess.call(command.split(), cwd=tmp_path, env=clean_env(), stdout=log.end, stderr=log.end) == 1
    log.started()
    log.drain()
    os.close(log.pipe)
    assert log.last_words().startswith(said)
