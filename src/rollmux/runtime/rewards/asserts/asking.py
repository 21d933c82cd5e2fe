"""In the judging process: the way to the program, and what the program's answers become there.

Invariant: an answer is a value that `values.read` makes, a `Remote`, or an error of a class made here by name. Anything
else, or no answer at all, ends the tests, and no `except` of theirs undoes that.
"""

import builtins
import json
import socket
import sys
import threading
import types
from contextlib import suppress
from functools import reduce
from math import inf
from typing import Any, NoReturn

from rollmux.runtime.rewards.asserts import arrays
from rollmux.runtime.rewards.asserts.remote import Held, Remote, held_by, like_a_class
from rollmux.runtime.rewards.asserts.values import MUTABLE, TYPES, Unreadable, read, text, written
from rollmux.runtime.sandbox import frames

MOST_BYTES = 1 << 24  # of an answer
MOST_SENT_BYTES = 1 << 28  # to the program: many times what the program can make the tests send
MOST_ASKED = 1 << 20  # questions of one suite: an iterator that never ends is as wrong as an endless loop
PASSED, FAILED, BROKEN_TESTS, UNASKABLE = 10, 1, 2, 3  # none is 0: anybody can end with that, by os._exit(0)
_ENDING = ("__next__", "send", "throw")  # methods that may say by StopIteration that there is no more
# Modules of Python's own library with errors, which are taken only if the tests have loaded the module themselves.
_LIBRARY = (
    *("json.decoder", "decimal", "dataclasses", "queue", "_queue", "re", "statistics", "struct", "binascii", "zlib"),
    *("_csv", "graphlib", "subprocess", "ipaddress", "configparser", "shutil", "zipfile", "sqlite3"),
    *("asyncio.queues", "concurrent.futures._base", "xml.etree.ElementTree"),
)


class Over(BaseException):
    """Ends the tests, with this status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Exited(SystemExit):
    """The program's SystemExit, which tests may expect. If it ends the tests they have failed."""


