"""What crosses between tests and program: JSON that says all of a value of plain types, and a reference to all else.

Invariant: reading makes only values of the types that are listed here, whatever the other side has written. The reader
alone decides what a reference leads to.
"""

import json
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from operator import index
from typing import Any, NoReturn

Refer = Callable[[Any], dict[str, Any]]  # gives what stands for an object: a sort of reference, and its parts
Resolve = Callable[[str, list[Any]], Any]

_SCALARS = (bool, float, str, type(None))
MOST_DEEP = 200  # containers within one another: what is read can be written again, however deep the reader's stack is
_MOST_BITS = 10_000  # whole numbers below this are written as digits: Python refuses 4,300 digits


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a value is taken apart, and made again of its parts. Only containers hold references."""

    parts: Callable[[Any], Iterable[Any]]
    made: Callable[[list[Any]], Any]
    container: bool = False


def _flat(mapping: dict[Any, Any]) -> Iterator[Any]:
    return chain.from_iterable(mapping.items())


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(flat: list[Any]) -> bytes:
    return str(flat[0]).encode("latin-1")


_SHAPES: dict[type, _Shape] = {
    list: _Shape(iter, list, container=True),
    tuple: _Shape(iter, tuple, container=True),
    set: _Shape(iter, set, container=True),
    frozenset: _Shape(iter, frozenset, container=True),
    dict: _Shape(_flat, _pairs, container=True),
    OrderedDict: _Shape(_flat, lambda parts: OrderedDict(_pairs(parts)), container=True),
    Counter: _Shape(_flat, lambda parts: Counter(_pairs(parts)), container=True),
    defaultdict: _Shape(
        lambda value: (value.default_factory, *_flat(value)),
        lambda parts: defaultdict(parts[0], _pairs(parts[1:])),
        container=True,
    ),
    deque: _Shape(lambda value: (value.maxlen, *value), lambda parts: deque(parts[1:], parts[0]), container=True),
    bytes: _Shape(lambda value: [value.decode("latin-1")], _text),
    bytearray: _Shape(lambda value: [value.decode("latin-1")], lambda parts: bytearray(_text(parts))),
    complex: _Shape(lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    range: _Shape(lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    slice: _Shape(lambda value: (value.start, value.stop, value.step), lambda parts: slice(*parts), container=True),
    Decimal: _Shape(lambda value: [str(value)], lambda parts: Decimal(*parts)),
    Fraction: _Shape(lambda value: (value.numerator, value.denominator), lambda parts: Fraction(*map(index, parts))),
    date: _Shape(lambda value: [value.isoformat()], lambda parts: date.fromisoformat(*parts)),
    datetime: _Shape(lambda value: [value.isoformat()], lambda parts: datetime.fromisoformat(*parts)),
    time: _Shape(lambda value: [value.isoformat()], lambda parts: time.fromisoformat(*parts)),
    timedelta: _Shape(lambda value: (value.days, value.seconds, value.microseconds), lambda parts: timedelta(*parts)),
}
_KINDS = {kind.__name__: kind for kind in _SHAPES}
MUTABLE = frozenset({list, set, dict, OrderedDict, Counter, defaultdict, deque, bytearray})
PLAIN: frozenset[type] = frozenset({int, *_SCALARS, *_SHAPES})
# Further types that mean the same on both sides, and do no harm when they are called.
_OTHERS: tuple[type, ...] = (
    object,
    *(types.GeneratorType, types.CoroutineType, types.FunctionType, types.MethodType),
)
TYPES = {kind.__name__: kind for kind in (*PLAIN, *_OTHERS)}


class Unreadable(ValueError):
    """The other side wrote something as a value that is none."""


def written(value: Any, refer: Refer) -> Any:
    """A value for JSON. Values without a form in JSON, and references, become an object of one key: sort and parts."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if value.bit_length() < _MOST_BITS else {"int": [hex(value)]}
    if kind in _SHAPES:
        return {kind.__name__: [written(each, refer) for each in _SHAPES[kind].parts(value)]}
    return refer(value)


def read(said: Any, resolve: Resolve, deep: int = 0) -> Any:
    """The value again. Raises what its type raises if it can't be made of these parts."""
    if type(said) in _SCALARS or type(said) is int:
        return said
    if type(said) is not dict or len(said) != 1:
        raise Unreadable(f"a {type(said).__name__} that stands for no value")
    ((name, parts),) = said.items()
    if type(parts) is not list or deep > MOST_DEEP:
        raise Unreadable(f"{name} without parts, or more than {MOST_DEEP} deep")
    if name == "int":
        return int(str(parts[0]), 16)
    if name not in _KINDS:
        return resolve(name, parts)
    shape = _SHAPES[_KINDS[name]]
    return shape.made([read(each, resolve if shape.container else unresolved, deep + 1) for each in parts])


def unresolved(name: str, _: list[Any]) -> NoReturn:
    raise Unreadable(f"{name[:100]!r} is no sort of value")


def text(said: Any) -> bytes:
    return json.dumps(said).encode()
