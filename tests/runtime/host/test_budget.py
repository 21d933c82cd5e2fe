"""Claims on memory that lies in a folder of its own: it goes with the claim, and the claim with it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmux.runtime.host import Budget, Claim, NoRoom, NotKept
from tests.runtime.residency.keeping import MB, a_budget


@pytest.fixture
def budget() -> Iterator[Budget]:
    with a_budget(100 * MB) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "p" / "q"
    found.mkdir(parents=True)
    (found / "weights").write_bytes(b"much")
    return found


def claimed(budget: Budget, place: Path, nbytes: int, survive_s: float = 0.0) -> Claim:
    claim = budget.claim("a", nbytes, survive_s=survive_s)
    claim.lies_in(place)
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
