"""Weights that land are claimed of the node's host memory, like all else that is kept there."""

import gc
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollmux.runtime.host import Budget, NoRoom, Unfit
from rollmux.runtime.host.budget import cleared
from rollmux.runtime.sync import Receiver, Sender, SyncFailed, shelf
from rollmux.runtime.sync.plan import Plan
from rollmux.runtime.sync.shelf import FILES
from tests.runtime.residency.keeping import MB, a_budget
from tests.runtime.sync.models import TOKEN, filling, holds, small, whole

PLAN = small(senders=(1, 1), receivers=(1, 1))
LARGER = small(senders=(1, 1), receivers=(1, 1), chunk_bytes=512)  # twice as many digests


@pytest.fixture
def budget() -> Iterator[Budget]:
    with a_budget(10 * MB) as made:
        yield made


def receiver(budget: Budget | None, folder: Path, plan: Plan = PLAN) -> Receiver:
    return Receiver(plan, 0, folder, TOKEN, ["tcp://127.0.0.1:0"], budget=budget)


def sync(version: int, into: Receiver, budget: Budget | None, folder: Path, *, delta: bool = False) -> None:
    sender = Sender(PLAN, 0, folder, TOKEN, delta=delta, budget=budget)
    sender.publish(version, filling(PLAN, PLAN.exchange.senders, 0, whole(PLAN, version)))
    sender.sync(version, [into.addresses])
    sender.close()


def taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*-[01]"))


def test_what_is_claimed_is_what_the_folders_take(budget: Budget, tmp_path: Path) -> None:
    held = receiver(budget, tmp_path / "job" / "receiver-0")
    for version, delta in ((1, False), (2, False), (3, True)):
        sync(version, held, budget, tmp_path / "job" / "sender", delta=delta)
        for each in budget.holdings():
            assert each.nbytes == taken(tmp_path / "job" / ("receiver-0" if "receiver" in each.name else "sender"))
    assert {each.name.rpartition("-")[0]: each.alive for each in budget.holdings()} == {
        "sync-job-receiver-0": True, "sync-job-sender": False
    }  # fmt: skip
    assert holds(PLAN, held, whole(PLAN, 3))
    held.close()


def test_where_there_is_no_room_nothing_is_made(tmp_path: Path) -> None:
    with a_budget(30_000) as budget:
        with pytest.raises(NoRoom, match=r"'sync-job-r-.*' needs .* of host memory"):
            receiver(budget, tmp_path / "job" / "r")
        assert budget.holdings() == ()
        assert not (tmp_path / "job" / "r").exists()
        receiver(None, tmp_path / "job" / "r").close()


def test_a_receiver_begun_again_takes_over_its_claim_and_what_it_held(budget: Budget, tmp_path: Path) -> None:
    first = receiver(budget, tmp_path / "r")
    sync(1, first, budget, tmp_path / "s")
    first.close()
    assert budget.sweep() == ()
    again = receiver(budget, tmp_path / "r")
    assert holds(PLAN, again, whole(PLAN, 1))
    assert len(budget.holdings()) == 2
    again.close()


def test_a_version_of_another_plan_counts_for_as_long_as_it_is_there(budget: Budget, tmp_path: Path) -> None:
    first = receiver(budget, tmp_path / "r", LARGER)
    sender = Sender(LARGER, 0, tmp_path / "s", TOKEN)
    sender.publish(1, filling(LARGER, LARGER.exchange.senders, 0, whole(LARGER, 1)))
    sender.sync(1, [first.addresses])
    sender.close()
    first.close()
    again = receiver(budget, tmp_path / "r")
    assert budget.holdings()[0].nbytes == taken(tmp_path / "r")
    sync(2, again, budget, tmp_path / "t")
    sync(3, again, budget, tmp_path / "t")
    assert max(each.nbytes for each in budget.holdings()) > taken(tmp_path / "r")
    again.close()
    receiver(budget, tmp_path / "r").close()
    assert taken(tmp_path / "r") in {each.nbytes for each in budget.holdings()}


def test_a_version_of_another_plan_counts_beside_the_two_that_a_sender_of_changes_keeps(
    budget: Budget, tmp_path: Path
) -> None:
    for version, plan in enumerate((LARGER, PLAN), 1):
        sender = Sender(plan, 0, tmp_path / "s", TOKEN, delta=plan is PLAN, budget=budget)
        sender.publish(version, filling(plan, plan.exchange.senders, 0, whole(plan, version)))
        assert budget.holdings()[0].nbytes == taken(tmp_path / "s")
        sender.close()


