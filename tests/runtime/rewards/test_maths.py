"""Maths answers: equal however they are written; a hang is a timeout and a failure an error, not a wrong answer."""

import asyncio
import sys
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.runtime.rewards import MathsTask, Reward, Status, maths, spelling
from rollmux.runtime.rewards.maths import MathsScorer
from rollmux.runtime.sandbox import Concern, RunLimits, Sandbox
from rollmux.runtime.sandbox.limits import MIB
from tests.runtime.rewards.world import Pooled
from tests.thorough import examples


@pytest.mark.parametrize(
    ("response", "gold", "score"),
    [
        ("It is \\boxed{\\frac{1}{2}}.", "0.5", 1.0),
        ("It is \\boxed{0.5}.", "\\frac12", 1.0),
        ("The answer is $x^2 + 2x + 1$", "(x+1)^2", 1.0),
        ("The answer is 42", "42", 1.0),
        ("first \\boxed{7}", "$\\boxed{7}$", 1.0),
        ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", 1.0),
        ("It is \\boxed{3}.", "4", 0.0),
        ("I don't know.", "4", 0.0),
        ("", "4", 0.0),
        ('{"same": true}', "4", 0.0),
    ],
)
def test_answers_are_compared_by_value(pooled: Pooled, response: str, gold: str, score: float) -> None:
    reward = pooled.score(MathsTask(response, gold))
    assert (reward.status, reward.score) == (Status.SCORE, score), reward


