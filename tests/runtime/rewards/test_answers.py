"""What a hostile program can answer tests: nothing that it says is worth more than the right values."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.runtime.rewards.asserts import asking
from rollmux.runtime.rewards.asserts.answering import Answers
from rollmux.runtime.rewards.asserts.asking import FAILED, PASSED, UNASKABLE, Link, Over
from rollmux.runtime.sandbox import frames
from tests.runtime.rewards.served import MIXED, ended, in_python, serving
from tests.runtime.rewards.test_values import JSON

CLASS = "import unittest\nclass T(unittest.TestCase):\n"
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
    *("list(f(3) - {7}) == []", "f(3).__eq__(7) is True", "not f(3).difference({7})", "f(3).startswith('seven')"),
    *("f(3).issubset({7}) and len(f(3)) == len({7})", "f(3).count(7) == 1", "f(3).replace('', '7') == ''"),
    *("f(3).find('7') >= 0", "f(3).index(7) >= 0", "f(3).__contains__(7) is True", "f(3).max(7) == 7"),
    *("f(3).compare(7) == 0", "f(3).rindex(7) >= 0", "f(3).rfind('7') >= 0", "f(3).min(7) == 7"),
]
COUNTING = """
class Counting:
    asked = 0
    def index(self, item):
        Counting.asked += 1
        return Counting.asked
    count = find = lambda self, item: 1
    def replace(self, old, new): return new
    def max(self, other): return other
class Field(tuple):
    count = property(len)
    index = property(lambda self: self[0])
class Named:
    def __init__(self, name): self.name, self.index = name, 3
    def find(self, other=None): return other is self
def f(*_): return Counting()
def field(): return Field((7, 8))
def named(): return Named("a")
"""


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


@pytest.mark.parametrize(("use", "expected"), [("append", FAILED), ("_note", FAILED), ("push", PASSED)])
def test_an_object_is_used_as_one_by_what_no_value_has(use: str, expected: int) -> None:
    source = (
        "class Sly:\n    def __eq__(self, _): return True\n    def push(self, _): pass\n    append = _note = push\n"
    )
    tests = f"a = f()\na.{use}(7)\nassert a == [7]"
    assert ended(f"{source}def f(): return Sly()", tests)[0] == expected


@pytest.mark.parametrize("answer", ["[]", "[[]]", "numpy.zeros((0, 3))", "float('nan')", "[float('nan')]", "0", "[7]"])
def test_an_array_in_place_of_a_value_gains_what_it_would_in_python(answer: str) -> None:
    source = f"import math, numpy\ndef f(*_): return numpy.array({answer})"
    for each in WANTED:
        status, why = ended(source, f"import math\nassert {each}")
        assert status == in_python(source, f"assert {each}"), (each, why)


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
@settings(max_examples=60)
def test_nonsense_fails_and_is_never_an_error_of_the_tests(said: list[Any], raised: bool) -> None:
    class Nonsense(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            if head["verb"] == "bool":
                return super().answer(head, blobs)
            return frames.packed({"raised": raised}, [json.dumps(each).encode() for each in said])

    tests = "g = f\nassert f(1) == 'what nobody says' and g.size == 'what nobody says'"
    assert ended("", tests, Nonsense)[0] == FAILED


@pytest.mark.parametrize(
    "blob",
    [
        *(b"", b"\xff", b"[" * 100_000, b"9" * 5000),
        *(b'{"kept": ["x"]}', b'{"type": ["exec"]}', b'{"bytes": [{"type": ["int"]}]}'),
    ],
)
def test_what_can_not_be_read_ends_the_tests_whatever_they_catch(blob: bytes) -> None:
    class Broken(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            return super().answer(head, blobs) if head["verb"] == "bool" else frames.packed({"raised": False}, [blob])

    status, why = ended("", "try: f()\nexcept BaseException: pass", Broken)
    assert status == FAILED
    assert why.startswith("no answer of the program")


def test_an_iterator_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_ASKED", 100)
    status, why = ended(MIXED, "list(forever())")
    assert (status, why) == (FAILED, "no end after 100 answers of the program")


def test_the_link_stays_over() -> None:
    with serving(MIXED) as connection:
        link = Link(connection)
        with pytest.raises(Over):
            link.refuse("once")
        with pytest.raises(Over, match="once"):
            link.ask("name", "LIMIT")


ADDRESS = """
class Answer:
    def __getattr__(self, name):
        if name in ("__array_interface__", "__cuda_array_interface__"):
            return {"shape": (9,), "typestr": "<f8", "data": (4096, True), "version": 3}
        if name == "_as_parameter_": return 4096
        if name in ("__array_struct__", "__array__", "__dlpack__"): return lambda *_: 4096
        raise AttributeError(name)
def f(): return Answer()
"""


@pytest.mark.parametrize(
    "tests",
    [
        *(
            "import numpy as np\nnp.sum(f())",
            "import numpy as np\nnp.asarray([f()])",
            "f().__cuda_array_interface__",
        ),
        *("import ctypes\nctypes.c_void_p.from_param(f())", "f().__array_interface__", "f()._as_parameter_"),
    ],
)
def test_no_address_that_a_program_names_is_read_where_the_tests_are(tests: str) -> None:
    assert ended(ADDRESS, f"try:\n    exec({tests!r})\nexcept Exception: pass")[0] == UNASKABLE


@pytest.mark.parametrize(("asked", "status"), [("assert empty(a) == sorted(a)", FAILED), ("empty(a)", PASSED)])
def test_arguments_are_changed_by_no_answer_but_to_a_call_that_is_a_statement(asked: str, status: int) -> None:
    class Forging(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            return super().answer({**head, "back": True}, blobs)

    source = "def empty(a):\n    a.clear()\n    return []"
    assert ended(source, f"a = [2, 1]\n{asked}\nassert a == []", Forging)[0] == status


LEARNING = """
class Learning:
    def difference(self, other):
        self.told = list(other)
        return set()
    def __iter__(self): return iter(self.told)
