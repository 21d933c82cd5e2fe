"""What tests see of a program in another process: what they would see in Python, and never more than it is worth."""

import json
import math
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollmux.runtime.rewards import asking
from rollmux.runtime.rewards.answering import Answers
from rollmux.runtime.rewards.asking import BROKEN_TESTS, FAILED, PASSED, UNASKABLE, Link, Over
from rollmux.runtime.rewards.calls import answer_all, verdict
from rollmux.runtime.rewards.reading import Names
from rollmux.runtime.sandbox import frames
from tests.runtime.rewards.test_values import JSON, PLAIN_VALUES


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "solution", ModuleType("solution"))


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
    with serving(source, answers) as connection:
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
def clear(table): table.clear()
def upto(n): yield from range(n)
def forever():
    while True: yield 1
def adder(n): return lambda m: n + m
def applied(function, *arguments): return function(*arguments)
def parsed(text): return json.loads(text)
def point(): return Point(1, 2)
def documented(): "what it does"
"""
AGREED = [
    (
        STACK,
        "s = Stack(); s.push(1); assert len(s) == 1; assert s.items == [1]; assert s[0] == 1; assert list(s) == [1]",
    ),
    (STACK, "s = Stack(); s.push(1); assert 1 in s; assert 2 not in s; assert not Stack(); assert s"),
    (STACK, "assert Stack().size == 0"),
    (STACK, "assert Stack().size == 1"),
    (STACK, "assert Stack().valid"),
    (STACK, "assert not Stack([1, 2, 3]).valid"),
    (STACK, "assert Stack.LIMIT == 10 and Stack().LIMIT == 10"),
    (STACK, "assert Stack.LIMIT == 11"),
    (STACK, "Stack(); Stack(); assert Stack.made == 2"),
    (STACK, "assert Stack().push(1).push(2).items == [1, 2]"),
    (
        STACK,
        "a, b = Stack([1]), Stack(); assert a == Stack([1]) and a != b and b < a and a > b",
    ),
    (STACK, "assert Stack([1]) == Stack([2])"),
    (STACK, "assert {Stack([1]), Stack([1])} == {Stack([1])} and hash(Stack()) == hash(Stack())"),
    (STACK, "assert str(Stack([1])) == repr(Stack([1])) == 'Stack([1])' and f'{Stack([1]):>3}' == '  1'"),
    (STACK, "s = Stack([3, 1]); assert sorted(s) == [1, 3] and max(s) == 3 and sum(s) == 4 and [*s, 2] == [3, 1, 2]"),
    (STACK, "s = Stack([3, 1]); s[0] = 5; del s[1]; s.name = 'other'; assert (s.items, s.name) == ([5], 'other')"),
    (STACK, "s = Stack(); s.items.append(4); s.items[0] += 1; assert s.size == 1 and s.items == [5] and s[-1] == 5"),
    (STACK, "s = Stack(); s.items += [1]; assert s.size == 1"),
    (STACK, "s = Stack([1, 2, 3]); assert s[1:] == [2, 3] and s[0:1] == [1]"),
    (STACK, "Stack()[0]"),
    (STACK, "Stack().missing"),
    (STACK, "assert not hasattr(Stack(), 'missing') and hasattr(Stack(), 'push') and getattr(Stack(), 'no', 5) == 5"),
    (STACK, "before = Stack([1]); size = before.size; before.push(2); assert size == 1"),
    (STACK, "s = Stack(); assert isinstance(s, Stack) and type(s) is Stack and type(s).__name__ == 'Stack'"),
    (STACK, "assert isinstance(Stack(), (list, str))"),
    (STACK, "import copy\na = Stack([1]); b = copy.deepcopy(a); b.push(2); assert a.size == 1 and b.size == 2"),
    (STACK, "try: Stack().pop()\nexcept Empty as e: assert (str(e), e.code) == ('nothing there', 7)\nelse: assert 0"),
    (STACK, "try: Stack().pop()\nexcept KeyError: pass"),
    (STACK, "try: Stack().pop()\nexcept LookupError as error: assert isinstance(error, Empty)"),
    (STACK, "assert issubclass(Empty, LookupError) and not issubclass(Stack, Empty)"),
    (STACK, "s = Stack([1])\nassert s != None and not s == None and s is not None"),
    (STACK, "s = Stack([1]); s.size; assert s != [1] and not s == [1]"),
    (NODES, "assert total(linked([1, 2, 3])) == 6 and linked([1, 2]).next.value == 2 and linked([]) is None"),
    (NODES, "a, b = Node(1), Node(2); a.next = b; a.children.append(Node(5)); assert total(a) == 8 and a.next is b"),
    (NODES, "a = Node(1); a.children.append(Node(2)); a.children[0].children.append(Node(3)); assert total(a) == 5"),
    (NODES, "assert of([Node(1), Node(2)]) == 3 and [n.value for n in (Node(1), Node(2))] == [1, 2]"),
    (NODES, "first, table = pair(); assert first.value == 1 and table['key'].value == 2"),
    (NODES, "assert one() is one() and one() is ONE and one() is not Node(0)"),
    (NODES, "assert Node(1) is Node(1)"),
    (NODES, "assert Node(1) == Node(1)"),
    (NODES, "a = Node(1); del a.next; assert not hasattr(a, 'next')"),
    (NODES, "assert Node(1) < Node(2)"),
    (VECTOR, "v = Vector(1, 2); assert v * 2 == Vector(2, 4) and 2 * v == v * 2 and (v * 2) * 2 == Vector(4, 8)"),
    (
        VECTOR,
        "v = Vector(1, 2); v += Vector(1, 1); assert v.parts == (2, 3) and v + v == Vector(4, 6) and -v == v * -1",
    ),
    (VECTOR, "assert abs(Vector(3, 4)) == 5 and Vector(1, 2) @ Vector(3, 4) == 11 and not Vector(0) and Vector(1)"),
    (VECTOR, "assert (Vector(1, 2) * 3).parts == (3, 6)"),
    (VECTOR, "assert Vector(1, 2) * 3 == Vector(3, 7)"),
    (MIXED, "assert LIMIT == 3 and TABLE == {'a': [1, (2, 3)]}"),
    (MIXED, "assert LIMIT"),
    (MIXED, "assert LIMIT == 4"),
    (MIXED, "assert MISSING"),
    (MIXED, "try: MISSING\nexcept NameError: pass\nelse: assert False"),
    (MIXED, "add(2); assert total == 2; add(3); assert total == 5"),
    (MIXED, "assert total"),
    (MIXED, "LIMIT = LIMIT + 1\nassert LIMIT == 4"),
    (MIXED, "def of(total): return total\nassert of(3) == 3"),
    (MIXED, "assert Colour.RED == Colour.RED and Colour(1) is Colour.RED and Colour.RED.value == 1 and Level.LOW == 1"),
    (MIXED, "assert Colour.RED.name == 'BLUE'"),
    (MIXED, "assert [each.name for each in Colour] == ['RED'] and Colour['RED'] is Colour.RED"),
    (
        MIXED,
        "p = point(); assert p == (1, 2) and p.x == 1 and p[1] == 2 and tuple(p) == (1, 2) and isinstance(p, tuple)",
    ),
    (MIXED, "assert point() == (1, 3)"),
    (MIXED, "x, y = point(); assert (x, y) == (1, 2)"),
    (MIXED, "assert Place('a') == Place('a', 0) and Place('a') != Place('b') and Place('a').name == 'a'"),
    (MIXED, "try: Place('a').name = 'b'\nexcept AttributeError: pass\nelse: assert False"),
    (
        MIXED,
        "from dataclasses import FrozenInstanceError as E\ntry: Place('a').name = 'b'\nexcept E: pass\nelse: assert 0",
    ),
    (
        MIXED,
        "o = Ordered([2, 1]); assert o == [2, 1] and o.first() == 2 and o + [3] == [2, 1, 3] and isinstance(o, list)",
    ),
    (MIXED, "o = Ordered([2]); o.append(1); o += [5]; o.sort(); assert o == [1, 2, 5] and o.first() == 1"),
    (MIXED, "assert Ordered([1]) == [2]"),
    (MIXED, "assert issubclass(Dog, Animal) and isinstance(Dog(), Animal) and isinstance(Dog.made(), Dog)"),
    (MIXED, "assert Dog.legs() == 4 and Dog().says() == '?' and Dog.__name__ == 'Dog' and add.__name__ == 'add'"),
    (MIXED, "assert documented.__doc__ == 'what it does' and add.__doc__ is None"),
    (MIXED, "assert add.__doc__"),
    (MIXED, "assert count('aab') == {'a': 2, 'b': 1} and count('aab').most_common(1) == [('a', 2)]"),
    (
        MIXED,
        "from collections import Counter, deque\nassert count('ab') == Counter('ab') and queue(5) == deque([2, 3, 4])",
    ),
    (
        MIXED,
        "assert ordered(('b', 1), ('a', 2)) == {'a': 2, 'b': 1} and list(ordered(('b', 1), ('a', 2))) == ['b', 'a']",
    ),
    (
        MIXED,
        "from fractions import Fraction\nassert half() == Fraction(1, 2) and half() + 1 == 1.5 and frozen() == {1}",
    ),
    (MIXED, "assert huge() == 7 ** 9000"),
    (MIXED, "a = [3, 1]; sort(a); assert a == [1, 3]; sort(a, down=True); assert a == [3, 1]"),
    (MIXED, "a = [3, 1]; sort(items=a); assert a == [3, 1]"),
    (MIXED, "t = {1: 2}; clear(t); assert t == {}"),
    (MIXED, "g = upto(3); assert next(g) == 0 and list(g) == [1, 2] and list(g) == [] and sum(upto(4)) == 6"),
    (MIXED, "assert list(upto(3)) == [0, 1]"),
    (MIXED, "next(upto(0))"),
    (MIXED, "import itertools\nassert list(itertools.islice(forever(), 3)) == [1, 1, 1] and 1 in forever()"),
    (MIXED, "import types\nassert isinstance(upto(1), types.GeneratorType)"),
    (
        MIXED,
        "from collections.abc import Iterator, Sized\nu = upto(1)\nassert isinstance(u, Iterator) and not isinstance(u, Sized)",
    ),
    (MIXED, "assert adder(1)(2) == 3 and callable(adder) and callable(adder(1)) and not callable(Dog())"),
    (MIXED, "assert callable(Dog())"),
    (
        MIXED,
        "import math\nassert applied(math.sqrt, 4) == 2 and applied(str.upper, 'a') == 'A' and applied(int, '3') == 3",
    ),
    (MIXED, "assert applied(adder(1), 1) == 2 and list(map(adder(1), [1, 2])) == [2, 3]"),
    (MIXED, "try: parsed('{')\nexcept ValueError: pass\nelse: assert False"),
    (
        MIXED,
        "import json\ntry: parsed('{')\nexcept json.JSONDecodeError as error: assert 'property name' in str(error)",
    ),
    (
        MIXED,
        "try: applied(dict.__getitem__, {}, 'a')\nexcept KeyError as e: assert str(e) == repr('a')",
    ),
    (MIXED, "if __name__ == '__main__':\n    assert LIMIT == 4"),
    (MIXED, "assert type(LIMIT) is int and type(LIMIT) == int and isinstance(LIMIT, int | str)"),
    (MIXED, "match Colour.RED.value:\n    case 1 if LIMIT == 3: pass\n    case _: assert False"),
]


@pytest.mark.parametrize(("source", "tests"), AGREED, ids=[tests for _, tests in AGREED])
def test_what_holds_in_python_holds_across(source: str, tests: str) -> None:
    status, why = ended(source, tests)
    assert status == in_python(source, tests), why


@given(PLAIN_VALUES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_values_of_names_and_attributes_are_what_they_are(value: Any) -> None:
    class Given(Answers):
        def __init__(self, names: dict[str, Any]) -> None:
            super().__init__({**names, "VALUE": value})

    source = "class Box:\n    def __init__(self, value): self.value = value\ndef same(value): return value"
    with serving(source, Given) as connection:
        names = Names(Link(connection))
        for got in (names["VALUE"], names["Box"](value).value, names["same"](value)):
            assert got == value
            assert type(got) is type(value)


CONTAINER = """
class Sequence:
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
"""


@given(st.lists(st.integers(-5, 5)), st.integers(-6, 6), st.integers(-6, 6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_container_of_the_programs_looks_like_its_items(items: list[int], at: int, item: int) -> None:
    with serving(CONTAINER) as connection:
        made = Names(Link(connection))["Sequence"](items)
        assert (len(made), bool(made), list(made), item in made) == (len(items), bool(items), items, item in items)
        assert made[at:item] == items[at:item]
        assert list(reversed(made)) == items[::-1]
        if -len(items) <= at < len(items):
            assert made[at] == items[at]
        else:
            with pytest.raises(IndexError):
                made[at]


SLY = """
import operator
class Sly({base}):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return self
    def __call__(self, *_, **__): return {answer}
    def __hash__(self): return 7
