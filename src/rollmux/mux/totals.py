"""Sums that are the same on every Python: from 3.12 on `sum` carries along what floats round away, before it did not.

A journal that one has written is played by another, and at a tie the last bit decides.
"""

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import TypeVar

Number = TypeVar("Number", int, float)


def total(numbers: Iterable[Number]) -> Number:
    """One after the other, each rounded; 0 of none."""
    return reduce(add, numbers, 0)
