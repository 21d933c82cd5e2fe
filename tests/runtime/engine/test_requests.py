"""What is asked of an engine is checked before anything is done."""

import pickle
from typing import Any

import pytest

from rollmux.errors import InvalidSpec
from rollmux.runtime.engine import Generated, GenerationRequest, Limits, Unfinished

GOOD: dict[str, Any] = {"id": "a", "prompt": (1, 2), "max_tokens": 3}
WRONG: list[dict[str, Any]] = [
    {"id": ""}, {"id": 7}, {"prompt": ()}, {"prompt": [1]}, {"prompt": (1.0,)}, {"prompt": (-1,)}, {"prompt": (True,)},
    {"prompt": (2**31,)}, {"max_tokens": 0}, {"max_tokens": 1.5}, {"temperature": -0.1},
    {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}, {"seed": -1}, {"seed": 2**64},
    {"stop_tokens": (-1,)}, {"stop_tokens": tuple(range(300))},
]  # fmt: skip


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_a_request_described_wrongly_is_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=rf"request\.{next(iter(changed))}"):
        GenerationRequest(**GOOD | changed)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as told:
        GenerationRequest("", (), 0, temperature=-1)
    assert len(told.value.problems) == 4


@pytest.mark.parametrize("name", ["room_tokens", "max_running", "max_length", "prefill_tokens", "page_tokens"])
def test_limits_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match=name):
        Limits(**{"room_tokens": 64} | {name: 0})


def test_records_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="as many"):
        Generated((1,), (), (1,))


def test_an_unfinished_request_goes_through_pickle() -> None:
    unfinished = Unfinished(GenerationRequest(**GOOD), Generated((5,), (-0.5,), (2,)))
    assert pickle.loads(pickle.dumps(unfinished)) == unfinished
