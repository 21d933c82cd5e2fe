"""Claims on memory that lies in a folder of its own: it goes with the claim, and the claim with it."""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from math import inf, nan
from pathlib import Path

import pytest

from rollmux.runtime.host import Budget, Claim, NameTaken, NoRoom, NotKept, Unfit
from rollmux.runtime.host import budget as host_budget
from rollmux.runtime.host.budget import LEAVE_FREE_BYTES
from tests.runtime.residency.keeping import MB, a_budget

FILES = ("weights", "lock")


@pytest.fixture
def budget() -> Iterator[Budget]:
    with a_budget(100 * MB) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "p" / "q"
    found.mkdir(parents=True)
    for name in FILES:
        (found / name).write_bytes(b"much")
    return found


def test_what_else_lies_in_the_folder_stays(budget: Budget, place: Path) -> None:
    (place / "checkpoints").mkdir()
    claimed(budget, place, 5).release()
    assert [each.name for each in place.iterdir()] == ["checkpoints"]
    assert budget.holdings() == ()


def test_a_folder_in_which_somebody_works_without_a_claim_keeps_its_files_and_the_claim_its_bytes(
    budget: Budget, place: Path
) -> None:
    claimed(budget, place, 60 * MB).leave()
    with (place / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert budget.sweep() == ()
        with pytest.raises(NameTaken, match="somebody works in the folder that 'a' is about"):
            budget.claim("a", 5)
        assert (place / "weights").exists()
    assert budget.sweep() == ("a",)
    assert not place.exists()


def test_a_folder_whose_files_cannot_be_removed_keeps_its_claim(budget: Budget, place: Path) -> None:
    (place / "weights").unlink()
    (place / "weights").mkdir()
    claimed(budget, place, 5).leave()
    assert budget.sweep() == ()
    (place / "weights").rmdir()
    assert budget.sweep() == ("a",)


def test_a_claim_that_grows_takes_what_the_dead_have_left(budget: Budget) -> None:
    mine = budget.claim("mine", 10 * MB)
    budget.claim("dead", 80 * MB).leave()
    mine.resize(90 * MB)
    assert [(each.name, each.nbytes) for each in budget.holdings()] == [("mine", 90 * MB)]
    mine.release()


@pytest.mark.parametrize("taken", [40 * MB, 0], ids=["its memory", "nothing yet"])
def test_what_the_dead_kept_under_a_name_is_room_for_who_begins_anew_under_it(
    budget: Budget, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    budget.claim("a", 40 * MB, survive_s=3600).leave()
    with budget.state_path("a").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(taken, 1))
    monkeypatch.setattr(host_budget, "available_bytes", lambda: LEAVE_FREE_BYTES + 10 * MB)
    with pytest.raises(NoRoom, match=r"'b' needs 40\.00 MB more host memory"):
        budget.claim("b", 40 * MB)
    with nullcontext() if taken else pytest.raises(NoRoom, match="more host memory"):
        budget.claim("a", 40 * MB).release()
    assert budget.state_path("a").exists() is not bool(taken)


def claimed(budget: Budget, place: Path, nbytes: int, survive_s: float = 0.0) -> Claim:
    claim = budget.claim("a", nbytes, survive_s=survive_s)
    claim.lies_in(place, FILES)
    return claim


def test_a_released_claim_takes_its_folder_with_it(budget: Budget, place: Path) -> None:
    claimed(budget, place, 5).release()
    assert not place.exists()
    assert place.parent.exists()
    assert budget.holdings() == ()


def test_a_dead_claim_and_its_folder_stay_until_it_has_survived_for_long_enough(budget: Budget, place: Path) -> None:
    claimed(budget, place, 60 * MB, 3600).leave()
    with pytest.raises(NoRoom, match=r"'b' needs 50\.00 MB of host memory, and 40\.00 MB of the node's"):
        budget.claim("b", 50 * MB)
    budget.join("a").leave()
    assert budget.sweep() == ()
    assert place.exists()
    assert budget.sweep(now=True) == ("a",)
    assert not place.exists()


def test_who_removes_the_folder_of_a_dead_claim_gives_its_bytes_back(budget: Budget, place: Path) -> None:
    claimed(budget, place, 60 * MB, 3600).leave()
    shutil.rmtree(place)
    budget.claim("b", 50 * MB)
    assert [each.name for each in budget.holdings()] == ["b"]
    with pytest.raises(NotKept, match="nothing is kept as 'a' in"):
        budget.join("a")


def test_a_living_claim_holds_whatever_becomes_of_its_folder(budget: Budget, place: Path) -> None:
    claim = claimed(budget, place, 60 * MB)
    shutil.rmtree(place)
    assert budget.sweep() == ()
    with pytest.raises(NoRoom, match=r"40\.00 MB"):
        budget.claim("b", 50 * MB)
    claim.release()


def test_a_shorter_entry_over_a_longer_one_is_read_as_it_was_written(budget: Budget, tmp_path: Path) -> None:
    place = tmp_path.joinpath(*["a long name " * 15] * 5)
    place.mkdir(parents=True)
    claim = claimed(budget, place, 99 * MB, 3600)
    for nbytes in (5, 90 * MB, 6):
        claim.resize(nbytes)
        assert [each.nbytes for each in budget.holdings()] == [nbytes]
    claim.leave()
    assert budget.sweep() == ()  # and how long it has been dead is written too
    budget.join("a").release()
    assert not place.exists()


def test_a_process_that_is_forked_while_the_folder_is_locked_does_not_keep_it(budget: Budget) -> None:
    with budget.locked():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with budget.locked(patience_s=1.0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_claim_that_is_left_frees_its_name_though_a_child_lives_and_one_left_by_a_child_does_not(
    budget: Budget,
) -> None:
    claim = budget.claim("a", 5, survive_s=3600)
    said, told = os.pipe()
    child = os.fork()
    if child == 0:
        claim.leave()
        os.write(told, b"left")
        time.sleep(60)
        os._exit(0)
    other = os.fork()  # which has the claim's file open
    if other == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(said, 4) == b"left"
        with pytest.raises(NameTaken):
            budget.join("a")
        claim.leave()
        budget.join("a").release()
    finally:
        for each in (child, other):
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)


def test_a_claim_that_a_forked_child_gives_back_stays_its_parent_s(budget: Budget) -> None:
    claim = budget.claim("a", 5)
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert [each.alive for each in budget.holdings()] == [True]
    claim.release()


def test_a_claim_whose_end_was_noticed_before_the_machine_was_started_anew_survives_no_longer_than_it_was_to(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock begins anew then. A folder on a disk is still there."""
    budget.claim("a", 5, survive_s=60).leave()
    for now_s, swept in ((10**6, ()), (100, ()), (159, ()), (160, ("a",))):
        monkeypatch.setattr(host_budget, "since_boot_s", lambda now_s=now_s: now_s)
        assert budget.sweep() == swept


@pytest.mark.parametrize("survive_s", [inf, nan, -1.0])
def test_a_time_that_never_ends_is_refused_and_others_go_on(survive_s: float, budget: Budget) -> None:
    with pytest.raises(Unfit, match="survive"):
        budget.claim("a", 5, survive_s=survive_s)
    budget.claim("b", 5).release()


def test_a_limit_that_was_broken_off_in_writing_is_written_again(budget: Budget) -> None:
    (budget.folder / "limit").write_bytes(b"")
    Budget(budget.folder, 100 * MB)
    with pytest.raises(Unfit, match="same limit"):
        Budget(budget.folder, 99 * MB)


def test_a_file_that_is_no_claim_is_told_by_its_name(budget: Budget) -> None:
    (budget.folder / "odd.claim").write_text("junk")
    with pytest.raises(Unfit, match=r"odd\.claim is no claim of ours"):
        budget.claim("a", 5)
    (budget.folder / "odd.claim").unlink()
    budget.claim("a", 5).release()


def test_a_claim_that_cannot_be_written_leaves_its_name_free(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, entry: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(budget, "write", full)
        with pytest.raises(OSError, match="no space"):
            budget.claim("a", 5)
    budget.claim("a", 5).release()
