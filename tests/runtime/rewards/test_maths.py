"""Maths answers: equal however they are written; a hang is a timeout and a failure an error, not a wrong answer."""

import asyncio
import sys

import pytest

from rollmux.runtime.rewards import MathsTask, Reward, Status, maths
from rollmux.runtime.rewards.maths import MathsScorer
from rollmux.runtime.sandbox import Concern, RunLimits, Sandbox
from rollmux.runtime.sandbox.limits import MIB
from tests.runtime.rewards.world import Pooled


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


def test_an_answer_that_is_endless_to_work_out_is_cut_off_and_the_pool_goes_on(pooled: Pooled) -> None:
    reward = pooled.score(MathsTask("\\boxed{9^{9^{9^{9}}}}", "4"))
    assert reward.score in (None, 0.0), reward
    assert pooled.score(MathsTask("\\boxed{4}", "4")).value == 1.0


def test_an_unreadable_gold_answer_is_an_error_and_not_the_responses_fault(pooled: Pooled) -> None:
    reward = pooled.score(MathsTask("\\boxed{4}", ""))
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert "gold" in reward.detail


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
