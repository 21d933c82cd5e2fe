"""An objective that contradicts itself can't be made."""

from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.trainer.update import Baseline, Loss, Objective


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"clip_low": None}, "give both"),
        ({"clip_low": 0.0}, "0.2 clips"),
        ({"clip_high": -0.2}, "0.28 clips"),
        ({"baseline": Baseline.NONE}, "take the baseline group-mean"),
        ({"baseline": Baseline.BATCH_MEAN, "group_std": False, "whiten": True}, "whitening takes the batch's mean"),
        ({"loss": Loss.SUM}, "grow with the batch"),
        ({"group_size": 1}, "the responses to each prompt"),
        ({"epsilon": 0.0}, "finite"),
    ],
)
def test_a_contradiction_is_refused_with_its_remedy(wrong: dict[str, Any], remedy: str) -> None:
    with pytest.raises(InvalidSpec, match=remedy):
        Objective(**wrong)


def test_the_named_objectives_are_those_of_their_papers() -> None:
    grpo, dapo, plain = Objective.grpo(8), Objective.dapo(8), Objective.reinforce(Baseline.NONE)
    assert (grpo.clip_low, grpo.clip_high, grpo.loss, grpo.drop_equal_groups) == (0.2, 0.2, Loss.SAMPLE_MEAN, False)
    assert (dapo.clip_low, dapo.clip_high, dapo.loss, dapo.drop_equal_groups) == (0.2, 0.28, Loss.TOKEN_MEAN, True)
    assert (plain.clip_low, plain.group_std, plain.needs_group, plain.needs_batch) == (None, False, False, False)
