"""The tests as they are run: rewritten so that they ask the program where Python by itself would not.

Invariant: what the tests define, and Python's own names, are theirs; all other names are the program's, looked up anew
at each use. Without a `Remote` every construct means what it means in Python.
"""

import ast
import builtins
import operator
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from types import CodeType, ModuleType, UnionType
from typing import Any

from rollmux.runtime.rewards.asserts.arrays import is_array
from rollmux.runtime.rewards.asserts.asking import Link
from rollmux.runtime.rewards.asserts.remote import Remote, attribute, held_by, item
from rollmux.runtime.rewards.asserts.running import RUNNING, Running
from rollmux.runtime.rewards.asserts.values import MUTABLE

_NOWHERE = object()
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "In": lambda item, within: item in within,
    "NotIn": lambda item, within: item not in within,
}
# Names of libraries' functions that look at the type of an object, or run it.
_BY_TYPE = frozenset(
    {
        *("run", "run_until_complete", "create_task", "ensure_future", "gather", "wait", "wait_for", "shield"),
        *("is_dataclass", "fields", "asdict", "astuple", "replace"),
        *("load", "loads", "Unpickler", "sympify", "parse_expr"),
    }
)


def compiled(tests: str) -> CodeType:
    return compile(ast.fix_missing_locations(_Asking().visit(ast.parse(tests, "tests.py"))), "tests.py", "exec")


class Names(dict[str, Any]):
    """The tests' global names: first their own, then Python's, then the program's."""

    def __init__(self, link: Link, tests: CodeType) -> None:
        running = Running(link, tests)
        functions = {**_Functions(link, running).by_name(), **running.by_name()}
        self._others = _Others(link)
        own = {name: value for name, value in self._others.items() if not name.startswith("_")}  # to be found at once
        super().__init__({**own, "__name__": "__main__", **functions, "__builtins__": self._others})

    def __missing__(self, name: object) -> Any:
        """Looks a name up, for `globals()["f"]` too."""
        if type(name) is not str:
            raise KeyError(name)
        return self._others[name]

    def __contains__(self, name: object) -> bool:
        return self.get(name, _NOWHERE) is not _NOWHERE

    def get(self, name: Any, default: Any = None) -> Any:
        with suppress(KeyError):
            return self[name]
        return default


class _Others(dict[str, Any]):
    """Python's own names, then the program's. For names that are missing, bodies of classes look only here."""

    def __init__(self, link: Link) -> None:
        super().__init__(vars(builtins))
        self._link = link

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        try:
            return self._link.ask("name", name, name=name)
        except NameError:
            raise KeyError(name) from None


class Solution(ModuleType):
    """The program as a module, for tests that import it: only its own names, even if Python has the same."""

    def __init__(self, link: Link) -> None:
        super().__init__("solution")
        self._link = link

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._link.ask("name", name, name=name)
        except NameError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        if "_link" in vars(self):  # it is made by now
            self._link.refuse(f"{name} of the program's module can't be set from outside")
        super().__setattr__(name, value)


class Tests(ModuleType):
    """The tests as a module, for code that looks into their module, as `unittest.main()` does."""

    def __init__(self, names: Names) -> None:
        super().__init__("__main__")
        self._names = names

    def __dir__(self) -> list[str]:
        return list(self._names)

    def __getattr__(self, name: str) -> Any:
        if not dict.__contains__(self._names, name):  # a library that looks for hooks gets none of the program's names
            raise AttributeError(name)
        return self._names[name]


class _Asking(ast.NodeTransformer):
    """Rewrites where a part of an object is itself looked into, a call is a statement, or `is` compares."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()  # arguments that are cut off, and the name of the length

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for each in ast.walk(node):
            match each:
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(lower=None, upper=ast.Name(id=at))):
                    self._cut.add((name, at))
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """In `k = f(a)` followed by `a[:k]` the test means what `f` did to `a`, as if the call were a statement."""
        self.generic_visit(node)
        match node:
            case ast.Assign(targets=[ast.Name(id=at)], value=ast.Call(args=arguments) as call):
                if any(isinstance(each, ast.Name) and (each.id, at) in self._cut for each in arguments):
                    _done(call)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """Drops the block that has pytest run this file: there is no pytest here."""
        self.generic_visit(node)
        if ast.unparse(node.test) == "__name__ == '__main__'" and "pytest.main(" in ast.unparse(node):
            return ast.Pass()
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.value = _held(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.value = _held(node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call):
            _done(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type"), args=[_], keywords=[]):
                node.func = _name("@type")
            case ast.Call(
                func=ast.Attribute(attr="assertIs" | "assertIsNot" as how) as called, args=[left, right, *message]
            ):
                called.attr = "assertTrue" if how == "assertIs" else "assertFalse"
                node.args = [_call("@same", left, right), *message]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _BY_TYPE:
                node.func = _call("@here", node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        known = sum(isinstance(each, ast.Constant) for each in operands)
        if known >= len(operands) - 1 or not any(isinstance(how, ast.Is | ast.IsNot) for how in node.ops):
            return node
        return _call("@chain", *(ast.Constant(type(how).__name__) for how in node.ops), *operands)

    def visit_Match(self, node: ast.Match) -> ast.AST:
        self.generic_visit(node)
        patterns = [each for case in node.cases for each in ast.walk(case.pattern)]
        kinds = [each.cls for each in patterns if isinstance(each, ast.MatchClass)]
        node.subject = _call("@matched", node.subject, *map(deepcopy, kinds))
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Leaves the pattern as it is: a pattern can't hold a call."""
        node.guard = None if node.guard is None else self.visit(node.guard)
        node.body = [self.visit(each) for each in node.body]
        return node