SAME = [
    *(("\\boxed{7.75}", "7 3/4"), ("\\boxed{-2 1/2}", "-2.5"), ("It is 7 3/4.", "7.75"), ("\\boxed{7\\ 3/4}", "31/4")),
    *(("\\boxed{1234}", "1\\,234"), ("\\boxed{10~000}", "10000"), ("\\boxed{1 234 567}", "1{,}234{,}567")),
    *(("\\boxed{72}", "72."), ("It is \\boxed{0.5.}", "\\frac12"), ("\\boxed{5}", "5~\\text{cm}")),
    *(
        ("\\boxed{12.5}", "12.5\\%"),
        ("\\boxed{12.5\\%}", "12.5"),
        ("\\boxed{0.125}", "12.5\\%"),
        ("\\boxed{12}", "12\\%"),
    ),
    *(
        ("\\boxed{2i}", "(1+i)^2"),
        ("$x = i$", "i"),
        ("\\boxed{-1}", "e^{i\\pi}"),
        ("\\boxed{\\frac{1-i}{2}}", "\\frac{1}{1+i}"),
    ),
    *(("\\boxed{-1 < x < 1}", "(-1,1)"), ("\\boxed{x > 2}", "(2,\\infty)"), ("\\boxed{(-1,1)}", "-1 < x < 1")),
    *(
        ("\\boxed{\\text{north}}", "north"),
        ("\\boxed{North}", "\\text{north}"),
        ("\\boxed{no real roots}", "No real roots"),
    ),
    *(("\\boxed{\\infty}", "infinity"), ("\\boxed{ba}", "ab"), ("\\boxed{x\\,y}", "xy"), ("\\boxed{xyz}", "x y z")),
    *(("Step 1: \\boxed{3}\nStep 2: \\boxed{7}", "7"), ("\\boxed{3}, so \\boxed{7}", "7"), ("\\boxed {7}", "7")),
    *(("$x=\\boxed{3}$ and $y=\\boxed{7}$", "3, 7"), ("(a) \\boxed{3}\n(b) \\boxed{7}", "3, 7"), ("\\fbox{7}", "7")),
    *(
        ("$AB=\\boxed{3}$ and $CD=\\boxed{7}$", "3, 7"),
        ("$|AB| = \\boxed{3}$, $|CD| = \\boxed{7}$", "3, 7"),
        ("$\\angle ABC=\\boxed{30}$ and $\\angle BCD=\\boxed{70}$", "30, 70"),
        ("$x_{max}=\\boxed{3}$, $x_{min}=\\boxed{7}$", "3, 7"),
        ("$x_{\\text{max}}=\\boxed{3}, x_{\\text{min}}=\\boxed{7}$", "3, 7"),
        ("$AB=\\boxed{3}$, total = \\boxed{7}", "7"),
    ),
    *(("\\boxed{\\frac 1 2/3}", "1/6"), ("$x y z$", "xyz"), ("\\boxed{z \\cdot y \\cdot x}", "xyz")),
    *(("\\boxed{72}", "The answer is 72."), ("\\boxed{2\\pi}", "As $r=1$, it is so.\nAnswer: 2\\pi")),
    *(
        ("\\boxed{72}", "48 + 24 = <<48+24=72>>72\n#### 72"),
        ("\\boxed{7}", "As $\\boxed{3}$ is prime, it is $\\boxed{7}$."),
    ),
    *(("\\boxed{3}\\text{ or }\\boxed{7}", "3, 7"), ("A \\boxed{\\{1\\}} and then \\boxed{\\{1, 2\\}}.", "\\{1, 2\\}")),
]
OTHER = [
    *(("\\boxed{0.0}", "10^{-7}"), ("\\boxed{0.0}", "\\frac{1}{2^{31}}"), ("\\boxed{0.0}", "e^{-20}")),
    *(
        ("\\boxed{x = 0.0}", "x = 10^{-9}"),
        ("\\boxed{\\{0.0, 1\\}}", "\\{10^{-9}, 1\\}"),
        ("\\boxed{(0.0, 1)}", "(10^{-9}, 1)"),
        ("\\boxed{\\begin{pmatrix}0.0\\\\1\\end{pmatrix}}", "\\begin{pmatrix}10^{-9}\\\\1\\end{pmatrix}"),
    ),
    *(
        ("\\boxed{6.63\\times 10^{-34}}", "1.6\\times 10^{-19}"),
        ("\\boxed{1250\\%}", "12.5\\%"),
        ("\\boxed{5000\\%}", "50\\%"),
        ("\\boxed{0.5\\%}", "0.5 + 0.005"),
    ),
    *(("\\boxed{5/2}", "7 3/4"), ("\\boxed{235}", "1\\,234"), ("\\boxed{2i}", "(1-i)^2"), ("\\boxed{1}", "e^{i\\pi}")),
    *(("\\boxed{x > 3}", "(2,\\infty)"), ("\\boxed{x \\ge 2}", "(2,\\infty)"), ("\\boxed{south}", "north")),
    *(("\\boxed{DCBA}", "ABCD"), ("\\boxed{Evleyn}", "Evelyn"), ("\\boxed{5}", "north"), ("I don't know", "north")),
    *(
        ("\\boxed{D C B A}", "ABCD"),
        ("$DCBA$", "ABCD"),
        ("\\boxed{(DCBA)}", "ABCD"),
        ("\\boxed{\\{D\\,CBA\\}}", "ABCD"),
    ),
    *(("$AB=\\boxed{3}$ and $CD=\\boxed{7}$", "7"), ("\\boxed{7}, but AB is \\boxed{3}", "7")),
    *(("\\boxed{48}", "48 + 24 = 72\n#### 72"), ("\\boxed{3}", "As $\\boxed{3}$ is prime, it is $\\boxed{7}$.")),
    *(("\\boxed{7}, so \\boxed{3}", "7"), ("\\boxed{3}, \\boxed{7}", "7"), ("\\boxed{3} or \\boxed{7}", "7")),
]


@pytest.mark.parametrize(("response", "gold"), SAME)
def test_one_answer_is_the_same_in_whatever_way_it_is_written(response: str, gold: str) -> None:
    assert maths.same_answer(response, gold) == (True, "the same")


@pytest.mark.parametrize(("response", "gold"), OTHER)
def test_another_answer_is_another_in_whatever_way_it_is_written(response: str, gold: str) -> None:
    assert maths.same_answer(response, gold)[0] is False


