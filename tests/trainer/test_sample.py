"""What a sample must be to be trained."""

from math import inf, nan
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.trainer.sample import Sample

RIGHT: dict[str, Any] = {
    "prompt": (1, 2), "tokens": (3, 4), "logprobs": (-0.5, 0.0), "versions": (7, 7), "reward": 1.0, "group": "a",
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ()},
        {"prompt": (1, -1)},
        {"tokens": (), "logprobs": (), "versions": ()},
        {"tokens": (3, -100)},
        {"logprobs": (-0.5,)},
        {"versions": (7, 7, 7)},
        {"logprobs": (-0.5, nan)},
        {"logprobs": (-0.5, -inf)},
        {"logprobs": (-0.5, 0.7)},
        {"reward": nan},
        {"reward": inf},
        {"reward": None},
        {"group": ""},
    ],
)
def test_a_sample_that_could_not_be_trained_is_refused_with_the_remedy(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        Sample(**RIGHT | wrong)
    named = [problem.path for problem in refused.value.problems]
    assert named[0] in {"sample.tokens", *(f"sample.{name}" for name in wrong)}


def test_its_length_is_that_of_prompt_and_response() -> None:
    assert Sample(**RIGHT).length == 4
