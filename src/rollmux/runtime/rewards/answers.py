"""How answers are read: which readings are compared beside math-verify's own, and how closely.

Invariant: a rule makes two ways to write one answer the same, and never two answers.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import floor
from typing import Any

from rollmux.runtime.rewards import spelling

_AROUND = re.compile(r"[\s$]|\\?[][(){}]")
_DIGITS = 6  # significant digits of a number
_FAR = 1e-3
_UNFIT = (ArithmeticError, TypeError, ValueError)  # sympy's errors about values, never about the machine
_LEAST_PRECISION = 15  # math-verify's own


def letters(readings: Sequence[Any]) -> str | None:
    """The answer's letters if it has nothing else, except blanks, brackets and `$`."""
    bare = [_AROUND.sub("", each).lower() for each in readings if isinstance(each, str)]
    return bare[0] if bare and bare[0].isalpha() else None


def has_number(readings: Sequence[Any]) -> bool:
    return any(getattr(each, "is_number", False) for each in readings)


def are_far_apart(known: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether two numbers differ beyond any rounding. By algebra that takes seconds for sines of degrees."""
    one, two = map(_value, (known, given))
    return one is not None and two is not None and abs(one - two) > _FAR * max(1.0, abs(one), abs(two))


def _value(readings: Sequence[Any]) -> complex | None:
    """The number that the last reading is, if it is one; `i` is the imaginary unit there."""
    last = [each for each in readings if not isinstance(each, str)][-1:]
    if last and getattr(last[0], "is_number", False):
        with suppress(*_UNFIT):
            return complex(last[0].evalf(_DIGITS))
    return None


def has_base(readings: Sequence[Any]) -> bool:
    return any(isinstance(each, str) and spelling.has_base(each) for each in readings)


def precision(readings: Sequence[Any]) -> dict[str, int]:
    """Settings to compare six significant digits of each number; of 0.1 and more, six digits behind the point."""
    places = max([_DIGITS, *(_DIGITS - 1 - size for reading in readings for size in _sizes(reading))])
    return {"float_rounding": places, "numeric_precision": max(_LEAST_PRECISION, places + 1)}


def _sizes(reading: Any) -> Iterator[int]:
    """The power of ten of each number other than 0, as far as it can be evaluated: `\\csc 0` can't."""
    from sympy import log  # noqa: PLC0415 - as math-verify

    if getattr(reading, "is_number", False):
        with suppress(*_UNFIT):
            value = abs(reading.evalf(_DIGITS))
            if value.is_finite and not value.is_zero:
                yield floor(log(value, 10).evalf(_DIGITS))
    else:
        for part in reading.flat() if hasattr(reading, "flat") else getattr(reading, "args", ()):
            yield from _sizes(part)


def with_imaginary(readings: Sequence[Any]) -> list[Any]:
    """Adds readings in which `i`, if it is the only letter, is the imaginary unit."""
    from sympy import Expr, I  # noqa: PLC0415 - as math-verify

    numbers = [
        each.xreplace(dict.fromkeys(each.free_symbols, I))
        for each in readings
        if isinstance(each, Expr) and [letter.name for letter in each.free_symbols] == ["i"]
    ]
    return [*readings, *numbers]


def with_union(readings: Sequence[Any], text: str) -> list[Any]:
    """Adds the union of the intervals, if bounds of one letter have `or` between them.

    Bounds that must be solved first are left out: with their roots a comparison of sets may take for ever.
    """
    from math_verify.grader import is_relation  # noqa: PLC0415 - as math-verify
    from sympy import FiniteSet, Rel, Union  # noqa: PLC0415

    parts, unions = spelling.parted_by_or(text), []
    for each in readings:
        parted = isinstance(each, FiniteSet) and len(each) == parts > 1 and len(each.free_symbols) == 1
        sides = [side for part in each.atoms(Rel) for side in part.args] if parted else []
        if parted and all(map(is_relation, each.args)) and all(side.is_Symbol or side.is_number for side in sides):
            with suppress(NotImplementedError, *_UNFIT):  # bounds that can't be solved are compared as they are
                unions.append(Union(*(part.as_set() for part in each.args)))
    return [*readings, *unions]


def with_percent_alike(known: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Adds readings without the percent sign, if only one of the two answers has one."""
    from math_verify.grader import get_pct_val  # noqa: PLC0415 - as math-verify

    bare = [[each for each in map(get_pct_val, readings) if each is not None] for readings in (known, given)]
    if bool(bare[0]) == bool(bare[1]):
        return [*known], [*given]
    return [*known, *bare[0]], [*given, *bare[1]]
