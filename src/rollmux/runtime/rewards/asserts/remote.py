"""Stands in the tests for an object of the program's: every use of it is a question to the program.

Invariant: what the program says is compared here. Whether an object is equal to a value of the tests, or less, or what
they make together, is the program's mere word, and is taken only once the tests have used the object as no plain value
can be used (by an attribute that none has). So a program gains nothing by an object as its answer where a value is due:
the object counts as the plain value that it is besides, or is equal to none. If the tests have made it by what they
name like a class, such a question has no honest answer.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, NoReturn, Protocol

from rollmux.runtime.rewards.asserts.answering import ARITHMETIC, IN_PLACE, OF_OBJECTS, OF_VALUES, ORDER, operation
from rollmux.runtime.rewards.asserts.values import MUTABLE, PLAIN

_NAMES_OF_VALUES = frozenset(name for kind in PLAIN for name in dir(kind))
# Operators in words: methods of values that take another value, and say what the two have to do with each other. A
# method that looks up by a key, or changes its object, is like `[]` and not among them.
_WEIGHING = frozenset(
    {
        *("difference", "symmetric_difference", "intersection", "union", "issubset", "issuperset", "isdisjoint"),
        *("startswith", "endswith", "index", "rindex", "find", "rfind", "count", "replace", "compare", "max", "min"),
        *(f"__{verb}__" for verb in (*ORDER, "contains")),
    }
)
SIZES = ("lt", "le", "gt", "ge")
_OF_PYTHON = (
    *(object, type, property, BaseException, FunctionType, MethodType, BuiltinFunctionType, CodeType),
    *(GeneratorType, CoroutineType),
)
# Names with underscores that mean something to Python itself. By others a library asks for what it then believes, such
# as addresses of memory, and it would look at those in the process that judges.
_ASKED = frozenset(
    {
        *(name for kind in (*_OF_PYTHON, *PLAIN) for name in dir(kind)),
        *("__wrapped__", "__signature__", "__slots__", "__match_args__", "__members__", "__orig_bases__"),
        *(f"__{verb}__" for verb in (*OF_VALUES, *ARITHMETIC, *IN_PLACE, *ORDER, *OF_OBJECTS)),
        *(f"__r{verb}__" for verb in ARITHMETIC),
        *("__get__", "__set__", "__delete__", "__set_name__", "__missing__", "__post_init__", "__length_hint__"),
    }
) - {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__buffer__", "__release_buffer__"}
_NOT_ASKED = ("enter", "exit", "aenter", "aexit", "await", "aiter", "anext")


class Asks(Protocol):
    """The way to the program."""

    def ask(self, verb: str, *arguments: Any, keep: bool = False, name: str = "") -> Any: ...

    def call(self, called: "Remote", arguments: tuple[Any, ...], named: dict[str, Any], *, back: bool = False) -> Any:
        """Calls `called`. `back`: what this changes in its arguments is changed in the tests' own, too."""

    def crosses(self, value: Any) -> bool: ...

    def refuse(self, why: str) -> NoReturn:
        """Ends the tests: they ask what no program could answer honestly."""


@dataclass(slots=True)
class Held:
    """What is known here of an object of one answer. The same object of another answer has a `Held` of its own."""

    link: Asks
    number: int
    name: str  # by which the tests got the object
    made: bool = False  # by a call of something that the tests name like a class
    used: bool = False  # the tests have used it as no plain value can be used
    weighed: bool = False  # it is the result of an operator that told the program a value of the tests
    weighs: bool = False  # it is such an operator itself, in words

    @property
    def biased(self) -> bool:
        """Whether the object's own word may come from values that the tests told the program."""
        return self.weighed and not self.used

    def answered(self, result: Any, *told: Any) -> Any:
        """The result of a call with these arguments, if it may be believed."""
        weighs = self.weighs and any(type(each) is not Remote for each in told)
        return self.weigh(result) if weighs or self.biased else result

    def form(self, remote: "Remote") -> tuple[Any, ...]:
        """The plain value that the object is, in a tuple; an empty tuple if it is none."""
        if self.biased:
            return ()
        known, value = self.link.ask("form", remote)
        return (value,) if known is True and type(value) is not Remote else ()

    def weigh(self, result: Any) -> Any:
        """Takes an operator's result with a value of the tests: an object. A value would be the program's mere word."""
        if type(result) is Remote:
            held = held_by(result)
            held.weighed, held.made, held.name = True, self.made, self.name
            return result
        if self.made:
            self.link.refuse(f"an operator of {self.name} makes a value of a value, and only its own word says which")
        raise TypeError(f"{self.name or 'the answer'} is an object where a value is reckoned with")


