"""What tests see of a program in another process: what they would see in Python."""

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.runtime.rewards.asserts.answering import Answers
from rollmux.runtime.rewards.asserts.asking import BROKEN_TESTS, FAILED, PASSED, UNASKABLE, Link
from rollmux.runtime.rewards.asserts.reading import Solution
from tests.runtime.rewards.served import (
    DERIVED,
    EXITS,
    MIXED,
    NODES,
    RAISING,
    STACK,
    VECTOR,
    VIEWS,
    ended,
    in_python,
    serving,
)
from tests.runtime.rewards.test_values import PLAIN_VALUES

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
    (MIXED, "def of(total): return total\nassert of(LIMIT) == 3"),
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
    (MIXED, "a = [3, 1, 3]; k = without(a, 3); assert k == 1 and a[:k] == [1]"),
    (MIXED, "a = [3, 1, 3]; k = without(a, 1); assert k == 2 and sorted(a[:k]) == [1, 3]"),
    (MIXED, "a = [3, 1]; k = len(a); assert a[:k] == a and LIMIT == 3"),
    (MIXED, "g = upto(3); assert next(g) == 0 and list(g) == [1, 2] and list(g) == [] and sum(upto(4)) == 6"),
    (MIXED, "assert list(upto(3)) == [0, 1]"),
    (MIXED, "next(upto(0))"),
    (MIXED, "g = upto(1); g.send(None)\nassert [*map(g.__next__, [])] == []\nfor _ in g: assert False"),
    (MIXED, "try: applied(next, upto(0))\nexcept StopIteration: pass\nelse: assert False"),
    (MIXED, "g = upto(0)\nfor each in map(lambda _: g.__next__(), [1]): assert False"),
    (MIXED, "o = Ordered([1]); assert o.__eq__([1]) and Ordered.__eq__(o, [1]) and text().startswith('a')"),
    (MIXED, "assert text().endswith('a')"),
    (MIXED, "import itertools\nassert list(itertools.islice(forever(), 3)) == [1, 1, 1] and 1 in forever()"),
    (MIXED, "import types\nassert isinstance(upto(1), types.GeneratorType)"),
    (MIXED, "from collections.abc import Iterator\nassert isinstance(upto(1), Iterator)"),
    (MIXED, "from collections.abc import Sized\nassert isinstance(upto(1), Sized)"),
    (MIXED, "exec('most = LIMIT')\nassert most == 3"),
    (MIXED, "def of(n): return eval('adder(n)(2) + LIMIT')\nassert of(1) == 6 and eval('n', {'n': 5}) == 5"),
    (MIXED, "for each in ['LIMIT == 3', ' add(2) is None']: assert eval(each)\nassert all(map(eval, ['total == 2']))"),
    (MIXED, "exec(compile('def of(n):\\n    return eval(\"n + 1\")', 'of.py', 'exec'))\nassert of(LIMIT) == 4"),
    (
        MIXED,
        "assert eval(applied(str.strip, '!(8 - 4) * (7 - 1)', '!')) == 24 and eval(applied(str, [1, 'a'])) == [1, 'a']",
    ),
    (MIXED, "assert eval(applied(str.strip, '!4 * 6 = 24', '!')) == 24"),
    (MIXED, "assert eval(applied(str.strip, '!(4 * 6', '!')) == 24"),
    (MIXED, "try: eval(applied(str.strip, '!x * 6', '!'))\nexcept Exception: pass\nelse: assert False"),
    (MIXED, "try: eval(applied(str.strip, '!abs(3)', '!'))\nexcept SyntaxError: pass\nassert LIMIT == 3"),
    (MIXED, "import json\nassert json.loads(applied(str, [1])) == [1]"),
    (
        MIXED,
        "from concurrent.futures import ThreadPoolExecutor as T\nassert sum(T(4).map(adder(1), range(99))) == 4950",
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
    (
        MIXED,
        "assert globals()['LIMIT'] == 3 and adder.__name__ == globals()['adder'].__name__ and locals()['total'] == 0",
    ),
    (MIXED, "assert globals()['LIMIT'] == 4"),
    (
        MIXED,
        "def of(name): return globals().get(name, 7)\nassert of('adder')(1)(2) == 3 and of('gone') == 7 and of(3) == 7",
    ),
    (MIXED, "for each in ['gone', 'adder']:\n    if each in globals(): made = globals()[each]\nassert made(1)(2) == 3"),
    (MIXED, "assert LIMIT == 3 and globals()['gone']"),
    (MIXED, "LIMIT = 5\nassert globals()['LIMIT'] == 5 and total == 0\nassert eval('LIMIT + total', globals()) == 5"),
    (MIXED, "if __name__ == '__main__':\n    assert LIMIT == 4"),
    (MIXED, "assert type(LIMIT) is int and type(LIMIT) == int and isinstance(LIMIT, int | str)"),
    (MIXED, "class T:\n    limit = LIMIT\n    def of(self, f=add): return f\nassert T.limit == 3 and T().of() is add"),
    (MIXED, "class T:\n    made = adder(1)\nassert T.made(2) == 3"),
    (MIXED, "class T:\n    gone = MISSING"),
    (
        NODES,
        "import unittest\nt = unittest.TestCase(); t.assertIs(one(), one()); t.assertIsNot(one(), Node(0), 'other')",
    ),
    (NODES, "import unittest\nunittest.TestCase().assertIs(one(), Node(0))"),
    (NODES, "import unittest\nunittest.TestCase().assertIsNot(one(), one())"),
    (NODES, "import unittest\nt = unittest.TestCase(); t.assertIs(linked([]), None); t.assertIsNot(one(), None)"),
    (NODES, "assert one() is one() is ONE and id(one()) == id(ONE) and id(Node(1)) != id(one())"),
    (NODES, "assert one() is one() is not ONE"),
    (NODES, "assert one() is not one() is not None"),
    (NODES, "a = Node(1); assert a is a in [a] is not None and 1 < a.value is not a"),
    (NODES, "a = Node(1); assert a is a in [a] is not None and 0 < a.value is not a"),
    (NODES, "assert id(one()) != id(one())"),
    (VIEWS, "assert names() == {'a', 'b'} == names() and names() & {'a'} == {'a'} and 'a' in names()"),
    (VIEWS, "assert names() == {'a', 'c'}"),
    (VIEWS, "assert pairs() == {('a', 1), ('b', 2)} and list(names()) == ['b', 'a'] and ordered() == {'a'}"),
    (VIEWS, "assert ('a', [1]) in lists() and ('a', [2]) not in lists() and lists() != {1, 2}"),
    (RAISING, "import queue\ntry: taken()\nexcept queue.Empty: pass"),
    (RAISING, "import csv\ntry: parsed()\nexcept csv.Error: pass"),
    (RAISING, "import graphlib\ntry: sorted_out()\nexcept graphlib.CycleError as e: assert e.args[1] == [2, 1, 2]"),
    (RAISING, "import subprocess\ntry: run()\nexcept subprocess.CalledProcessError as e: assert e.returncode == 1"),
    (DERIVED, "assert Mod7(5) + Mod7(4) == Mod7(2) and Mod7(3) == 3 and Mod7(3) < 4 and Mod7(5) - 4 == 1"),
    (DERIVED, "assert Mod7(3) == 4"),
    (DERIVED, "assert 1 in Odd([2]) and 2 not in Odd([2]) and Odd([2]) == [2] and Odd([2]) + [1] == [2, 1]"),
    (EXITS, "try: leave(2)\nexcept SystemExit as e: assert e.code == 2 and e.args == (2,)\nelse: assert False"),
    (EXITS, "try: leave()\nexcept SystemExit as e: assert e.code is None\nelse: assert False"),
    (EXITS, "try: leave(2)\nexcept Exception: pass\nexcept BaseException as e: assert type(e) is not Exception"),
    (EXITS, "try: quit_it()\nexcept Quit as e: assert isinstance(e, SystemExit)\nelse: assert False"),
    (
        EXITS,
        "import unittest as u\nwith u.TestCase().assertRaises(SystemExit) as c: leave(2)\nassert c.exception.code == 2",
    ),
    (EXITS, "import unittest\nwith unittest.TestCase().assertRaises(SystemExit): stay()"),
    (MIXED, "match Colour.RED.value:\n    case 1 if LIMIT == 3: pass\n    case _: assert False"),
]


