"""Programs that answer tests from a thread: for what needs no sandbox."""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pytest

from rollmux.runtime.rewards.asserts.answering import Answers
from rollmux.runtime.rewards.asserts.asking import FAILED, PASSED
from rollmux.runtime.rewards.asserts.calls import answer_all, verdict


@contextmanager
def serving(source: str, answers: type[Answers] = Answers) -> Iterator[socket.socket]:
    """The end that asks; the program runs in a thread, as it is no hostile one."""
    module = ModuleType("solution")
    theirs, ours = socket.socketpair()

    def serve() -> None:
        with theirs, suppress(SystemExit):
            exec(compile(source, "program.py", "exec"), module.__dict__)
            answer_all(theirs, answers(module.__dict__))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours:
            yield ours
    finally:
        thread.join(10)


def ended(source: str, tests: str, answers: type[Answers] = Answers) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch, serving(source, answers) as connection:
        for name in ("solution", "__main__", "doctest"):  # which the judging process has to itself
            patch.setitem(sys.modules, name, ModuleType(name))
        return verdict(tests, connection)


def in_python(source: str, tests: str) -> int:
    """What comes of both in one process."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(f"{source}\n{tests}", "both.py", "exec"), namespace)
    except Exception:  # noqa: BLE001 - however a test fails, it has failed
        return FAILED
    return PASSED


STACK = """
class Empty(LookupError):
    code = 7
    def __str__(self): return "nothing there"
class Stack:
    LIMIT = 10
    made = 0
    def __init__(self, items=()):
        self.items, self.name = list(items), "s"
        Stack.made += 1
    @property
    def size(self): return len(self.items)
    @property
    def valid(self): return self.size > 2
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items: raise Empty("pop")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
    def __setitem__(self, at, item): self.items[at] = item
    def __delitem__(self, at): del self.items[at]
    def __contains__(self, item): return item in self.items
    def __iter__(self): return iter(self.items)
    def __eq__(self, other): return isinstance(other, Stack) and other.items == self.items
    def __lt__(self, other): return self.size < other.size
    def __hash__(self): return hash(tuple(self.items))
    def __repr__(self): return f"Stack({self.items})"
    def __format__(self, spec): return f"{self.size:{spec}}"
"""
EXITS = """
import sys
class Quit(SystemExit): pass
def leave(*code): sys.exit(*code)
def quit_it(): raise Quit(3)
def stay(): return 1
"""
NODES = """
class Node:
    def __init__(self, value, next=None): self.value, self.next, self.children = value, next, []
def linked(values):
    first = None
    for value in reversed(values): first = Node(value, first)
    return first
def total(node): return 0 if node is None else node.value + total(node.next) + sum(map(total, node.children))
def of(nodes): return sum(node.value for node in nodes)
def pair(): return [Node(1), {"key": Node(2)}]
ONE = Node(0)
def one(): return ONE
"""
VECTOR = """
class Vector:
    def __init__(self, *parts): self.parts = parts
    def __add__(self, other): return Vector(*map(sum, zip(self.parts, other.parts)))
    def __iadd__(self, other):
        self.parts = (self + other).parts
        return self
    def __mul__(self, factor): return Vector(*(each * factor for each in self.parts))
    __rmul__ = __mul__
    def __matmul__(self, other): return sum(a * b for a, b in zip(self.parts, other.parts))
    def __neg__(self): return self * -1
    def __abs__(self): return sum(each ** 2 for each in self.parts) ** 0.5
    def __eq__(self, other): return self.parts == other.parts
    def __bool__(self): return any(self.parts)
"""
VIEWS = """
from collections import OrderedDict
table = {"b": 2, "a": 1}
def names(): return table.keys()
def pairs(): return table.items()
def lists(): return {"a": [1]}.items()
def ordered(): return OrderedDict(a=1).keys()
"""
RAISING = """
import csv, graphlib, queue, subprocess
def taken(): return queue.Queue().get_nowait()
def parsed(): return list(csv.reader(['"x'], strict=True))
def sorted_out(): return list(graphlib.TopologicalSorter({1: [2], 2: [1]}).static_order())
def run(): raise subprocess.CalledProcessError(1, ["false"])
"""
DERIVED = """
class Caseless(str):
    def __eq__(self, other): return self.lower() == other.lower()
    __hash__ = str.__hash__
class Mod7(int):
    def __add__(self, other): return Mod7(int.__add__(self, other) % 7)
    def __rmul__(self, other): return Mod7(int.__mul__(self, other) % 7)
class Odd(list):
    def __contains__(self, item): return item % 2 == 1
"""
MIXED = """
import dataclasses, enum, json
from collections import Counter, OrderedDict, deque, namedtuple
from fractions import Fraction
LIMIT, TABLE, total = 3, {"a": [1, (2, 3)]}, 0
class Colour(enum.Enum): RED = 1
class Level(enum.IntEnum): LOW = 1
Point = namedtuple("Point", "x y")
@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    at: int = 0
class Ordered(list):
    def first(self): return self[0]
class Animal:
    def says(self): return "?"
class Dog(Animal):
    @classmethod
    def made(cls): return cls()
    @staticmethod
    def legs(): return 4
def count(text): return Counter(text)
def ordered(*items): return OrderedDict(items)
def queue(n): return deque(range(n), 3)
def half(): return Fraction(1, 2)
def frozen(): return frozenset({1})
def huge(): return 7 ** 9000
def add(n):
    global total
    total += n
def sort(items, *, down=False): items.sort(reverse=down)
def without(items, item):
    items[:] = [each for each in items if each != item] + [0] * items.count(item)
    return len(items) - items.count(0)
def clear(table): table.clear()
def upto(n): yield from range(n)
def forever():
    while True: yield 1
def adder(n): return lambda m: n + m
def applied(function, *arguments): return function(*arguments)
def parsed(text): return json.loads(text)
def point(): return Point(1, 2)
def documented(): "what it does"
class Text(str): pass
def text(): return Text("ab")
"""
