"""Programs scored by their tests: what is right is worth one, what cheats is worth nothing."""

import asyncio

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.rewards import Case, CodeTask, Reward, Status
from rollmux.runtime.rewards.asserts.asking import PASSED
from rollmux.runtime.rewards.code import same_output
from rollmux.runtime.sandbox import Program
from tests.runtime.rewards.world import Pooled

CASES = (Case("1 2\n", "3\n"), Case("5 -7\n", "-2"))
SUM = "a, b = map(int, input().split())\nprint(a + b)"


def by_cases(pooled: Pooled, source: str, problem: str = "sum") -> Reward:
    return pooled.score(CodeTask(problem, Program(source), CASES))


def by_asserts(pooled: Pooled, source: str, asserts: str, problem: str = "asserts") -> Reward:
    return pooled.score(CodeTask(problem, Program(source), asserts=asserts))


def test_a_right_program_scores_one(pooled: Pooled) -> None:
    reward = by_cases(pooled, SUM)
    assert (reward.status, reward.value) == (Status.SCORE, 1.0)
    assert reward.cpu_s > 0


@pytest.mark.parametrize(
    "source",
    [
        "print(4)",
        SUM + "\nraise SystemExit(1)",
        SUM + "\nimport os; os.abort()",
        "print(",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('{\"score\": 1.0}'); print('passed')",
        "while True: print('x' * 1000)",
        "x = bytearray(10**12)",
        "import os\nwhile True:\n    try: os.write(5, b'exit 0')\n    except OSError: raise SystemExit",
    ],
)
def test_a_wrong_program_scores_zero_however_it_ends(pooled: Pooled, source: str) -> None:
    reward = by_cases(pooled, source)
    assert (reward.status, reward.value) == (Status.SCORE, 0.0)
    assert reward.detail.startswith("test 1 of 2: ")


def test_a_command_is_scored_as_well(pooled: Pooled) -> None:
    script = Program(command=("/bin/sh", "-c", 'read a b; echo "$((a + b))"'))
    assert pooled.score(CodeTask("sum", script, CASES)).value == 1.0


def test_a_program_that_never_ends_is_a_timeout_and_no_score(pooled: Pooled) -> None:
    pooled.pool.timeouts.learn("hang/0", 0.01, 0.01)
    reward = by_cases(pooled, "while True: pass", "hang")
    assert (reward.status, reward.score) == (Status.TIMEOUT, None)
    assert reward.detail in ("test 1 of 2: CPU limit", "test 1 of 2: wall limit")


def test_blanks_at_the_ends_of_lines_do_not_matter_and_all_else_does() -> None:
    assert same_output("1 \n2\n\n", "1\n2")
    assert same_output("", "\n")
    assert not same_output("1 2", "1  2")
    assert not same_output("\n1", "1")
    assert not same_output("1\n\n2", "1\n2")


def test_a_long_output_is_expected_where_the_expected_one_is_long(pooled: Pooled) -> None:
    expected = "7" * 5 * 2**20

    def by(source: str) -> Reward:
        return pooled.score(CodeTask("long", Program(source), (Case("", expected),)))

    assert by("print('7' * 5 * 2**20)").value == 1.0
    assert (by("while True: print('7' * 1000)").value, by("print('7' * 2**20)").value) == (0.0, 0.0)


ASSERTS = """
assert add(1, 2) == 3
assert add([1], [2]) == [1, 2]
assert add("a", key="b") == "ab"
assert add({1: (2, 3)}, None) is None
assert add(float("inf"), 1) == float("inf")
"""
ADD = """
def add(left, right=None, key=""):
    if right is None:
        return left + key if key else None
    return left + right
"""


def test_asserts_call_what_the_program_defines(pooled: Pooled) -> None:
    assert by_asserts(pooled, ADD, ASSERTS).value == 1.0
    assert by_asserts(pooled, f"\ufeff{ADD}", f"\ufeff{ASSERTS}").value == 1.0


def test_asserts_call_what_recurses_as_deep_as_python_goes(pooled: Pooled) -> None:
    source = "def down(n): return 0 if n == 0 else 1 + down(n - 1)"
    assert by_asserts(pooled, source, "assert down(995) == 995").value == 1.0