@pytest.mark.parametrize(("source", "tests"), AGREED, ids=[tests for _, tests in AGREED])
def test_what_holds_in_python_holds_across(source: str, tests: str) -> None:
    status, why = ended(source, tests)
    assert status == in_python(source, tests), why


@given(PLAIN_VALUES)
@settings(max_examples=25)
def test_plain_values_of_names_and_attributes_are_what_they_are(value: Any) -> None:
    class Given(Answers):
        def __init__(self, names: dict[str, Any]) -> None:
            super().__init__({**names, "VALUE": value})

    source = "class Box:\n    def __init__(self, value): self.value = value\ndef same(value): return value"
    with serving(source, Given) as connection:
        solution = Solution(Link(connection))
        for got in (solution.VALUE, solution.Box(value).value, solution.same(value)):
            assert got == value
            assert type(got) is type(value)


CONTAINER = """
class Sequence:
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
"""


@given(st.lists(st.integers(-5, 5)), st.integers(-6, 6), st.integers(-6, 6))
@settings(max_examples=25)
def test_a_container_of_the_programs_looks_like_its_items(items: list[int], at: int, item: int) -> None:
    with serving(CONTAINER) as connection:
        made = Solution(Link(connection)).Sequence(items)
        assert (len(made), bool(made), list(made), item in made) == (len(items), bool(items), items, item in items)
        assert made[at:item] == items[at:item]
        assert list(reversed(made)) == items[::-1]
        if -len(items) <= at < len(items):
            assert made[at] == items[at]
        else:
            with pytest.raises(IndexError):
                made[at]


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
        ("import solution\nsolution.LIMIT = 5\nassert solution.LIMIT == 5", "LIMIT of the program's module"),
        ("import doctest\nassert doctest.testmod().failed == 0", "import of doctest halted"),
        ("import pickle\npickle.dumps(Dog())", "__reduce_ex__, by which a library would take Dog"),
        ("import asyncio\nasyncio.run(Dog())", "run of an object of the program's"),
        (
            "import asyncio as a\nl = a.new_event_loop()\ntry: l.run_until_complete(Dog())\nfinally: l.close()",
            "run_until_complete of an object of the program's",
        ),
        ("from dataclasses import asdict\nasdict(Place('a'))", "asdict of an object of the program's"),
        ("exec(applied(str.upper, 'a = 1'))", "exec of a text that does not stand in the tests"),
        ("compile(applied(str.strip, ' 1 - 1'), '', 'exec')", "compile of a text that does not stand in the tests"),
        ("assert eval(f'applied(abs, {LIMIT})') == 3", "eval of 'applied(abs, 3)', which does not stand in the tests"),
        ("import pickle\npickle.loads(applied(bytes, 3))", "loads of what does not stand in the tests"),
        ("match Place('a'):\n    case Place(name='b'): assert False", "whether a pattern of Place matches"),
    ],
)
def test_what_can_not_be_asked_is_no_score(tests: str, why: str) -> None:
    status, told = ended(MIXED, tests)
    assert status in (UNASKABLE, BROKEN_TESTS)
    assert why in told