def f(): return Learning()
"""


def test_an_object_learns_nothing_by_what_only_sets_are_asked(capsys: pytest.CaptureFixture[str]) -> None:
    tests = f"{CLASS}    def test(self): self.assertSetEqual(f(), {{2, 3}})\nunittest.main(argv=['tests'])"
    assert ended("def f(): return {2, 3}", tests)[0] == PASSED
    assert ended(LEARNING, tests)[0] == FAILED


def test_no_object_is_taken_for_a_value_by_its_class() -> None:
    class Forging(Answers):
        def __init__(self, names: dict[str, Any]) -> None:
            super().__init__(names)
            self._verbs["class"] = lambda _: Counter

    source = "class Ones:\n    __getitem__ = lambda *_: 1\n    __iter__ = lambda _: iter(())\ndef f(): return Ones()"
    tests = "from collections import Counter\nassert {}f() == Counter(a=1)\n"
    assert ended(source, tests.format(""), Forging)[0] == FAILED
    assert ended(source, tests.format("Counter(b=1) == "), Forging)[0] == FAILED


@pytest.mark.parametrize(
    "tests",
    [
        "order = f({'a': 'b'})\nassert order.index('a') < order.index('b')",
        *("assert f().find('<b>') != -1", "assert all(f().count(each) == 1 for each in (1, 2))"),
        *("assert f().replace('bold', '') == ''", "assert f().max(7) == 7"),
    ],
)
def test_an_object_in_place_of_a_value_has_no_say_in_what_a_value_has_to_do_with_it(tests: str) -> None:
    status, why = ended(COUNTING, tests)
    assert (status, why) == (FAILED, "TypeError: f is an object where a value is reckoned with")


@pytest.mark.parametrize(
    "tests",
    [
        "assert field().count == 2 and field().index == 7 and field() == (7, 8)",
        "assert named().index == 3 and named().find() is False and named().find(named()) is False",
        "each = named()\nassert each.find(each) is True and each.name == 'a' and each.find(7) is False",
        "order = Counting()\nassert order.index('a') < order.index('b')",
    ],
)
def test_what_is_named_like_a_method_of_values_is_the_objects_own_where_it_is_told_no_value(tests: str) -> None:
    assert ended(COUNTING, tests) == (PASSED, "")


@pytest.mark.parametrize("asked", ["all(map(lambda n: f(n) == 2 * n, [1, 2]))", "[*map(f, [1, 2])] in ([], [2, 4])"])
def test_an_error_of_the_programs_ends_no_iteration_of_the_tests(asked: str) -> None:
    assert ended("def f(n): return 2 * n", f"assert {asked}") == (PASSED, "")
    assert ended("def f(n): raise StopIteration", f"assert {asked}") == (FAILED, "RuntimeError: f raised StopIteration")


LEAVING = """
import sys
class Leaves(Exception):
    def __str__(self): sys.exit(0)
class Object:
    def __getattr__(self, name): sys.exit(0)
    __len__ = __iter__ = __eq__ = __bool__ = __call__ = __repr__ = lambda self, *_: sys.exit(0)
class Quit(SystemExit): code = 0
def raises(): raise Leaves
def leaves(): sys.exit(0)
def quits(): raise Quit
"""


@pytest.mark.parametrize("called", ["leaves()", "quits()", "raises()", "Object()", "Object", "MISSING"])
@pytest.mark.parametrize(
    "tests",
    [
        *("assert {} == 3", "assert len({}) == 3", "for each in {}: pass\nassert False", "assert not {}", "{}.more"),
        *("try: {}\nexcept Exception as error: assert str(error) == 'no'\nassert {}.more == 3", "{}()()"),
        f"{CLASS}    def test(self): self.assertEqual({{}}, 3)\nunittest.main(argv=['tests'])",
        f"{CLASS}    def setUpClass(): {{}}.more\n    def test(self): pass\nunittest.main(argv=['tests'])",
    ],
)
def test_a_program_that_would_end_its_process_ends_no_tests_well(
    called: str, tests: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = ended(LEAVING, tests.replace("{}", called))
    assert status in (FAILED, UNASKABLE)


@pytest.mark.parametrize("first", [True, False])
def test_one_that_ends_by_each_answer_has_failed(first: bool) -> None:
    class Leaving(Answers):
        def answer(self, head: dict[str, Any], blobs: list[bytes]) -> bytes:
            if head["verb"] == "bool" and not first:
                return super().answer(head, blobs)
            said = [{"error": [0, "builtins", "SystemExit", []]}, {"tuple": [0]}, {"kept": [0]}]
            return frames.packed({"raised": True}, [json.dumps({"list": said}).encode()])

    assert ended("", "assert f(1) == 2", Leaving)[0] == FAILED
