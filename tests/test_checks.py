"""What passes for a number, and what is said of what does not."""

import pytest

from rollmux.checks import Checks
from rollmux.errors import InvalidSpec


def test_nothing_wrong_raises_nothing() -> None:
    checks = Checks("thing")
    assert checks.number("part", 0.5, 0.0, 1.0, "give a part")
    assert checks.whole("count", 1, 1, 1, "give one")
    assert checks.keys({"a": 1, "b": 2}, ("a", "b"))
    checks.require()


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), -0.1, 1.1])
def test_what_is_no_number_within_its_limits_is_reported(value: object) -> None:
    checks = Checks("thing")
    assert not checks.number("part", value, 0.0, 1.0, "give a part")
    with pytest.raises(InvalidSpec, match=r"thing\.part = .*: must be a number from 0 to 1; give a part"):
        checks.require()


def test_what_is_refused_is_told_with_what_was_reported_before() -> None:
    checks = Checks("thing")
    checks.report("part", 2, "1", "give one")
    with pytest.raises(InvalidSpec, match=r"(?s)2 problems.*thing\.part = 2: .*thing\.count = 0: must be 1; give one"):
        raise checks.refusal("count", 0, "1", "give one")


@pytest.mark.parametrize("value", [True, "1", 1.0, None, 0, 10])
def test_what_is_no_whole_number_within_its_limits_is_reported(value: object) -> None:
    checks = Checks("thing")
    assert not checks.whole("count", value, 1, 9, "give a count")
    assert [str(problem) for problem in checks.problems] == [
        f"thing.count = {value!r}: must be a whole number from 1 to 9; give a count"
    ]


def test_every_unknown_and_every_missing_name_is_reported_with_the_nearest_known_one() -> None:
    checks = Checks("state")
    assert not checks.keys(("cuonts", "zzz"), ("cases", "counts"))
    assert [(problem.path, problem.remedy) for problem in checks.problems] == [
        ("state.cuonts", "did you mean 'counts'?"),
        ("state.zzz", "leave it out"),
        ("state.cases", "restore from what state() gave"),
        ("state.counts", "restore from what state() gave"),
    ]