@pytest.mark.parametrize(
    ("tests", "kind"),
    [
        ("assert Caseless('Abc') == 'aBC'", "Caseless"),
        ("assert Caseless('Abc') != 'x'", "Caseless"),
        ("assert Mod7(5) + 4 == 2", "Mod7"),
        ("m = Mod7(5); m += 4; assert m == 2", "Mod7"),
        ("assert 2 * Mod7(5) == 3", "Mod7"),
    ],
)
def test_an_operator_of_a_class_of_plain_values_is_its_own_word(tests: str, kind: str) -> None:
    status, why = ended(DERIVED, tests)
    assert status == UNASKABLE
    assert f"only its own word says what {kind} has to do with a value" in why
    without = "class Caseless(str): pass\nclass Mod7(int): pass"
    assert ended(without, tests)[0] == in_python(without, tests)


def test_an_operator_that_makes_a_value_of_one_is_asked_once_the_tests_need_an_object() -> None:
    source = "class Money:\n    def __init__(self, n): self.n = n\n    def __sub__(self, n): return self.n - n"
    assert ended(source, "assert Money(5) - 2 == 3")[0] == UNASKABLE
    assert ended(source, "money = Money(5)\nassert money.n == 5 and money - 2 == 3") == (PASSED, "")


def test_a_program_that_does_not_run_passes_no_tests() -> None:
    assert ended("raise SystemExit", "assert True")[0] == FAILED


