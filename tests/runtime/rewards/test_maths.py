"""Maths answers: equal however they are written, and a hang is a timeout, not a wrong answer."""

import pytest

from rollmux.runtime.rewards import MathsTask, Status
from tests.runtime.rewards.world import Pooled


@pytest.mark.parametrize(
    ("response", "gold", "score"),
    [
        ("It is \\boxed{\\frac{1}{2}}.", "0.5", 1.0),
        ("It is \\boxed{0.5}.", "\\frac12", 1.0),
        pytest.param(
            "The answer is $x^2 + 2x + 1$", "(x+1)^2", 1.0, marks=pytest.mark.slow
        ),  # see docs/design/rewards.md
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
    assert reward.status is Status.TIMEOUT or reward.score == 0.0, reward
    assert reward.status is not Status.ERROR
    assert pooled.score(MathsTask("\\boxed{4}", "4")).value == 1.0


def test_an_unreadable_gold_answer_is_an_error_and_not_the_responses_fault(pooled: Pooled) -> None:
    reward = pooled.score(MathsTask("\\boxed{4}", ""))
    assert (reward.status, reward.score) == (Status.ERROR, None)
    assert "gold" in reward.detail
