"""Asserts about code that can't be trusted, in two processes: the tests call, the program answers, over one socket.

Invariant: in the process that judges nothing of the program runs, and no object of the program's is: values cross as
literals of plain types. So nothing that a program patches, prints or returns decides whether an assert holds.
"""

import ast
import builtins
import socket
import sys
from functools import reduce
from types import ModuleType
from typing import Any, NoReturn

from rollmux.runtime.sandbox import frames

CHANNEL = 3
MOST_BYTES = 1 << 24
PASSED, FAILED, BROKEN_TESTS = 0, 1, 2
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_SEVERAL = (list, tuple, set, frozenset)


def serve(source: str) -> None:
    """In the program's process: runs it, then answers calls until the tests are done."""
    module = ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    connection = socket.socket(fileno=CHANNEL)
    kept: list[Any] = []
    while True:
        try:
            head, blobs = frames.receive(connection, MOST_BYTES)
        except frames.BrokenFrame:
            return
        connection.sendall(_answered(module.__dict__, kept, head, blobs))


def check(tests: str) -> NoReturn:
    """In the judging process: ends with a status that says how the tests went."""
    try:
        code = compile(tests, "tests.py", "exec")
        names = called_names(tests)
    except SyntaxError as error:
        print(error, file=sys.stderr)
        sys.exit(BROKEN_TESTS)
    connection = socket.socket(fileno=CHANNEL)
    namespace: dict[str, Any] = {name: Remote(connection, None, (name,)) for name in names}
    try:
        exec(code, namespace)
    except Exception as error:  # noqa: BLE001 - however a test fails, it has failed
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(FAILED)
    sys.exit(PASSED)


def called_names(tests: str) -> set[str]:
    """What the tests use and do not define: it must come from the program. Never a builtin, so none is replaced."""
    used, defined = set[str](), set(dir(builtins))
    for node in ast.walk(ast.parse(tests)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                defined.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.alias(name=name, asname=alias):
                defined.add((alias or name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                defined.add(name)
    return used - defined


class Remote:
    """Something of the program's, as the tests see it: a name or an object there, and what hangs on it."""

    def __init__(self, connection: socket.socket, target: int | None, path: tuple[str, ...]) -> None:
        self._connection, self._target, self._path = connection, target, path

    def __getattr__(self, name: str) -> "Remote":
        if name.startswith("__"):
            raise AttributeError(name)
        return Remote(self._connection, self._target, (*self._path, name))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        sent = repr((arguments, named)).encode()
        self._connection.sendall(frames.packed({"target": self._target, "path": self._path}, [sent]))
        head, blobs = frames.receive(self._connection, MOST_BYTES)
        if "raised" in head:
            raise _known_error(str(head["raised"]))(blobs[0].decode(errors="replace"))
        if "kept" in head:
            return Remote(self._connection, int(head["kept"]), ())
        return literal(blobs[0].decode())


def _answered(namespace: dict[str, Any], kept: list[Any], head: dict[str, Any], blobs: list[bytes]) -> bytes:
    try:
        arguments, named = literal(blobs[0].decode())
        result = _found(namespace, kept, head["target"], head["path"])(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - what the program raises is its answer
        return frames.packed({"raised": type(error).__name__}, [str(error).encode(errors="replace")[:4096]])
    if is_plain(result):
        return frames.packed({}, [repr(result).encode()])
    kept.append(result)
    return frames.packed({"kept": len(kept) - 1})


def _found(namespace: dict[str, Any], kept: list[Any], target: int | None, path: list[str]) -> Any:
    start = namespace[path[0]] if target is None else kept[target]
    return reduce(getattr, path[1:] if target is None else path, start)


def _known_error(name: str) -> type[Exception]:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def is_plain(value: Any) -> bool:
    """Whether a literal says all of it."""
    if type(value) in _SEVERAL:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    return type(value) in _PLAIN


class _Constants(ast.NodeTransformer):
    """`inf` and `nan`, which `repr` writes and `literal_eval` does not read; `frozenset`, likewise."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def literal(text: str) -> Any:
    """The value that `repr` wrote, of plain types."""
    return ast.literal_eval(_Constants().visit(ast.parse(text, mode="eval")))