@pytest.mark.parametrize(
    "tests",
    [
        "# nothing yet",
        "assert True",
        "assert False",
        "for x, y in []: assert adder(x) == y",
        "def check(candidate): assert candidate(1)(2) == 3",
        "from solution import adder\ndef check(candidate): assert candidate(1)(2) == 3",
        "import unittest\nclass Sums(unittest.TestCase):\n    def test_it(self): self.assertEqual(adder(1)(2), 3)",
        "import sys\nsys.exit(0)",
    ],
)
def test_tests_that_ask_nothing_of_the_program_are_no_score(tests: str) -> None:
    status, why = ended(MIXED, tests)
    assert (status, why[:31]) == (BROKEN_TESTS, "they ask nothing of the program")


def test_tests_that_are_nested_too_deeply_to_be_read_are_no_score() -> None:
    status, why = ended(MIXED, f"assert adder(1)(2) == {'0 + ' * 2000}3")
    assert (status, "recursion" in why) == (BROKEN_TESTS, True)


def test_tests_may_import_the_program() -> None:
    assert (
        ended(MIXED, "from solution import LIMIT as most\nimport solution\nassert most == solution.LIMIT == 3")[0]
        == PASSED
    )
    assert ended(MIXED, "from solution import *\nassert LIMIT == 3")[0] == PASSED
    assert ended(MIXED, "from solution import missing")[0] == FAILED


def test_tests_that_end_themselves_end_with_what_they_say() -> None:
    assert ended(MIXED, "import sys\nassert LIMIT == 3\nsys.exit(0)")[0] == PASSED
    assert ended(MIXED, "import sys\nassert LIMIT == 3\nsys.exit(3)")[0] == FAILED


def test_builtins_are_the_tests_own() -> None:
    source = "def abs(_): return 1\ndef sorted(_): return 'all'\nLIMIT = -3"
    assert ended(source, "assert abs(LIMIT) == 3 and sorted([2, 1]) == [1, 2]")[0] == PASSED


def test_what_the_program_names_like_a_builtin_is_had_from_its_module() -> None:
    for tests in ("from solution import pow\nassert pow(2, 3) == 9", "import solution\nassert solution.pow(2, 3) == 9"):
        assert ended("def pow(base, power): return 9", tests) == (PASSED, "")
        assert ended("def pow(base, power): return 8", tests)[0] == FAILED


UNITTEST = """
import unittest

class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)

if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.parametrize(
    ("source", "status"),
    [("def add(a, b): return a + b", PASSED), ("def add(a, b): return a - b", FAILED), ("", FAILED)],
)
def test_tests_of_unittest_are_found_and_run(
    source: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.py"])
    assert ended(source, UNITTEST)[0] == status


NUMPY = """
import numpy
def half(): return numpy.float64(0.5)
def all_of(n): return numpy.arange(float(n))
def above(items, least): return numpy.any(numpy.array(items) > least)
def each_above(items, least): return list(numpy.array(items) > least)
def doubled(items): return numpy.asarray(items) * 2
def clear(items): items[:] = 0
def words(): return numpy.array(["a", "bc"])
def parted(n): return [numpy.ones(n), {"none": numpy.zeros((0, n), int)}]
def large(): return numpy.ones((1000, 1000))
class Net:
    def __init__(self): self.weights = numpy.zeros((2, 2))
    def grow(self): self.weights += 1