for name in dir(operator):
    if f"__{{name}}__" in dir(operator) and name not in ("call", "index"):
        setattr(Sly, f"__{{name}}__", lambda self, *_: {answer})
for name in "iter next radd rsub rmul rtruediv rmod rpow round float int bool len divmod rand rxor ror".split():
    setattr(Sly, f"__{{name}}__", lambda self, *_: {answer})
def f(*_): return Sly({value})
"""
WANTED = [
    *("f(3) == 7", "7 == f(3)", "f(3) in (7, 8)", "[f(3)] == [7]", "{'a': f(3)} == {'a': 7}", "f(3) in {7, 8}"),
    *("abs(f(3) - 7) < 1e-6", "-1 < f(3) - 7 < 1", "f(3) > 5", "5 < f(3)", "round(f(3) - 7, 3) == 0", "f(3) - 7 == 0"),
    *("not f(3) - 7", "f(3) + 1 == 8", "1 + f(3) == 8", "abs(f(3) - 7) <= 1e-9 * abs(f(3))", "math.isclose(f(3), 7.5)"),
    *("max(abs(a - b) for a, b in zip([f(3)], [7])) < 1e-6", "math.fabs(f(3) - 7.5) < 1e-6", "(f(3) - 7).real == 0"),
    *("len(f(3) - {7}) == 0", "f(3) ^ {7} == set()", "'' == f(3) - {7}", "(f(3) - 7).conjugate() == 0"),
    *("sum((a - b) ** 2 for a, b in zip([f(3)], [7])) < 1e-6", "f(3) % 7 == 0", "abs((f(3) - 7) / f(3)) < 1e-3"),
    *("f(3) == 'seven'", "f(3) == [7]", "isinstance(f(3), int) and f(3) == 7", "sorted([f(3), 9]) == [7, 9]"),
    "list(f(3) - {7}) == []",
]


@pytest.mark.parametrize(("base", "value"), [("object", ""), ("int", "3"), ("float", "3"), ("str", ""), ("list", "")])
@pytest.mark.parametrize("answer", ["True", "0", "0.0", "self", "Sly()", "NotImplemented"])
def test_an_object_in_place_of_a_value_gains_nothing(
    base: str, value: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MOST_ASKED", 3000)
    tests = "\n".join(
        [
            "import math",
            "held = []",
            *(f"try: held.append(({each}) and {each!r})\nexcept Exception: pass" for each in WANTED),
        ]
    )
    tests += "\nassert not [each for each in held if each], held"
    status, why = ended(SLY.format(base=base, value=value, answer=answer), tests)
    assert status == PASSED or why.startswith("no end"), why


def test_an_object_that_learns_a_value_can_not_become_it() -> None:
    class Learning(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            if head["verb"] == "sub":
                self.told = True
            if head["verb"] == "form":
                return frames.packed(
                    {"raised": False},
                    [b'{"tuple": [true, 0.0]}' if hasattr(self, "told") else b'{"tuple": [false, null]}'],
                )
            return super().answer(head, blobs)

    source = "class Sly:\n    def __sub__(self, _): return self\n    __abs__ = lambda self: self\ndef f(): return Sly()"
    status, why = ended(source, "assert abs(f() - 0.5) < 1e-6", Learning)
    assert status == FAILED, why


@given(st.lists(JSON, min_size=1, max_size=3), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nonsense_fails_and_is_never_an_error_of_the_tests(said: list[Any], raised: bool) -> None:
    class Nonsense(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            if head["verb"] == "bool":
                return super().answer(head, blobs)
            return frames.packed({"raised": raised}, [json.dumps(each).encode() for each in said])

    tests = "g = f\nassert f(1) == 'what nobody says' and g.size == 'what nobody says'"
    assert ended("", tests, Nonsense)[0] == FAILED


@pytest.mark.parametrize("blob", [b"", b"\xff", b"[" * 100_000, b'{"kept": ["x"]}', b'{"type": ["exec"]}', b"9" * 5000])
def test_what_can_not_be_read_ends_the_tests_whatever_they_catch(blob: bytes) -> None:
    class Broken(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            return super().answer(head, blobs) if head["verb"] == "bool" else frames.packed({"raised": False}, [blob])

    status, why = ended("", "try: f()\nexcept BaseException: pass", Broken)
    assert status == FAILED
    assert why.startswith("no answer of the program")


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("applied(lambda: 1)", "a function (<lambda>) can't be sent to the program"),
        ("try: applied(lambda: 1)\nexcept BaseException: pass", "a function (<lambda>) can't be sent to the program"),
        ("class Mine: pass\napplied(Mine())", "a Mine can't be sent to the program"),
        ("a = []; a.append(a); sort(a)", "a value without end, or too deep, can't be sent to the program"),
        ("class Mine(Dog): pass", "a class that derives from Dog would have to be in both processes"),
        ("with Dog() as dog: pass", "__enter__ takes and gives what does not cross"),
        ("a = [1]; assert applied(list, a) is not a", "whether two lists are one"),
        ("assert Place('a') == ('a', 0)", "only its own word says what Place has to do with a value"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_what_can_not_be_asked_is_no_score(tests: str, why: str) -> None:
    status, told = ended(MIXED, tests)
    assert status in (UNASKABLE, BROKEN_TESTS)
    assert why in told


def test_an_operator_that_makes_a_value_of_one_is_asked_once_the_tests_need_an_object() -> None:
    source = "class Money:\n    def __init__(self, n): self.n = n\n    def __sub__(self, n): return self.n - n"
    assert ended(source, "assert Money(5) - 2 == 3")[0] == UNASKABLE
    assert ended(source, "money = Money(5)\nassert money.n == 5 and money - 2 == 3") == (PASSED, "")


def test_an_iterator_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_ASKED", 100)
    status, why = ended(MIXED, "list(forever())")
    assert (status, why) == (FAILED, "no end after 100 answers of the program")


def test_a_program_that_does_not_run_passes_no_tests() -> None:
    assert ended("raise SystemExit", "assert True")[0] == FAILED
    assert ended("", "assert True") == (PASSED, "")


def test_tests_may_import_the_program() -> None:
    assert (
        ended(MIXED, "from solution import LIMIT as most\nimport solution\nassert most == solution.LIMIT == 3")[0]
        == PASSED
    )
    assert ended(MIXED, "from solution import *\nassert LIMIT == 3")[0] == PASSED
    assert ended(MIXED, "from solution import missing")[0] == FAILED


def test_tests_that_end_themselves_end_with_what_they_say() -> None:
    assert ended(MIXED, "import sys\nsys.exit(0)")[0] == PASSED
    assert ended(MIXED, "import sys\nsys.exit(3)")[0] == FAILED


def test_builtins_are_the_tests_own() -> None:
    source = "def abs(_): return 1\ndef sorted(_): return 'all'"
    assert ended(source, "assert abs(-3) == 3 and sorted([2, 1]) == [1, 2]")[0] == PASSED


def test_the_link_stays_over() -> None:
    with serving(MIXED) as connection:
        link = Link(connection)
        with pytest.raises(Over):
            link.refuse("once")
        with pytest.raises(Over, match="once"):
            link.ask("name", "LIMIT")
        assert math.isfinite(connection.fileno())
