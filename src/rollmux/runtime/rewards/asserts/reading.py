"""The tests as they are run: Python that asks the program wherever the language alone would not.

Invariant: what the tests define, and Python's own names, are theirs; all other names are the program's, looked up anew
at each use. Without a `Remote` every construct means what it means in Python.
"""

import ast
import builtins
from types import CodeType, ModuleType, UnionType
from typing import Any

from rollmux.runtime.rewards.asserts.asking import Link
from rollmux.runtime.rewards.asserts.remote import Remote, attribute, held_by, item
from rollmux.runtime.rewards.asserts.values import MUTABLE


def compiled(tests: str) -> CodeType:
    return compile(ast.fix_missing_locations(_Asking().visit(ast.parse(tests, "tests.py"))), "tests.py", "exec")


class Names(dict[str, Any]):
    """The tests' global names, over the program's."""

    def __init__(self, link: Link) -> None:
        super().__init__({"__name__": "__main__", **_Functions(link).by_name()})
        self._link = link

    def __missing__(self, name: str) -> Any:
        if name in vars(builtins) or name.startswith("__"):
            raise KeyError(name)
        try:
            return self._link.ask("name", name, name=name)
        except NameError:
            raise KeyError(name) from None

    def uncalled(self) -> list[str]:
        """The functions that a runner of tests would call."""
        return [name for name, value in self.items() if name.startswith("test") and callable(value)]


class Solution(ModuleType):
    """For tests that import the program."""

    def __init__(self, names: Names, link: Link) -> None:
        super().__init__("solution")
        self._names = names
        self._link = link

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._names.__missing__(name)
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        if "_link" in vars(self):  # it is made
            self._link.refuse(f"{name} of the program's module can't be set from outside")
        super().__setattr__(name, value)


class Tests(ModuleType):
    """What the tests define, for who looks for it by the module, as `unittest.main()` does."""

    def __init__(self, names: Names) -> None:
        super().__init__("__main__")
        self._names = names

    def __dir__(self) -> list[str]:
        return list(self._names)

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(name)
        return self._names[name]


class _Asking(ast.NodeTransformer):
    """Where a part of an object is itself looked into, called as a statement, or compared by what it is."""

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
        match node.value:
            case ast.Call(func=ast.Name(id=name)) if name in vars(builtins):
                pass  # some look at the frame of their caller
            case ast.Call(func=called, args=arguments):
                node.value.func, node.value.args = _name("@done"), [called, *arguments]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type"), args=[_], keywords=[]):
                node.func = _name("@type")
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as how], comparators=[right]):
                if isinstance(left, ast.Constant) or isinstance(right, ast.Constant):
                    return node
                same = ast.Call(_name("@same"), [left, right], [])
                return same if isinstance(how, ast.Is) else ast.UnaryOp(ast.Not(), same)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Its pattern stays: it may hold nothing else."""
        node.guard = None if node.guard is None else self.visit(node.guard)
        node.body = [self.visit(each) for each in node.body]
        return node


def _name(name: str) -> ast.Name:
    """One that tests can't have, as it can't be written."""
    return ast.Name(name, ast.Load())


def _held(node: ast.expr) -> ast.expr:
    match node:
        case ast.Attribute(attr=name) if not name.startswith("__"):
            return ast.Call(_name("@held"), [ast.Constant("getattr"), node.value, ast.Constant(name)], [])
        case ast.Subscript(slice=key) if not isinstance(key, ast.Slice | ast.Tuple):
            return ast.Call(_name("@held"), [ast.Constant("getitem"), node.value, key], [])
    return node


class _Functions:
    """What the rewritten tests call, and functions of Python's that look at a type instead of asking the object."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def by_name(self) -> dict[str, Any]:
        rewritten = {"@held": self.held, "@done": self.done, "@same": self.same, "@type": self.kind}
        asking = {"isinstance": self.is_instance, "issubclass": self.is_subclass, "callable": self.is_callable}
        return {**rewritten, **asking, "hasattr": self.has}

    def held(self, how: str, value: Any, key: Any) -> Any:
        """A part of an object that stays where it is, so that it can be changed there."""
        if type(value) is not Remote:
            return getattr(value, key) if how == "getattr" else value[key]
        return attribute(value, key, keep=True) if how == "getattr" else item(value, key)

    def done(self, called: Any, *arguments: Any, **named: Any) -> Any:
        """A call for its effects alone: those on its arguments too."""
        if type(called) is not Remote:
            return called(*arguments, **named)
        return self._link.call(called, arguments, named, back=True)

    def same(self, left: Any, right: Any) -> bool:
        if type(left) is Remote and type(right) is Remote:
            return held_by(left).number == held_by(right).number
        if left is not right and type(left) in MUTABLE and type(right) is type(left):
            self._link.refuse(f"whether two {type(left).__name__}s are one: the program's come here as copies")
        return left is right

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
        """Without the tests' own classes: nothing of the program's derives from them."""
        return tuple(each for each in _each(kinds) if self._link.crosses(each))


def _each(kinds: Any) -> list[Any]:
    if type(kinds) is tuple:
        return [kind for each in kinds for kind in _each(each)]
    return _each(kinds.__args__) if type(kinds) is UnionType else [kinds]