class Link:
    """Asks one question after the other. Once it is over, it is over for every question.

    `expects_stop`: the tests name StopIteration. Raised in other tests, it would end a `map` of theirs too early.
    """

    def __init__(self, connection: socket.socket, *, expects_stop: bool = False) -> None:
        self._expects_stop = expects_stop
        self.over: Over | None = None
        self._connection = connection
        self._turn = threading.Lock()  # tests may have threads
        self.asked = 0
        self._errors: dict[int, type[BaseException]] = {}

    def ask(self, verb: str, *arguments: Any, keep: bool = False, name: str = "") -> Any:
        """Asks a question. `keep`: a container comes as a reference, so that changes to it are made in the program."""
        return self._answer(verb, arguments, name, keep=keep)[0]

    def call(self, called: Remote, arguments: tuple[Any, ...], named: dict[str, Any], *, back: bool = False) -> Any:
        held = held_by(called)
        result, after = self._answer("call", (called, arguments, named), held.name, back=back)
        if type(result) is Remote:
            held_by(result).made = like_a_class(held.name)
        if after is not None:
            self._refill(arguments, named, after)
        return held.answered(result, *arguments, *named.values())

    def crosses(self, value: Any) -> bool:
        try:
            written(value, self._refer)
        except (_Stays, RecursionError):
            return False
        return True

    def refuse(self, why: str) -> NoReturn:
        self._end(UNASKABLE, why)

    def _end(self, status: int, why: str) -> NoReturn:
        self.over = self.over or Over(status, why)
        raise self.over

    def _answer(
        self, verb: str, arguments: tuple[Any, ...], name: str, *, keep: bool = False, back: bool = False
    ) -> tuple[Any, Any]:
        if self.over is not None:
            raise self.over
        self.asked += 1
        if self.asked > MOST_ASKED:
            self._end(FAILED, f"no end after {MOST_ASKED} answers of the program")
        sent = self._sent(arguments)
        try:
            with self._turn:
                self._connection.sendall(frames.packed({"verb": verb, "keep": keep, "back": back}, [sent]))
                head, blobs = frames.receive(self._connection, MOST_BYTES)
            said, *after = [self._read(blob, name) for blob in blobs]
            if after and not back:
                raise Unreadable("more than was asked")
            error = self._error(*said) if head["raised"] else None
        except Exception as broken:  # noqa: BLE001 - whatever an answer breaks, it is no answer
            self._end(FAILED, f"no answer of the program: {type(broken).__name__}: {broken}")
        if isinstance(error, StopIteration) and not (self._expects_stop or verb == "next" or name in _ENDING):
            raise RuntimeError(f"{name or verb} raised StopIteration") from error
        if error is not None:
            raise error
        if verb == "name" and type(said) is Remote:
            self.asked -= 1  # only looked up: nothing was asked of it yet
        return said, after[0] if after else None

    def _sent(self, arguments: tuple[Any, ...]) -> bytes:
        try:
            sent = text(written(list(arguments), self._refer))
        except _Stays as error:
            self.refuse(f"{error} can't be sent to the program")
        except RecursionError:
            self.refuse("a value without end, or too deep, can't be sent to the program")
        if len(sent) > MOST_SENT_BYTES:
            self.refuse(f"{len(sent)} bytes for the program: must be at most {MOST_SENT_BYTES}")
        return sent

    def _refer(self, value: Any) -> dict[str, Any]:
        if type(value) is Remote:
            return {"kept": [held_by(value).number]}
        if isinstance(value, BaseException) and "_of" in vars(value):
            return {"kept": [held_by(vars(value)["_of"]).number]}
        for number, error in self._errors.items():
            if value is error:
                return {"kept": [number]}
        return arrays.written(value, inf) or {"named": list(_place(value))}

    def _read(self, blob: bytes, name: str) -> Any:
        return read(json.loads(blob), lambda sort, parts: self._opened(sort, parts, name))

    def _opened(self, sort: str, parts: list[Any], name: str) -> Any:
        match sort, parts:
            case "kept", [int(number)]:
                return Remote(Held(self, number, name))
            case "numpy", _:
                return arrays.compared(arrays.read(parts))
            case "type", [str(kind)]:
                return TYPES[kind]
            case "error", [int(), str(), str(), list()]:
                return self._error_class(*parts)
        raise Unreadable(sort[:100])

    def _error_class(self, number: int, module: str, name: str, bases: list[list[Any]]) -> type[BaseException]:
        """The class of an error: Python's own or, for the program's, a class like it that the tests can catch."""
        if (known := _known_error(module, name)) is not None:
            return known
        if number not in self._errors:
            above = tuple(dict.fromkeys(self._error_class(*each) for each in bases)) or (Exception,)
            told = {"__module__": "solution", "__getattr__": _attribute_of_error, "__str__": _text_of_error}
            self._errors[number] = type(name.rpartition(".")[2], above, told)
        return self._errors[number]

    def _refill(self, arguments: tuple[Any, ...], named: dict[str, Any], after: Any) -> None:
        """Makes what the program changed in its arguments in the tests' own containers, too."""
        try:
            _, values, by_name = after
            pairs = [*zip(arguments, values, strict=True), *((named[key], by_name[key]) for key in named)]
        except (TypeError, ValueError, KeyError) as error:
            self._end(FAILED, f"no answer of the program: {type(error).__name__}: {error}")
        for old, new in pairs:
            if type(old) in MUTABLE and type(new) is type(old):
                old.clear()
                (old.update if hasattr(old, "update") else old.extend)(new)
            elif arrays.is_array(old) and arrays.is_array(new) and old.shape == new.shape and old.flags.writeable:
                old[...] = new  # also if it comes back unchanged: NaN differs from itself

    def _error(self, kind: Any, arguments: Any, of: Any) -> BaseException:
        if type(kind) is not type or not issubclass(kind, Exception | Exited) or type(arguments) is not tuple:
            raise Unreadable("an error that is none")
        error = kind.__new__(kind, *arguments)
        with suppress(TypeError):  # some errors want more than their arguments
            error.__init__(*arguments)  # type: ignore[misc]
        if type(of) is Remote:
            vars(error)["_of"] = of
        return error


class _Stays(Exception):
    """A value of the tests that means nothing in the program's process."""


def _place(value: Any) -> tuple[str, str]:
    """The module and name of an importable function or class, which is the same in both processes."""
    name = str(getattr(value, "__qualname__", ""))
    module = str(getattr(getattr(value, "__objclass__", value), "__module__", ""))
    with suppress(KeyError, AttributeError):
        if name and reduce(getattr, name.split("."), sys.modules[module]) is value:
            return module, name
    for other, kind in vars(types).items():
        if kind is value:
            return "types", other
    raise _Stays(f"a {type(value).__name__}" + (f" ({name})" if name else ""))


def _known_error(module: str, name: str) -> type[BaseException] | None:
    if (module, name) == ("builtins", "SystemExit"):
        return Exited
    place = builtins if module == "builtins" else sys.modules.get(module) if module in _LIBRARY else None
    found = None if place is None else vars(place).get(name)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _attribute_of_error(error: Exception, name: str) -> Any:
    if "_of" not in vars(error) or name.startswith("__"):
        raise AttributeError(name)
    return getattr(vars(error)["_of"], name)


def _text_of_error(error: Exception) -> str:
    return str(vars(error)["_of"]) if "_of" in vars(error) else Exception.__str__(error)
