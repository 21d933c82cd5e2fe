"""Processes that die with state in their hands: what is whole survives where it may, and nothing stays behind."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollmux.runtime.residency import BadCopy, Budget, NameTaken, Resident, Unfit
from tests.runtime.residency.dying import LIMIT_BYTES, state

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0


class Nursery:
    """The process whose children die."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.runtime.residency.dying"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def child(self, *words: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    os.killpg(found.process.pid, signal.SIGKILL)
    found.process.communicate()


def until(path: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until_s, f"{path} did not come"
        time.sleep(0.005)


def killed(nursery: Nursery, folder: Path, slots: int, grows: bool, delay_s: float, how: int = signal.SIGKILL) -> None:
    """A worker, killed this long after its first version."""
    (folder / "begun").unlink(missing_ok=True)
    child = nursery.child("work", folder, slots, 3600, "grows" if grows else "stays")
    until(folder / "begun")
    time.sleep(delay_s)
    os.kill(child, how)
    gone(folder)


def gone(folder: Path) -> None:
    """Its lock is free: the kernel has taken it from the dead."""
    until_s = time.monotonic() + PATIENCE_S
    while any(each.alive for each in Budget(folder, LIMIT_BYTES).holdings()):
        assert time.monotonic() < until_s, "it does not die"
        time.sleep(0.002)


def attached(folder: Path) -> Resident:
    """With whichever layout the last version had."""
    budget = Budget(folder, LIMIT_BYTES)
    try:
        return Resident.attach(state(0, more=False), name="dying", budget=budget)
    except Unfit:
        return Resident.attach(state(0, more=True), name="dying", budget=budget)


def require_whole(resident: Resident) -> int:
    resident.load()
    value = int(resident.notes)
    for tensor in resident.device._tensors.values():
        assert torch.equal(tensor, torch.full_like(tensor, value))
    return value


@pytest.mark.parametrize("grows", [False, True], ids=["same layout", "layouts that change"])
def test_a_process_killed_in_the_middle_leaves_a_whole_version(folder: Path, nursery: Nursery, grows: bool) -> None:
    seed = random.Random(7)
    for _ in range(8):
        killed(nursery, folder, 2, grows, seed.random() * 0.1)
        resident = attached(folder)
        assert require_whole(resident) >= 1
        resident.close()
        assert not list(folder.glob("dying.*"))


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True], ids=["same layout", "layouts that change"])
def test_none_of_hundreds_of_deaths_leaves_a_torn_version(folder: Path, nursery: Nursery, grows: bool) -> None:
    seed = random.Random(11)
    for _ in range(300):
        killed(nursery, folder, 2, grows, seed.random() * 0.2)
        resident = attached(folder)
        require_whole(resident)
        resident.close()


@pytest.mark.slow
def test_with_one_slot_a_version_is_whole_or_there_is_none(folder: Path, nursery: Nursery) -> None:
    seed, outcomes = random.Random(3), set()
    for _ in range(40):
        killed(nursery, folder, 1, False, seed.random() * 0.03)
        try:
            resident = attached(folder)
        except BadCopy:
            outcomes.add("none")
        else:
            require_whole(resident)
            resident.close()
            outcomes.add("whole")
        if len(outcomes) == 2:
            break
    assert outcomes == {"none", "whole"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_dead_process_leaves_is_reclaimed_by_a_sweep(folder: Path, nursery: Nursery, how: int) -> None:
    killed(nursery, folder, 2, False, 0.01, how)
    budget = Budget(folder, LIMIT_BYTES)
    assert (folder / "dying.state").stat().st_size > 2 * 10_000_000
    assert budget.sweep() == ()  # it is to survive for an hour
    assert budget.sweep(now=True) == ("dying",)
    assert not list(folder.glob("dying.*"))


def test_the_next_process_reclaims_what_was_not_to_survive(folder: Path, nursery: Nursery) -> None:
    child = nursery.child("work", folder, 2, 0, "stays")
    until(folder / "begun")
    budget = Budget(folder, LIMIT_BYTES)
    with pytest.raises(NameTaken, match="a living process keeps state as 'dying'"):
        budget.claim("dying", 1)
    os.kill(child, signal.SIGKILL)
    gone(folder)
    claim = budget.claim("next", LIMIT_BYTES)
    assert [each.name for each in budget.holdings()] == ["next"]
    assert not (folder / "dying.state").exists()
    claim.release()


def test_state_survives_for_as_long_as_it_was_to(budget: Budget) -> None:
    resident = Resident(state(4, more=False), name="a", budget=budget, survive_s=0.2)
    resident.offload()
    resident.close(keep=True)
    assert budget.sweep() == ()
    Resident.attach(state(0, more=False), name="a", budget=budget).close(keep=True)
    assert budget.sweep() == ()
    time.sleep(0.25)
    assert budget.sweep() == ("a",)


def test_many_processes_never_hold_more_than_the_budget(folder: Path, nursery: Nursery) -> None:
    sizes = [LIMIT_BYTES // 2, LIMIT_BYTES // 3, LIMIT_BYTES // 4, LIMIT_BYTES // 2]
    children = [nursery.child("hold", folder, f"n{number}", size) for number, size in enumerate(sizes)]
    seen = [folder / f"n{number}.seen" for number in range(len(sizes))]
    until_s = time.monotonic() + PATIENCE_S
    while any(not path.exists() or path.read_text().count("\n") < 40 for path in seen):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
    gone(folder)
    tries = [line.split() for path in seen for line in path.read_text().splitlines() if line.count(" ") == 1]
    assert max(int(total) for total, _ in tries) <= LIMIT_BYTES
    assert {got for _, got in tries} == {"True", "False"}
    Budget(folder, LIMIT_BYTES).sweep()
    assert not list(folder.glob("*.claim"))