"""


@pytest.mark.parametrize(
    "tests",
    [
        "assert np.isclose(half(), 0.5) and np.allclose([half(), 1], [0.5, 1]) and np.float64(0.5) == half()",
        "assert np.isclose(half(), 0.6)",
        "assert all_of(3).tolist() == [0, 1, 2]",
        "assert above([1, 2], 1) == True and above([1, 2], 3) == False and above([1], 0) != 0",
        "assert {'a': above([1], 0), 'b': each_above([1, 3], 2)} == {'a': True, 'b': [False, True]}",
        "assert above([1, 2], 3) == True",
        "assert each_above([1, 3], 2) == [True, True]",
        "assert np.allclose(all_of(3), [0, 1, 2]) and (np.arange(3) == all_of(3)).all()",
        "assert (all_of(3) == [0, 1, 2]).all() and (words() == ['a', 'bc']).all()",
        "assert (all_of(3) == [0, 1, 3]).all()",
        "assert all_of(3) == [0, 1, 2]",
        "np.testing.assert_array_equal(doubled(np.eye(2)), [[2, 0], [0, 2]])",
        "np.testing.assert_array_equal(doubled(np.eye(2)), [[2, 0], [0, 3]])",
        "assert doubled(np.float32(1.5)) == 3 and doubled(np.array([1j])) == 2j and doubled(np.int8(4)).dtype == 'i1'",
        "assert isinstance(all_of(2), np.ndarray) and all_of(2).dtype == np.float64 and all_of(4)[1:3].shape == (2,)",
        "a = np.ones(3); clear(a); assert a.sum() == 0",
        "a = np.array([1, np.nan]); a.setflags(write=False); doubled(a); assert a[0] == 1",
        "ones, made = parted(2); assert ones.sum() == 2 and made['none'].shape == (0, 2) and made['none'].dtype == int",
        "n = Net(); n.grow(); assert (n.weights == 1).all(); n.weights[0][1] = 5; assert n.weights[0, 1] == 5",
        "n = Net(); n.weights[0, 0] = 5; n.weights += 1; n.grow(); assert n.weights.tolist() == [[7, 2], [2, 2]]",
        "assert large().sum() == 10**6 and large()[0].sum() == 1000",
    ],
)
def test_numpys_arrays_and_numbers_are_values(tests: str) -> None:
    tests = f"import numpy as np\n{tests}"
    status, why = ended(NUMPY, tests)
    assert status == in_python(NUMPY, tests), why


@pytest.mark.parametrize(
    "tests",
    [
        "assert (f() == np.array([1, 2])).all()",
        "assert np.allclose(f(), [1, 2]) and np.allclose([1, 2], f())",
        "assert np.allclose(f(), np.array([5]))",
        "assert np.allclose(f(), 5) and np.allclose(5.5, f())",
        "assert (f() == 5).all() and (f() == np.int8(5)).all() and (np.array(5) == f()).all()",
        "assert not np.any(np.array([1, 2]) != f())",
        "assert np.all(np.abs(f() - np.array([1, 2])) < 1e-6)",
        "assert (f()[:] == np.array([1, 2])).all()",
    ],
)
def test_an_array_without_items_is_not_equal_to_one_with_some(tests: str) -> None:
    source = "import numpy as np\ndef f(): return np.empty((0, 1))"
    assert in_python(source, f"import numpy as np\n{tests}") == PASSED, "as numpy has it"
    assert ended(source, f"import numpy as np\n{tests}")[0] == FAILED


@pytest.mark.parametrize(
    "tests",
    [
        "assert (none() == np.array([])).all() and np.allclose(none(), []) and np.array_equal(none(), [])",
        "np.testing.assert_array_equal(none(), []); np.testing.assert_allclose(none(), np.zeros(0))",
        "assert none().shape == (0,) and none().sum() == 0 and (none() * 2 + none()).tolist() == []",
        "assert doubled(none()).size == 0 and np.concatenate([none(), [1]]).tolist() == [1]",
        "assert (np.concatenate([none(), [1.0]]) == np.array([1.0])).all() and isinstance(none(), np.ndarray)",
        "a = none(); a += 1; clear(a); assert len(a) == 0 and np.append(a, 3).tolist() == [3]",
    ],
)
def test_an_array_without_items_may_be_the_right_answer(tests: str) -> None:
    tests = f"import numpy as np\n{tests}"
    source = NUMPY + "def none(): return numpy.zeros(0)\n"
    assert in_python(source, tests) == PASSED
    assert ended(source, tests) == (PASSED, "")


def test_arrays_are_values_where_the_tests_do_not_load_numpy() -> None:
    assert ended(NUMPY, "assert (all_of(3) == [0, 1, 2]).all()") == (PASSED, "")
    assert ended(NUMPY, "assert (all_of(3) == [0, 1, 3]).all()")[0] == FAILED


def test_whether_two_arrays_are_one_can_not_be_asked() -> None:
    assert ended(NUMPY, "import numpy as np\na = np.ones(2)\nassert doubled(a) is not a")[0] == UNASKABLE
