"""In the program's process: does with the program's objects what the tests ask, and answers with the result.

Invariant: every question has one answer. An object keeps the number by which it was first referred to.
"""

import builtins
import copy
import importlib
import json
import math
import numbers
import operator
from collections import OrderedDict
from collections.abc import Callable
from functools import reduce
from typing import Any

from rollmux.runtime.rewards.asserts import arrays
from rollmux.runtime.rewards.asserts.values import MUTABLE, PLAIN, TYPES, Unreadable, read, text, written
from rollmux.runtime.sandbox import frames

MOST_ITEMS = 1 << 18  # of an array that crosses: a larger array is an object, which can still be asked
OF_VALUES = (
    *("abs", "neg", "pos", "invert", "round", "trunc", "floor", "ceil", "int", "float", "complex", "index"),
    *("bool", "len", "iter", "next"),
)
ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("lshift", "rshift", "and", "or", "xor", "divmod"),
)
IN_PLACE = tuple(f"i{each}" for each in ARITHMETIC if each != "divmod")
ORDER = ("eq", "ne", "lt", "le", "gt", "ge")
OF_OBJECTS = (
    *("reversed", "getitem", "setitem", "delitem", "dir"),
    *("str", "repr", "format", "bytes", "hash"),
)
_OTHERS = (
    *("getattr", "setattr", "delattr", "hasattr", "isinstance", "issubclass", "callable"),
    *("contains", "copy", "deepcopy"),
)


def operation(verb: str) -> Callable[..., Any]:
    """Python's own function of that name, or that of its operator."""
    for module, name in ((builtins, verb), (operator, f"__{verb}__"), (math, verb), (copy, verb)):
        if (found := vars(module).get(name)) is not None:
            return found  # type: ignore[no-any-return]
    raise AttributeError(verb)


_OPERATIONS = {verb: operation(verb) for verb in (*OF_VALUES, *ARITHMETIC, *IN_PLACE, *ORDER, *OF_OBJECTS, *_OTHERS)}
_FORMS: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    **dict.fromkeys((type({}.keys()), type({}.items())), set),
    **dict.fromkeys((type(OrderedDict().keys()), type(OrderedDict().items())), set),
    numbers.Integral: int,  # other libraries' numbers, too
    numbers.Real: float,
}


class Answers:
    """Answers questions about what is in `names`, and about objects that earlier answers referred to."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._kept: list[Any] = []  # kept for ever: a number must never mean another object
        self._numbers: dict[int, int] = {}
        self._verbs: dict[str, Callable[..., Any]] = {
            **_OPERATIONS,
            "name": self._name,
            "call": lambda called, arguments, named: called(*arguments, **named),
            "class": type,
            "form": form,
            "defines": defines,
        }

    def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
        try:
            asked = json.loads(blobs[0])
            arguments = read(asked, self._resolve)
            result = self._verbs[head["verb"]](*arguments)
            stays = head["keep"] and (type(result) in MUTABLE or arrays.is_array(result))
            said = self._kept_as(result) if stays else written(result, self._refer)
            after = written(arguments, self._refer) if head["back"] else asked
            return frames.packed({"raised": False}, [text(said), *([] if after == asked else [text(after)])])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what the program raises is its answer
            return frames.packed({"raised": True}, [self._raised(error)])

    def _raised(self, error: BaseException) -> bytes:
        try:
            return text(written([type(error), error.args, error], self._refer))
        except Exception:  # noqa: BLE001 - an error that can't be told is an error
            return text(written([RuntimeError, (type(error).__name__,), None], self._refer))

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise NameError(f"name {name!r} is not defined")
        return self._names[name]

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, type):
            if TYPES.get(value.__name__) is value:
                return {"type": [value.__name__]}
            if issubclass(value, BaseException):
                return {"error": self._class(value)}
        return arrays.written(value, MOST_ITEMS) or self._kept_as(value)

    def _kept_as(self, value: Any) -> dict[str, Any]:
        return {"kept": [self._number(value)]}

    def _number(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        return number

    def _class(self, error: type[BaseException]) -> list[Any]:
        bases = [self._class(base) for base in error.__bases__ if issubclass(base, BaseException)]
        return [self._number(error), error.__module__, error.__qualname__, bases]

    def _resolve(self, name: str, parts: list[Any]) -> Any:
        if name == "kept":
            return self._kept[parts[0]]
        if name == "numpy":
            return arrays.read(parts)
        if name == "named":
            return reduce(getattr, parts[1].split("."), importlib.import_module(parts[0]))
        raise Unreadable(name)


def form(value: Any) -> tuple[bool, Any]:
    """Whether an object is a value of a plain type, besides what its class adds; and that value."""
    if type(value) in PLAIN:
        return True, value
    made = next((made for kind, made in _FORMS.items() if isinstance(value, kind)), None)
    try:
        return (False, None) if made is None else (True, made(value))
    except TypeError:  # a view of items that no set can hold
        return False, None


def defines(value: Any, *methods: str) -> bool:
    """Whether a value's class has any of these methods as its own, other than those of its plain type."""
    kind = type(value)
    plain = next((base for base in kind.__mro__ if base in PLAIN), object)
    return any(getattr(kind, method, None) is not getattr(plain, method, None) for method in methods)
