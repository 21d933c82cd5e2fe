"""A grant that is written and not sent is sent again with the same epoch, and never given twice (F2)."""

import pytest

from tests.service.grants import Grants, all_of, breaches


def test_no_grant_is_given_twice_whenever_the_controller_dies() -> None:
    found, reached = breaches(range(60))
    assert found == []
    assert reached > 20  # in so many it died with a grant that was written and not sent


@pytest.mark.slow
def test_no_grant_of_a_hundred_thousand_seeds_is_given_twice() -> None:
    found, reached = all_of(100_000)
    assert found == []
    assert reached > 30_000


def test_a_disk_that_forgets_what_it_had_called_durable_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = Grants._recover

    def forgetful(self: Grants) -> None:
        if self.lives > 1 and self.journal._records:
            self.journal._records.pop()
            self.journal._images.clear()
        recover(self)

    monkeypatch.setattr(Grants, "_recover", forgetful)
    found, _ = breaches(range(60))
    assert any("with one epoch" in each or "was granted twice" in each for each in found)