class Remote:
    """A reference. It has no attributes of its own, so that all names reach the program's object."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        object.__setattr__(self, "_held", held)

    def __getattribute__(self, name: str) -> Any:
        return attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        held_by(self).link.ask("setattr", self, name, value)
        held_by(self).used = True

    def __delattr__(self, name: str) -> None:
        held_by(self).link.ask("delattr", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return held_by(self).link.call(self, arguments, named)

    def __contains__(self, item: Any) -> Any:
        held = held_by(self)
        if type(item) is Remote or held.used:
            return held.link.ask("contains", self, item)
        if _overrides(self, "__contains__"):
            return held.link.ask("contains", self, item)
        if form := held.form(self):
            return item in form[0]
        return any(item is each or item == each for each in measured(self, "iter"))

    def __copy__(self) -> Any:
        return held_by(self).link.ask("copy", self)

    def __instancecheck__(self, value: Any) -> Any:
        link = held_by(self).link
        return link.crosses(value) and link.ask("isinstance", value, self)

    def __subclasscheck__(self, kind: Any) -> Any:
        link = held_by(self).link
        return link.crosses(kind) and link.ask("issubclass", kind, self)


def like_a_class(name: str) -> bool:
    """Whether a name is that of a class, by Python's custom. The program's own word on that would be worth nothing."""
    return name[:1].isupper() and "_" not in name


def held_by(remote: Remote) -> Held:
    held: Held = object.__getattribute__(remote, "_held")
    return held


def attribute(remote: Remote, name: str, *, keep: bool = False) -> Any:
    held = held_by(remote)
    if name == "__class__":
        kind = held.link.ask("class", remote, name="type")
        return object if type(kind) is type and kind in PLAIN else kind  # a value of that type would have come as one
    if name == "__deepcopy__":
        return lambda _: held.link.ask("deepcopy", remote)
    if name == "__mro_entries__":
        held.link.refuse(f"a class that derives from {held.name} would have to be in both processes")
    if _of_a_library(name):
        return _for_a_library(remote, name)
    result = held.link.ask("getattr", remote, name, keep=keep, name=name)
    if name in _WEIGHING and type(result) is Remote and not held.used and not like_a_class(held.name):
        if (form := held.form(remote)) and hasattr(form[0], name):
            return getattr(form[0], name)
        method = held_by(result)
        method.weighs, method.name = True, held.name
    held.used = held.used or _only_of_objects(name)
    return held.weigh(result) if held.biased else result


def _for_a_library(remote: Remote, name: str) -> Any:
    """What a library asks an object for. Numpy gets its plain value; all else is refused: it would be believed."""
    held = held_by(remote)
    if form := held.form(remote):
        if name == "__array__":
            return lambda *_, **__: sys.modules["numpy"].asarray(form[0])
    elif held.link.ask("hasattr", remote, name):
        held.link.refuse(f"{name}, by which a library would take {held.name or 'an answer'} for one of its own")
    raise AttributeError(name)


def item(remote: Remote, key: Any) -> Any:
    """An item as a reference, so that it can be changed in the program."""
    return held_by(remote).link.ask("getitem", remote, key, keep=True)


def measured(remote: Remote, verb: str, *arguments: Any) -> Any:
    """Asks an object something that can be asked of a value, too."""
    held = held_by(remote)
    result = held.link.ask(verb, remote, *arguments)
    return held.weigh(result) if held.biased else result


def compared(remote: Remote, verb: str, other: Any) -> Any:
    held = held_by(remote)
    if held.used or type(other) is Remote:
        result = held.link.ask(verb, remote, other)
        return held.weigh(result) if verb in SIZES and _biased(remote, other) else result
    if other is None:
        return NotImplemented
    if _overrides(remote, *(("__eq__", "__ne__") if verb == "ne" else (f"__{verb}__",))) or _is_hidden_value(remote):
        held.link.refuse(f"only its own word says what {held.name} has to do with a value")
    if form := held.form(remote):
        return operation(verb)(form[0], other)
    return NotImplemented


def combined(remote: Remote, verb: str, other: Any, *, reflected: bool = False) -> Any:
    held = held_by(remote)
    left, right = (other, remote) if reflected else (remote, other)
    if held.used or type(other) is Remote:
        result = held.link.ask(verb, left, right)
        return held.weigh(result) if _biased(remote, other) else result
    own = (f"__r{verb}__",) if reflected else (f"__{verb}__", f"__{verb.removeprefix('i')}__")[: 1 + (verb in IN_PLACE)]
    form = held.form(remote)
    if form and verb in IN_PLACE and type(form[0]) in MUTABLE:
        return held.link.ask(verb, remote, other)  # a container takes the value in, and stays the same object
    if form and not _overrides(remote, *own):
        return operation(verb)(*((other, form[0]) if reflected else (form[0], other)))
    if not held.made and not held.link.crosses(other):
        return NotImplemented
    return held.weigh(held.link.ask(verb, left, right))


def _overrides(remote: Remote, *methods: str) -> bool:
    """Whether the tests made it and its class has one of these methods: then its plain value can't answer for it."""
    held = held_by(remote)
    return held.made and held.link.ask("defines", remote, *methods) is True


