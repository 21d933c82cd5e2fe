"""Calls tests that only pytest would call: functions, and methods of classes, that are named like tests.

Invariant: each of them is called, or refused by its name. Of pytest's features only `parametrize` is known here.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from types import FunctionType
from typing import Any

from rollmux.runtime.rewards.asserts.asking import Link
from rollmux.runtime.rewards.asserts.remote import Remote

# Names of what pytest does for all tests of a module or a class.
_FOR_ALL = ("setup_module", "setup_function", "setup_class", "pytestmark")
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def call_uncalled(tests: str, names: Mapping[str, Any], link: Link) -> None:
    """Calls tests that are defined here and named nowhere else."""
    used = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    own = {name: value for name, value in names.items() if type(value) is not Remote}  # a Remote would be asked
    left = {name: value for name, value in own.items() if name not in used}
    functions = [(name, value) for name, value in left.items() if _is_test(name, value)]
    classes = [(name, value) for name, value in left.items() if name.startswith("Test") and _is_collected(value)]
    if functions or classes:
        _require_known(own, link)
    for name, function in functions:
        for given in _given(name, function, link):
            function(**given)
    for name, made_by in classes:
        members = {key: value for each in reversed(made_by.__mro__) for key, value in vars(each).items()}
        _require_known(members, link)
        for method, function in [each for each in members.items() if _is_test(*each)]:
            for given in _given(f"{name}.{method}", function, link, within=1):
                it = made_by()
                _about(it, "setup_method", function)
                getattr(it, method)(**given)
                _about(it, "teardown_method", function)


def _is_test(name: str, value: object) -> bool:
    return name.startswith("test") and type(value) is FunctionType


def _is_collected(value: object) -> bool:
    """Whether pytest would collect it: a class without `__init__`. `unittest.main()` runs those of unittest."""
    case: Any = getattr(sys.modules.get("unittest"), "TestCase", ())
    return isinstance(value, type) and "__init__" not in vars(value) and not issubclass(value, case)


def _about(it: object, hook: str, function: FunctionType) -> None:
    """Calls a hook before or after a test, with the test's function if the hook takes it."""
    if (called := getattr(it, hook, None)) is not None:
        called(*[function][: len(inspect.signature(called).parameters)])


def _require_known(names: Mapping[str, Any], link: Link) -> None:
    for name, value in names.items():
        marker = getattr(value, "_fixture_function_marker", None) or getattr(value, "_pytestfixturefunction", None)
        if getattr(marker, "autouse", False) is True or name in _FOR_ALL:
            link.refuse(f"{name} is done by pytest alone: call it, and the tests, yourself")


def _given(name: str, function: FunctionType, link: Link, within: int = 0) -> Iterator[dict[str, Any]]:
    """The arguments of each call of a test. `within`: how many of them its class gives."""
    marks = getattr(function, "pytestmark", ())
    if inspect.iscoroutinefunction(function):
        link.refuse(f"{name} is a coroutine: run it yourself")
    if strange := [mark.name for mark in marks if mark.name != "parametrize"]:
        link.refuse(f"{name} is marked {strange[0]}, which pytest alone knows: leave that out")
    wanted = list(inspect.signature(function).parameters.values())[within:]
    required = {each.name for each in wanted if each.default is each.empty and each.kind not in _ANY}
    for chosen in product(*[_sets(*mark.args, **mark.kwargs) for mark in marks]):
        given = dict(chain.from_iterable(each.items() for each in chosen))
        if missing := sorted(required - given.keys()):
            link.refuse(f"{name} wants {', '.join(missing)}, which nobody gives: call it yourself")
        yield given


def _sets(argnames: str | Iterable[str], argvalues: Iterable[Any], **_: object) -> list[dict[str, Any]]:
    """The sets of arguments that a `parametrize` gives."""
    known = [each.strip() for each in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    bare = isinstance(argnames, str) and len(known) == 1
    rows = []
    for each in argvalues:
        told = each.values if type(each).__name__ == "ParameterSet" else (each,) if bare else each
        rows.append(dict(zip(known, told, strict=True)))
    return rows
