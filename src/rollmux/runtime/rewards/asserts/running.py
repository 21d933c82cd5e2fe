"""Tests that run a text. An answer that they ran would run in the process that judges, and could say that they passed.

Invariant: only texts that stand in the tests themselves, and arithmetic, are run.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

from rollmux.runtime.rewards.asserts.asking import Link

# Libraries that run what they are given.
RUNNING = ("pickle", "_pickle", "marshal", "dill", "cloudpickle", "joblib", "sympy")
_TEXTS = (str, bytes, bytearray, memoryview, ast.AST)
_ARITHMETIC = (
    *(ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.boolop, ast.cmpop),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
)


class Running:
    """Replaces, for the tests, Python's own functions that run a text."""

    def __init__(self, link: Link, tests: CodeType) -> None:
        self._link, self._texts = link, set(_texts(tests))

    def by_name(self) -> dict[str, Any]:
        return {"eval": self._running(eval), "exec": self._running(exec), "compile": self.compile}

    def owns(self, text: Any) -> bool:
        """Whether a text stands in the tests."""
        return isinstance(text, str | bytes) and text in self._texts

    def compile(self, text: Any, name: Any, mode: Any, *more: Any, **named: Any) -> Any:
        self._require("eval" if mode == "eval" else "compile", text)
        return self._known(text, compile(text, name, mode, *more, **named))

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def running(text: Any, names: Any = None, own: Any = None, /) -> Any:
            caller = sys._getframe(1)
            if names is None:
                names, own = caller.f_globals, caller.f_locals if own is None else own
            names.setdefault("__builtins__", caller.f_builtins)
            self._require(run.__name__, text)
            if isinstance(text, str | bytes):
                text = self._known(text, compile(text.strip() if run is eval else text, "<string>", run.__name__))
            return run(text, names, own)

        return running

    def _known(self, text: Any, made: Any) -> Any:
        """Notes that texts within a text of the tests stand in the tests, too; those within an answer don't."""
        if isinstance(made, CodeType) and self.owns(text):
            self._texts.update(_texts(made))
        return made

    def _require(self, how: str, text: Any) -> None:
        if not isinstance(text, _TEXTS) or self.owns(text):
            return
        if how != "eval" or not isinstance(text, str):
            self._link.refuse(
                f"{how} of a text that does not stand in the tests would run it in the process that judges"
            )
        parts = list(ast.walk(ast.parse(text.strip(), mode="eval")))
        if all(isinstance(each, _ARITHMETIC) for each in parts):
            return
        # Python's own names are left out: the tests have them too, and they tell nothing about the tests.
        names = {each.id for each in parts if isinstance(each, ast.Name)} - vars(builtins).keys()
        caller = sys._getframe(2)
        if any(name in caller.f_globals or name in caller.f_locals or self._defined(name) for name in names):
            self._link.refuse(f"eval of {text[:50]!r}, which does not stand in the tests: write the call itself")
        raise SyntaxError(f"eval of {text[:50]!r}: no arithmetic")

    def _defined(self, name: str) -> bool:
        with suppress(NameError):
            return name not in vars(builtins) and self._link.ask("name", name, name=name) is not None
        return False


def _texts(code: CodeType) -> Iterator[str | bytes]:
    for each in code.co_consts:
        for part in each if isinstance(each, tuple | frozenset) else (each,):
            if isinstance(part, str | bytes):
                yield part
        if isinstance(each, CodeType):
            yield from _texts(each)