def test_neither_tests_nor_what_they_ask_are_written_where_others_may_look(pooled: Pooled) -> None:
    source = "import os\ndef seen(): return os.path.exists('program.py')"
    assert by_asserts(pooled, source, "import os\nassert seen() is False is os.path.exists('program.py')").value == 1.0


def test_asserts_reach_objects_and_their_methods(pooled: Pooled) -> None:
    source = """
class Solution:
    def __init__(self, start=0): self.total = start
    def add(self, n):
        self.total += n
        return self
    def get(self): return self.total
"""
    asserts = "made = Solution(5)\nmade.add(1).add(2)\nassert made.get() == 8\nassert Solution().get() == 0"
    assert by_asserts(pooled, source, asserts).value == 1.0


STACK = """
VALUES = [1]
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
"""


@pytest.mark.parametrize(
    "asserts",
    [
        "s = Stack(); s.push(1)\nassert s.items == [1] and len(s) == 1 and s[0] == 1 and list(s) == [1] and 1 in s",
        "assert not Stack() and Stack().items == []",
        "assert VALUES == [1]",
        "s = Stack(); s.items.append(2)\nassert s[0] == 2 and VALUES",
    ],
)
def test_asserts_see_values_and_operators_of_the_program(pooled: Pooled, asserts: str) -> None:
    assert by_asserts(pooled, STACK, asserts).value == 1.0


@pytest.mark.parametrize(
    "asserts",
    [
        "assert Stack().items",
        "assert VALUES == [2]",
        "assert RESULT",
        "assert Stack().valid",
        "assert len(Stack()) == 1",
    ],
)
@pytest.mark.parametrize("source", ["pass", STACK])
def test_asserts_that_do_not_hold_are_worth_nothing_with_any_program(pooled: Pooled, source: str, asserts: str) -> None:
    reward = by_asserts(pooled, source, asserts)
    assert (reward.status, reward.score) == (Status.SCORE, 0.0)


def test_asserts_see_arrays_where_only_the_program_loads_numpy(pooled: Pooled) -> None:
    source = "import numpy as np\ndef ones(n): return np.ones(n)"
    assert by_asserts(pooled, source, "assert (ones(2) == [1, 1]).all()").value == 1.0
    assert by_asserts(pooled, source, "assert (ones(2) == [1, 2]).all()").value == 0.0


def test_an_answer_that_tests_run_runs_nothing(pooled: Pooled) -> None:
    source = "def make24(*_): return {!r}"
    asserts = "assert eval(make24(4, 6, 1, 1)) == 24"
    assert by_asserts(pooled, source.format("4 * 6 + 1 - 1"), asserts).value == 1.0
    ends = f"__import__('os')._exit({PASSED})"
    for answer in (ends, "id(24)", "print"):  # Python's own names, which are names of the tests, too
        assert by_asserts(pooled, source.format(answer), asserts).value == 0.0
    twice = f"def make24(number): return {ends!r} if number == 5 else repr({ends!r})"
    both = "answers = [eval(make24(number)) for number in (4, 5)]\nassert answers == [24, 24]"
    assert by_asserts(pooled, twice, both).value == 0.0


def test_tests_whose_process_ends_with_zero_have_not_passed(pooled: Pooled) -> None:
    assert by_asserts(pooled, ADD, "assert add(1, 2) == 3\nimport os\nos._exit(0)").value == 0.0


def test_asserts_that_can_not_be_asked_are_an_error_of_theirs(pooled: Pooled) -> None:
    reward = by_asserts(pooled, ADD, "try: add(lambda: 1)\nexcept BaseException: pass")
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert "can't be answered honestly" in reward.detail
    assert "a function (<lambda>) can't be sent to the program" in reward.detail
    reward = by_asserts(pooled, ADD, "import no_such_module")
    assert reward.status is Status.ERROR
    assert "no_such_module" in reward.detail


def test_asserts_may_expect_an_error(pooled: Pooled) -> None:
    asserts = """
try:
    root(-1)
except ValueError as error:
    assert "negative" in str(error)
else:
    raise AssertionError("no error")
"""
    assert by_asserts(pooled, "def root(n): raise ValueError('negative')", asserts).value == 1.0
    assert by_asserts(pooled, "def root(n): return 0", asserts).value == 0.0


