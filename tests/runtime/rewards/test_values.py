"""What crosses between the tests and the program: values of plain types, each as it was, and references."""

import json
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from rollmux.runtime.rewards.asserts import arrays
from rollmux.runtime.rewards.asserts.answering import form
from rollmux.runtime.rewards.asserts.values import MOST_DEEP, PLAIN, Unreadable, read, text, unresolved, written

SINGLE = (
    *(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.binary().map(bytearray)),
    *(st.floats(allow_nan=False), st.complex_numbers(allow_nan=False), st.fractions(), st.decimals(allow_nan=False)),
    *(st.dates(), st.datetimes(), st.times(), st.timedeltas()),
)
PLAIN_VALUES = st.recursive(
    st.one_of(SINGLE),
    lambda each: (
        st.lists(each)
        | st.tuples(each, each)
        | st.lists(each).map(deque)
        | st.dictionaries(st.text(), each)
        | st.dictionaries(st.integers(), each).map(OrderedDict)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.tuples(st.integers(), st.text()))
    ),
    max_leaves=20,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: (
        st.lists(each)
        | st.dictionaries(st.text(), each)
        | st.dictionaries(st.sampled_from(sorted(kind.__name__ for kind in PLAIN)), st.lists(each), max_size=1)
    ),
    max_leaves=20,
)


def there_and_back(value: Any) -> Any:
    return read(json.loads(text(written(value, refused))), unresolved)


def refused(value: Any) -> dict[str, Any]:
    raise Unreadable(type(value).__name__)


@given(PLAIN_VALUES)
def test_what_is_plain_comes_back_as_it_was(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        *(set(), frozenset({1}), range(3, 9, 2), slice(1, None), Counter("aab"), float("-inf"), -0.0, 1 << 100_000),
        *(deque([1, 2], 2), Decimal("1.50"), Fraction(1, 3), [Ellipsis][:0], {(1, 2): {"key": [b"\xff\0"]}}),
        *(date(2024, 2, 29), datetime(2024, 1, 1, tzinfo=UTC), time(12, 30), timedelta(days=-1, microseconds=5)),
    ],
    ids=lambda value: repr(value)[:30] if type(value) is not int else "large",
)
def test_the_types_of_tests_come_back_too(value: Any) -> None:
    back = there_and_back(value)
    assert (type(back), back) == (type(value), value)


def test_what_is_no_number_and_what_makes_defaults_come_back_too() -> None:
    assert isnan(there_and_back(float("nan")))
    assert there_and_back(defaultdict(None, {1: 2})) == {1: 2}


@given(JSON)
def test_whatever_is_said_is_a_plain_value_or_refused(said: Any) -> None:
    try:
        value = read(said, unresolved)
    except Exception:  # noqa: BLE001 - whoever reads ends it there
        return
    assert type(value) in PLAIN


@pytest.mark.parametrize(
    "said",
    [
        *([1], {}, {"list": 1}, {"list": [], "set": []}, {"eval": ["1"]}, {"kept": [1]}, {"type": ["int"]}),
        *({"set": [{"list": []}]}, {"dict": [1]}, {"Fraction": ["1e9"]}, {"bytes": [{"kept": [0]}]}, {"int": ["x"]}),
    ],
    ids=repr,
)
def test_what_no_value_is_written_as_is_refused(said: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read(said, unresolved)


def test_what_is_too_deep_is_refused_and_what_is_read_can_be_written() -> None:
    deep: Any = 1
    for _ in range(MOST_DEEP):
        deep = [deep]
    assert there_and_back(deep) == deep
    with pytest.raises(Unreadable):
        there_and_back([[deep]])


ARRAYS = of_numpy.arrays(
    of_numpy.scalar_dtypes().filter(lambda kind: kind.kind in "biufcU"), of_numpy.array_shapes(min_dims=0, min_side=0)
)


@given(ARRAYS, st.booleans())
def test_arrays_and_numbers_of_numpy_come_back_as_they_were(array: Any, alone: bool) -> None:
    value = array.flat[0] if alone and array.size else array
    if value.dtype.itemsize > 16 and value.dtype.kind in "fc":  # Python has no such number
        assert arrays.written(value, inf) is None
        return
    said = arrays.written(value, inf)
    assert said is not None
    back = arrays.read(json.loads(text(said))["numpy"])
    assert type(back) is type(value)
    assert back.dtype.name == value.dtype.name or value.dtype.kind == "U"
    assert back.shape == value.shape
    np.testing.assert_array_equal(back, value)


@given(
    st.lists(JSON, max_size=3) | st.tuples(st.sampled_from(["bool", "int8", "complex64", "str"]), JSON, JSON).map(list)
)
def test_whatever_is_said_of_an_array_is_one_of_plain_items_or_refused(said: list[Any]) -> None:
    try:
        value = arrays.read(said)
    except Exception:  # noqa: BLE001 - whoever reads ends it there
        return
    assert value.dtype.kind in "biufcU"


def test_what_is_no_array_or_a_larger_one_is_not_written_as_one() -> None:
    class Sly(np.float64):
        pass

    masked: Any = np.ma.array([1, 2], mask=[False, True])
    others = [np.array([None]), np.array([b"x"]), np.datetime64("2024-01-01"), np.zeros(2, "i4,f8"), np.longdouble(1)]
    for value in (3, 0.5, object(), np, np.float64, Sly(3), masked, *others, np.zeros(4)):
        assert arrays.written(value, 3) is None


def test_objects_of_a_program_are_not_written_as_values() -> None:
    class Sly(int):
        pass

    for value in (Sly(3), [Sly(3)], {"key": Sly(3)}, len, object()):
        with pytest.raises(Unreadable):
            written(value, refused)


def test_the_form_of_an_object_is_what_its_plain_base_holds() -> None:
    class Sly(list[int]):
        def __iter__(self) -> Any:
            return iter([7])

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    class Large(int):
        def __int__(self) -> int:
            return 7

    assert form(Sly([1, 2])) == (True, [1, 2])
    assert type(form(Sly())[1]) is list
    assert form(Large(3)) == (True, 3)
    assert form(object()) == (False, None)
