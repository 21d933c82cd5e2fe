"""Numpy's arrays and numbers as values: their type, their shape, and all that is in them.

Invariant: reading makes only truth values, numbers and texts, and as many as were written.
"""

import sys
from functools import cache
from importlib import import_module
from typing import Any

# Types of items, and what each crosses as. Types without an exact number in Python are left out, and stay objects.
_TOLD_AS = {
    **{name: name for name in ("bool", "str", "float16", "float32", "float64")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "complex64": "float32",
    "complex128": "float64",
}
_ITEMS = (bool, int, float, str)


class NoArray(ValueError):
    """The other side wrote something as an array that is none."""


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) in (vars(numpy).get("ndarray"), _empty())


def written(value: Any, most: float) -> dict[str, Any] | None:
    """A value for JSON. None if it is no number, no array of at most `most` items, or its items are of other types."""
    numpy: Any = sys.modules.get("numpy")
    is_number = issubclass(type(value), getattr(numpy, "generic", ())) and type(value) is value.dtype.type
    if not (is_number or (is_array(value) and value.size <= most)):
        return None
    kind = "str" if value.dtype.kind == "U" else value.dtype.name
    if kind not in _TOLD_AS:
        return None
    items = numpy.ascontiguousarray(value, kind).ravel()
    told = items if _TOLD_AS[kind] == kind else items.view(_TOLD_AS[kind])
    return {"numpy": [kind, None if is_number else list(value.shape), told.tolist()]}


def read(parts: list[Any]) -> Any:
    """The value again. Raises what numpy raises if it can't be made of these parts."""
    match parts:
        case [str(kind), shape, list(items)] if kind in _TOLD_AS and all(type(each) in _ITEMS for each in items):
            made = import_module("numpy").array(items, _TOLD_AS[kind])
            made = made if _TOLD_AS[kind] == kind else made.view(kind)
            return made[0] if shape is None else made.reshape(shape)
    raise NoArray("no type, shape and items of an array")


def compared(value: Any) -> Any:
    """Guards an empty array: with some right values numpy would make an empty one, for which any test holds."""
    return value.view(_empty()) if is_array(value) and not value.size else value


@cache
def _empty() -> Any:
    numpy: Any = import_module("numpy")

    def weighs(each: Any, ufunc: Any) -> bool:
        """Whether it may be a right value: an array with items, or a number that is compared for equality."""
        if not isinstance(each, int | float | str | list | numpy.generic | numpy.ndarray):
            return False
        value = numpy.asarray(each)
        if value.ndim:
            return bool(value.size)
        is_endless = value.dtype.kind == "f" and numpy.isinf(value)  # numpy's own functions look for infinity so
        return ufunc in (numpy.equal, numpy.not_equal) and not is_endless

    class Empty(numpy.ndarray):  # type: ignore[misc]
        """An empty array that refuses to be combined with right values, whatever numpy's rules of shapes say."""

        def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **named: Any) -> Any:
            are_none = any(isinstance(each, numpy.ndarray) and not each.size for each in given)
            if are_none and any(weighs(each, ufunc) for each in given):
                raise ValueError("an array without items is not to be weighed with what has some")
            if "out" in named:
                named["out"] = plain(named["out"])
            return getattr(ufunc, method)(*plain(given), **named)

    def plain(values: Any) -> Any:
        return tuple(each.view(numpy.ndarray) if isinstance(each, Empty) else each for each in values)

    return Empty