def _name(name: str) -> ast.Name:
    """A name that tests can't have, as it can't be written."""
    return ast.Name(name, ast.Load())


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_name(name), list(arguments), [])


def _done(call: ast.Call) -> None:
    match call.func:
        case ast.Name(id=name) if name in vars(builtins):
            pass  # some of Python's functions look at their caller's frame
        case called:
            call.func, call.args = _name("@done"), [called, *call.args]


def _held(node: ast.expr) -> ast.expr:
    match node:
        case ast.Attribute(attr=name) if not name.startswith("__"):
            return _call("@held", ast.Constant("getattr"), node.value, ast.Constant(name))
        case ast.Subscript(slice=key) if not isinstance(key, ast.Slice | ast.Tuple):
            return _call("@held", ast.Constant("getitem"), node.value, key)
    return node


class _Functions:
    """Functions that the rewritten tests call, and replacements of Python's functions that look at types."""

    def __init__(self, link: Link, running: Running) -> None:
        self._link, self._running = link, running

    def by_name(self) -> dict[str, Any]:
        looked_into = {"@held": self.held, "@done": self.done, "@here": self.here}
        compared = {"@same": self.same, "@chain": self.chain, "@type": self.kind, "@matched": self.matched}
        asking = {"isinstance": self.is_instance, "issubclass": self.is_subclass, "callable": self.is_callable}
        return {**looked_into, **compared, **asking, "hasattr": self.has, "id": self.identity}

    def held(self, how: str, value: Any, key: Any) -> Any:
        """A part of an object, as a reference if it is the program's, so that it can be changed there."""
        if type(value) is not Remote:
            return getattr(value, key) if how == "getattr" else value[key]
        return attribute(value, key, keep=True) if how == "getattr" else item(value, key)

    def done(self, called: Any, *arguments: Any, **named: Any) -> Any:
        """A call for its effects only, also those on its arguments."""
        if type(called) is not Remote:
            return called(*arguments, **named)
        return self._link.call(called, arguments, named, back=True)

    def same(self, left: Any, right: Any) -> bool:
        if type(left) is Remote and type(right) is Remote:
            return held_by(left).number == held_by(right).number
        is_copied = type(left) in MUTABLE or is_array(left)
        if left is not right and is_copied and type(right) is type(left):
            self._link.refuse(f"whether two {type(left).__name__}s are one: the program's come here as copies")
        return left is right

    def chain(self, *parts: Any) -> Any:
        """A chain of comparisons: `parts` are its operators, then its operands."""
        hows, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        holds: Any = True
        for how, left, right in zip(hows, values, values[1:], strict=False):
            holds = self.same(left, right) is (how == "Is") if how in ("Is", "IsNot") else _COMPARED[how](left, right)
            if not holds:
                break
        return holds

    def identity(self, value: Any) -> int:
        """The `id` of an object; below all of Python's for the program's: what is one object there has one id here."""
        return -1 - held_by(value).number if type(value) is Remote else id(value)

    def here(self, called: Any) -> Any:
        """Guards a library's function that looks at its arguments' types or runs them: it mustn't get the program's."""
        place = "" if type(called) is Remote else str(getattr(called, "__module__", "")).partition(".")[0]
        if place not in ("asyncio", "dataclasses", *RUNNING):
            return called

        def known(*arguments: Any, **named: Any) -> Any:
            given = (*arguments, *named.values())
            if place in RUNNING and not all(type(each) in (int, float) or self._running.owns(each) for each in given):
                self._link.refuse(f"{called.__name__} of what does not stand in the tests could run it where they are")
            if any(type(each) is Remote for each in given):
                self._link.refuse(f"{called.__name__} of an object of the program's would have to be in its process")
            return called(*arguments, **named)

        return known

    def matched(self, subject: Any, *kinds: Any) -> Any:
        for each in kinds:
            if type(each) is Remote:
                self._link.refuse(
                    f"whether a pattern of {held_by(each).name} matches: it would have to be in both processes"
                )
        return subject

    def kind(self, value: Any) -> Any:
        return attribute(value, "__class__") if type(value) is Remote else type(value)

    def is_instance(self, value: Any, kinds: Any) -> Any:
        if type(value) is not Remote:
            return isinstance(value, kinds)
        return self._link.ask("isinstance", value, self._known(kinds))

    def is_subclass(self, value: Any, kinds: Any) -> Any:
        if type(value) is not Remote:
            return issubclass(value, kinds)
        return self._link.ask("issubclass", value, self._known(kinds))

    def is_callable(self, value: Any) -> Any:
        return self._link.ask("callable", value) if type(value) is Remote else callable(value)

    def has(self, value: Any, name: str) -> Any:
        return self._link.ask("hasattr", value, name) if type(value) is Remote else hasattr(value, name)

    def _known(self, kinds: Any) -> tuple[Any, ...]:
        """These classes without the tests' own: nothing of the program's derives from those."""
        return tuple(each for each in _each(kinds) if self._link.crosses(each))


def _each(kinds: Any) -> list[Any]:
    if type(kinds) is tuple:
        return [kind for each in kinds for kind in _each(each)]
    return _each(kinds.__args__) if type(kinds) is UnionType else [kinds]
