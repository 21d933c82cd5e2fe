"""Suites as pytest has them: what nobody calls is called, and what pytest alone could do is no score."""

import pytest

from rollmux.runtime.rewards.asserts.asking import BROKEN_TESTS, FAILED, PASSED, UNASKABLE
from tests.runtime.rewards.served import ended

RIGHT = """
calls = []
test_log = calls.append
class TestAll: pass
def add(a, b):
    calls.append((a, b))
    return a + b
def root(x):
    if x < 0: raise ValueError("negative")
    return x ** 0.5
"""
WRONG = RIGHT.replace("a + b", "a - b")


def suite(body: str) -> str:
    return f"import pytest\nfrom solution import add, root\n{body}"


FUNCTION = suite("def test_sum():\n    assert add(1, 2) == 3")
SECOND = suite("def test_nothing():\n    assert add(0, 0) == 0\ndef test_sum():\n    assert add(1, 2) == 3")
RAISES = suite(
    "def test_root():\n    with pytest.raises(ValueError, match='negative'):\n        root(-1)\n"
    "    assert root(2) == pytest.approx(1.4142135)\n    assert add(0.1, 0.2) == pytest.approx(0.3)"
)
ROWS = suite(
    "@pytest.mark.parametrize('a', [1, 2])\n"
    "@pytest.mark.parametrize('b, total', [(0, 0), pytest.param(3, 3, id='x')])\n"
    "def test_sum(a, b, total):\n    assert add(a, b) == total + a"
)
LISTS = suite(
    "@pytest.mark.parametrize(argnames=['of'], argvalues=[[(1, 2)]])\ndef test_sum(of):\n    assert add(*of) == 3"
)
CLASS = suite(
    "class TestSums:\n    def setup_method(self, method):\n        self.one = len(method.__name__) - 7\n"
    "    def teardown_method(self):\n        assert add(self.one, 0) == 1\n"
    "    def test_sum(self, twice=2):\n        assert add(self.one, twice) == 3\n    def helper(self): assert False\n"
)
DERIVED = suite(
    "class Common:\n    def test_sum(self):\n        assert add(self.one, 2) == 3\nclass TestOne(Common):\n    one = 1"
)
MODULE = suite("assert add(0, 0) == 0\ndef test_sum():\n    assert add(1, 2) == 3")


MAIN = f"{FUNCTION}\nif __name__ == '__main__':\n    raise SystemExit(pytest.main([__file__]))"


@pytest.mark.parametrize("tests", [FUNCTION, SECOND, RAISES, ROWS, LISTS, CLASS, DERIVED, MODULE, MAIN])
def test_what_pytest_would_call_is_called(tests: str) -> None:
    assert ended(RIGHT, tests) == (PASSED, "")
    assert ended(WRONG, tests)[0] == FAILED


def test_each_is_called_once_for_each_row() -> None:
    called = "[(1, 0), (2, 0), (1, 3), (2, 3)]"  # in the order that pytest has
    asked = (
        f"\nclass TestLast:\n    def test_it(self):\n        import solution\n        assert solution.calls == {called}"
    )
    assert ended(RIGHT, ROWS + asked) == (PASSED, "")


@pytest.mark.parametrize(
    "tests",
    [
        "def test(a, b): return add(a, b) == a + b\nassert test(1, 2)",
        "def test_sum(a=1): assert add(a, 2) == 3\nfor each in [test_sum]: each(1)",
        "class Test:\n    def __init__(self, a): self.a = a\n    def test(self): assert add(self.a, 2) == 2\nadd(1, 2)",
        "class Testing:\n    def check(self): assert False\nassert add(1, 2) == 3",
        "assert add(1, 2) == 3\ntest_cases = [1]",
        "from solution import *\nassert add(1, 2) == 3 and test_log and TestAll",
        "from solution import test_log, TestAll\nassert add(1, 2) == 3",
    ],
)
def test_what_the_tests_call_themselves_and_what_is_no_test_is_not(tests: str) -> None:
    assert ended(RIGHT, tests) == (PASSED, "")


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("def test_sum(tmp_path): assert add(1, 2) == 3", "test_sum wants tmp_path, which nobody gives"),
        ("class TestSum:\n    def test_sum(self, capsys): add(1, 2)", "TestSum.test_sum wants capsys"),
        ("async def test_sum(): assert add(1, 2) == 3", "test_sum is a coroutine"),
        ("@pytest.mark.skip\ndef test_sum(): assert add(1, 2) == 3", "test_sum is marked skip"),
        (
            "@pytest.fixture(autouse=True)\ndef begun(): pass\ndef test_sum(): add(1, 2)",
            "begun is done by pytest alone",
        ),
        ("@pytest.mark.skip\nclass TestSum:\n    def test_sum(self): add(1, 2)", "pytestmark is done by pytest alone"),
        (
            "class TestSum:\n    def setup_class(self): pass\n    def test_sum(self): add(1, 2)",
            "setup_class is done by",
        ),
        ("def setup_module(): pass\ndef test_sum(): add(1, 2)", "setup_module is done by pytest alone"),
    ],
)
def test_what_pytest_alone_can_do_is_no_score(tests: str, why: str) -> None:
    for source in (RIGHT, WRONG):
        status, told = ended(source, suite(tests))
        assert (status, told[: len(why)]) == (UNASKABLE, why)


def test_rows_that_do_not_fit_are_no_score() -> None:
    status, _ = ended(RIGHT, suite("@pytest.mark.parametrize('a, b', [(1,)])\ndef test_sum(a, b): add(a, b)"))
    assert status == BROKEN_TESTS