def ways(number: int, power: int) -> list[str]:
    """To write number * 10**power."""
    digits = str(number)
    of_one = f"{digits[0]}.{digits[1:] or 0} \\times 10^{{{power + len(digits) - 1}}}"
    fraction = f"\\frac{{{number}}}{{10^{{{-power}}}}}" if power < 0 else f"{number} \\cdot 10^{{{power}}}"
    times = f"{number} \\times 10^{{{power}}}"
    return [of_one, fraction, times, f"x = {times}", f"{Decimal(number).scaleb(power):f}"]


WAY = st.integers(0, 4)


@given(st.integers(1, 999_999), st.integers(-40, 3), st.integers(2, 10**7), st.booleans(), WAY, WAY, WAY)
@settings(max_examples=examples(100))
def test_a_number_is_itself_in_whatever_way_and_no_other_of_any_size(
    number: int, power: int, off: int, up: bool, one: int, two: int, three: int
) -> None:
    gold = ways(number, power)[one]
    assert maths.same_answer(f"\\boxed{{{ways(number, power)[two]}}}", gold)[0] is True
    moved = max(0, number * 10**5 + (number * off if up else -number * off))
    given = ways(moved, power - 5)[three] if moved else "0.0"
    assert maths.same_answer(f"\\boxed{{{given}}}", gold)[0] is False


@pytest.mark.parametrize("text", ["{} 3/4", "1 {}/{}", "\\boxed{{{}}}", "\\boxed{{{} {}}}"])
@pytest.mark.parametrize("part", ["1", "{", ". ", "\\boxed{", "1 234 ", "in "])
def test_no_length_of_a_response_makes_an_error_of_it(text: str, part: str) -> None:
    long = spelling.spelled(text.format(part * 6000, part * 6000))
    assert spelling.words(long) != ""


def test_an_answer_that_is_endless_to_work_out_is_cut_off_and_the_pool_goes_on(pooled: Pooled) -> None:
    reward = pooled.score(MathsTask("\\boxed{9^{9^{9^{9}}}}", "4"))
    assert reward.score in (None, 0.0), reward
    assert pooled.score(MathsTask("\\boxed{4}", "4")).value == 1.0


def test_an_unreadable_gold_answer_is_an_error_and_not_the_responses_fault(pooled: Pooled) -> None:
    reward = pooled.score(MathsTask("\\boxed{4}", ""))
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert "gold" in reward.detail


@pytest.mark.parametrize("gold", ["0.\\dot{36}", "0.333...", "33\\frac13\\%", "\\{x \\mid x>2\\}", "\\frac{1"])
def test_a_gold_answer_that_is_no_formula_and_no_words_is_an_error_unless_it_is_given_in_the_same_letters(
    gold: str,
) -> None:
    assert maths.same_answer(f"\\boxed{{{gold}}}", gold)[0] is True
    assert maths.same_answer("\\boxed{4}", gold) == (None, f"the gold answer {gold!r} can't be read")


def test_a_part_that_is_missing_makes_an_error_of_what_the_verifier_calls_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = ("The answer is $p^2 + 2p + 1$", "(p+1)^2")
    for name in ("sympy.tensor.tensor", "sympy.physics.units"):
        monkeypatch.setitem(sys.modules, name, None)
    assert maths.same_answer(*answers) == (False, "another answer")
    same, detail = maths.compared(*answers)
    assert same is None
    assert "sympy" in detail


def test_an_answer_for_which_memory_is_short_is_never_called_another_answer() -> None:
    async def scored() -> list[Reward]:
        task = MathsTask("\\boxed{\\sin(2q) + q^2 + 2q}", "2\\sin q\\cos q + (q+1)^2 - 1")
        async with Sandbox(list(Concern), warm=["rollmux.runtime.rewards.maths:warm"]) as sandbox:
            sizes = [None, 64 * MIB, 80 * MIB, 82 * MIB, 84 * MIB]
            scorers = [MathsScorer(sandbox, RunLimits(address_bytes=size)) for size in sizes]
            return [await scorer.score(task) for scorer in scorers]

    rewards = asyncio.run(scored())
    assert rewards[0].score == 1.0
    assert [reward for reward in rewards if reward.status is Status.SCORE and reward.score != 1.0] == []
    assert rewards[1].status is Status.ERROR
