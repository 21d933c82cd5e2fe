"""Values to plain JSON data and back, by their declared types: events, commands, and the state of a machine.

`decode(T, encode(T, value)) == value` for every type used here, and the data passes through JSON text unchanged.
Fields that a type names as `DROPPED` are skipped; any other field that the type does not have is an error.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Coder = Callable[[Any], Any]


def encode(kind: Any, value: object) -> Any:
    """The value as lists, dictionaries, strings, numbers, booleans and None."""
    return _coders(kind)[0](value)


def decode(kind: type[T], data: Any) -> T:
    """The value that this data stands for."""
    reader: Any = kind
    value: T = _coders(reader)[1](data)
    return value


@cache
def _coders(kind: Any) -> tuple[Coder, Coder]:
    """How to write a type, and how to read it."""
    if kind is float:
        return _write_float, float
    if kind in (int, str, bool, NoneType):
        return _same, _same
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        write, read = _coders(args[0])
        return lambda v: [write(x) for x in v], lambda d: tuple(read(x) for x in d)
    if origin is tuple:
        coders = [_coders(arg) for arg in args]
        return (
            lambda v: [write(x) for (write, _), x in zip(coders, v, strict=True)],
            lambda d: tuple(read(x) for (_, read), x in zip(coders, d, strict=True)),
        )
    if origin in (Union, UnionType):
        return _union_coders(args)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda v: v.value, kind
    if is_dataclass(kind):
        return _dataclass_coders(kind)
    raise TypeError(f"no way to write {kind!r} down")


def _same(value: Any) -> Any:
    return value


def _write_float(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _union_coders(args: tuple[Any, ...]) -> tuple[Coder, Coder]:
    """Optional values, and unions of dataclasses, which carry the name of their type."""
    members = [arg for arg in args if arg is not NoneType]
    if len(members) == 1:
        write, read = _coders(members[0])
        return lambda v: None if v is None else write(v), lambda d: None if d is None else read(d)
    by_type = {member: _coders(member)[0] for member in members}
    by_name = {member.__name__: _coders(member)[1] for member in members}

    def write_one(value: Any) -> Any:
        return {"type": type(value).__name__, **by_type[type(value)](value)}

    def read_one(data: Any) -> Any:
        return by_name[data["type"]]({name: part for name, part in data.items() if name != "type"})

    return write_one, read_one


def _dataclass_coders(kind: Any) -> tuple[Coder, Coder]:
    hints = get_type_hints(kind)
    parts = {field.name: _coders(hints[field.name]) for field in fields(kind)}
    dropped = getattr(kind, "DROPPED", ())
    return (
        lambda v: {name: write(getattr(v, name)) for name, (write, _) in parts.items()},
        lambda d: kind(**{name: parts[name][1](part) for name, part in d.items() if name not in dropped}),
    )
