"""Sums that are the same on every Python: from 3.12 on `sum` makes up for the rounding of floats, before it did not.

A journal that one Python has written is replayed by another, and at a tie the last bit decides.
"""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import TypeVar

Number = TypeVar("Number", int, float)


def total(numbers: Iterable[Number]) -> Number:
    """The numbers added one after the other, each sum rounded; 0 if there are none."""
    return reduce(add, numbers, 0)