def _is_hidden_value(remote: Remote) -> bool:
    """Whether the result of an operator, of an object that the tests made and a value, claims to be a plain value."""
    held = held_by(remote)
    return held.made and held.biased and held.link.ask("form", remote)[0] is True


def _of_a_library(name: str) -> bool:
    return name == "_as_parameter_" or (name.startswith("__") and name.endswith("__") and name not in _ASKED)


def _only_of_objects(name: str) -> bool:
    return name not in _NAMES_OF_VALUES and not name.startswith("_")


def _biased(*operands: Any) -> bool:
    return any(type(each) is Remote and held_by(each).biased for each in operands)


def _asking(verb: str) -> Callable[..., Any]:
    return lambda self, *arguments: held_by(self).link.ask(verb, self, *arguments)


def _measuring(verb: str) -> Callable[..., Any]:
    return lambda self, *arguments: measured(self, verb, *arguments)


def _comparing(verb: str) -> Callable[..., Any]:
    return lambda self, other: compared(self, verb, other)


def _combining(verb: str, *, reflected: bool = False) -> Callable[..., Any]:
    return lambda self, other: combined(self, verb, other, reflected=reflected)


def _refusing(verb: str) -> Callable[..., Any]:
    return lambda self, *_: held_by(self).link.refuse(f"__{verb}__ takes and gives what does not cross")


for _verb in OF_OBJECTS:
    setattr(Remote, f"__{_verb}__", _asking(_verb))
for _verb in OF_VALUES:
    setattr(Remote, f"__{_verb}__", _measuring(_verb))
for _verb in ORDER:
    setattr(Remote, f"__{_verb}__", _comparing(_verb))
for _verb in (*ARITHMETIC, *IN_PLACE):
    setattr(Remote, f"__{_verb}__", _combining(_verb))
for _verb in ARITHMETIC:
    setattr(Remote, f"__r{_verb}__", _combining(_verb, reflected=True))
for _verb in _NOT_ASKED:
    setattr(Remote, f"__{_verb}__", _refusing(_verb))
