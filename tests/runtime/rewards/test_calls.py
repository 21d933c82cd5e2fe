"""What crosses between the tests and the program: literals of plain types, names that the tests leave open."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.runtime.rewards.calls import called_names, is_plain, literal

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda each: st.lists(each) | st.tuples(each, each) | st.dictionaries(st.text(), each),
    max_leaves=20,
)


@given(PLAIN)
def test_what_is_plain_comes_back_as_it_was(value: Any) -> None:
    assert is_plain(value)
    assert literal(repr(value)) == value


def test_sets_and_what_is_no_number_come_back_too() -> None:
    assert literal(repr({1, 2})) == {1, 2}
    assert literal(repr(set())) == set()
    assert literal(repr(float("-inf"))) == float("-inf")
    assert literal(repr(float("nan"))) != literal(repr(float("nan")))


@pytest.mark.parametrize("text", ["__import__('os')", "a", "f()", "[x for x in ()]", "1 if 1 else 2", "open"])
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        literal(text)


def test_objects_of_a_program_are_not_plain() -> None:
    class Sly(int):
        pass

    assert not is_plain(Sly(3))
    assert not is_plain([Sly(3)])
    assert not is_plain({"key": Sly(3)})
    assert not is_plain(len)


def test_names_that_the_tests_leave_open_come_from_the_program() -> None:
    tests = """
import math
from os import path as places
def check(candidate):
    for n in range(3):
        assert candidate(n) == math.sqrt(n)
try:
    check(root)
except ValueError as error:
    print(error, places)
with_lambda = (lambda m: m + offset)(1)
"""
    assert called_names(tests) == {"root", "offset"}