def test_what_cannot_be_taken_is_not_claimed_either(budget: Budget, tmp_path: Path) -> None:
    unclaimed = receiver(None, tmp_path / "r")
    with pytest.raises(SyncFailed, match="is written to by another process"):
        receiver(budget, tmp_path / "r")
    assert budget.holdings() == ()
    assert budget.sweep(now=True) == ()
    assert (tmp_path / "r").exists()
    unclaimed.close()


def test_a_folder_that_its_launcher_removed_gives_its_room_back(budget: Budget, tmp_path: Path) -> None:
    receiver(budget, tmp_path / "r").close()
    shutil.rmtree(tmp_path / "r")
    assert len(budget.sweep()) == 1


def test_a_folder_that_was_not_cleared_to_the_end_holds_its_version_whole_or_none(tmp_path: Path) -> None:
    first = receiver(None, tmp_path / "r")
    sync(1, first, None, tmp_path / "s")
    first.close()
    gone = [*(FILES[:count] for count in range(len(FILES))), ("weights-0",), ("digests-0",)]
    for number, names in enumerate(gone):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "r", folder)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        again = receiver(None, folder)
        assert again.held is None if names else holds(PLAN, again, whole(PLAN, 1))
        sync(1, again, None, tmp_path / "s")
        assert holds(PLAN, again, whole(PLAN, 1))
        again.close()


@pytest.mark.parametrize("kept", [False, True])
def test_who_finds_no_room_on_the_disk_gives_up_the_claim_but_for_what_was_kept(
    budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    def full(file: int, at: int, nbytes: int) -> None:
        raise OSError(28, "no space left")

    folder = tmp_path / "r"
    if kept:
        held = receiver(None, folder)
        sync(1, held, None, tmp_path / "s")
        held.close()
        (folder / "weights-1").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"no space left: .* are wanted: '.*/r/weights-"):
            receiver(budget, folder)
    assert len(budget.holdings()) == kept
    assert folder.exists() == kept
    again = receiver(budget, folder)
    assert (again.held is not None) == kept
    again.close()


def test_a_folder_whose_name_is_no_text_is_refused_by_name(budget: Budget, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="is no text"):
        receiver(budget, tmp_path / os.fsdecode(b"r\xff"))
    assert budget.holdings() == ()


def test_a_receiver_that_can_t_be_called_leaves_its_folder_to_the_next(budget: Budget, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = ["tcp://127.0.0.1:0", f"tcp://127.0.0.1:{taken.getsockname()[1]}"]
        with pytest.raises(OSError, match="in use"):
            Receiver(PLAN, 0, tmp_path / "r", TOKEN, addresses, budget=budget)
    receiver(budget, tmp_path / "r").close()


@pytest.mark.parametrize("claims", [True, False])
def test_a_receiver_that_is_to_keep_nothing_leaves_nothing_but_what_is_not_its_own(
    budget: Budget, tmp_path: Path, claims: bool
) -> None:
    held = receiver(budget if claims else None, tmp_path / "r")
    sync(1, held, budget, tmp_path / "s")
    (tmp_path / "r" / "notes").write_text("of its owner")
    held.close(keep=False)
    assert [each.name for each in (tmp_path / "r").iterdir()] == ["notes"]
    assert not any("-r-" in each.name for each in budget.holdings())


@pytest.mark.parametrize("keep", [True, False])
def test_a_receiver_that_is_closed_holds_no_memory_of_its_versions(budget: Budget, tmp_path: Path, keep: bool) -> None:
    held = receiver(budget, tmp_path / "r")
    sync(1, held, budget, tmp_path / "s")
    assert str(tmp_path / "r") in Path("/proc/self/maps").read_text()
    held.close(keep)
    gc.collect()
    assert str(tmp_path / "r") not in Path("/proc/self/maps").read_text()


def test_a_folder_that_was_reclaimed_while_it_was_opened_is_made_anew(
    budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver(None, tmp_path / "r").close()
    real, opened = os.open, list[int]()

    def open_late(path: Any, *rest: Any, **more: Any) -> int:
        found = real(path, *rest, **more)
        if str(path).endswith("writer") and not opened:
            opened.append(found)
            assert cleared(tmp_path / "r", FILES)
        return found

    monkeypatch.setattr(shelf, "os", SimpleNamespace(**{**vars(os), "open": open_late}))
    held = receiver(budget, tmp_path / "r")
    sync(1, held, budget, tmp_path / "s")
    assert holds(PLAN, held, whole(PLAN, 1))
    held.close()