@pytest.mark.parametrize(
    "source",
    [
        "class Equal:\n    def __eq__(self, other): return True\ndef add(*_, **__): return Equal()",
        "class Equal(int):\n    def __eq__(self, other): return True\ndef add(*_, **__): return Equal(7)",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import builtins; builtins.AssertionError = ValueError\ndef add(*_, **__): return 0",
        "import sys\ndef add(*_, **__): sys.exit(0)",
        "import os\ndef add(*_, **__): os._exit(0)",
        "import os\nos.write(3, b'\\0' * 64)\ndef add(*_, **__): return 3",
        "def add(*_, **__): return [] if False else eval('(' * 90 + ')' * 90)",
        "def add(*_, **__): raise KeyboardInterrupt",
        "def abs(x): return 3\nall = print",
        "import gc\nfor each in gc.get_objects():\n    if isinstance(each, dict): each['passed'] = True",
        "raise AssertionError",
        "import sys\nclass Last(Exception):\n    def __str__(self): sys.exit(0)\ndef add(*_, **__): raise Last",
    ],
)
def test_asserts_are_not_deceived_by_what_the_program_does_to_its_process(pooled: Pooled, source: str) -> None:
    reward = by_asserts(pooled, source, ASSERTS)
    assert (reward.status, reward.score) == (Status.SCORE, 0.0)


def test_the_last_words_of_tests_do_not_let_the_program_end_them(pooled: Pooled) -> None:
    told = "import sys\nclass Told:\n    def write(self, _): add()\n    flush = write\nsys.stderr = Told()\n"
    reward = by_asserts(
        pooled, "import sys\ndef add(*_): sys.exit(0)", told + "try: add()\nexcept SystemExit: assert 0"
    )
    assert (reward.status, reward.score) == (Status.SCORE, 0.0)


def test_a_builtin_that_the_program_redefines_stays_the_tests_own(pooled: Pooled) -> None:
    source = "def all(_): return True\ndef f(n): return -n"
    assert by_asserts(pooled, source, "assert all(f(n) == n for n in (1, 2))").value == 0.0


def test_a_call_that_never_returns_is_a_timeout(pooled: Pooled) -> None:
    pooled.pool.timeouts.learn("endless call/0", 0.01, 0.01)
    reward = by_asserts(pooled, "def f():\n    while True: pass", "assert f() == 1", "endless call")
    assert (reward.status, reward.score) == (Status.TIMEOUT, None)


def test_tests_that_can_not_be_read_are_an_error_of_theirs(pooled: Pooled) -> None:
    reward = by_asserts(pooled, ADD, "assert add(1, 2) ==")
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert "can't be read or run" in reward.detail


def test_a_limit_that_was_learnt_too_tight_is_found_by_an_audit(pooled: Pooled) -> None:
    slow = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\n"
    assert by_cases(pooled, SUM, "audited").value == 1.0
    killed = by_cases(pooled, slow + SUM, "audited")
    assert killed.status is Status.TIMEOUT

    async def audited() -> None:
        for _ in range(3000):
            if pooled.pool.timeouts.false_kills.would_have_passed:
                return
            await asyncio.sleep(0.01)

    pooled.do(audited())
    assert pooled.pool.timeouts.false_kills.would_have_passed >= 1
    assert pooled.pool.timeouts.limits("audited/0").cpu_s > 0.6


SPENT = "import time\nuntil = time.process_time() + 0.45\nwhile time.process_time() < until: pass\n"
LASTS = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000]).start()\n"


@pytest.mark.parametrize(
    ("problem", "source", "asserts"),
    [
        ("spent by the tests", "def f(): return 7", f"{SPENT}assert f() == 7"),
        ("spent by one that does not end", f"{SPENT}{LASTS}def f(): return 7", "assert f() == 7"),
    ],
)
def test_what_the_tests_or_a_program_that_does_not_end_have_taken_is_learnt_too(
    pooled: Pooled, problem: str, source: str, asserts: str
) -> None:
    assert by_asserts(pooled, source, asserts, problem).value == 1.0
    assert pooled.pool.timeouts.limits(f"{problem}/0").cpu_s > 0.45


def test_a_task_without_tests_or_with_both_kinds_is_refused() -> None:
    with pytest.raises(InvalidSpec):
        CodeTask("none", Program(SUM))
    with pytest.raises(InvalidSpec):
        CodeTask("both", Program(SUM), CASES, asserts="assert True")
    with pytest.raises(InvalidSpec):
        CodeTask("asserts of a command", Program(command=("/bin/true",)), asserts="assert True")
