"""Many nodes in a narrow column."""

import pytest

from rollmux.cli.nodes import few_words


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("rollout-0",), "rollout-0"),
        (("rollout-4", "rollout-2", "rollout-0"), "rollout-4,2,0"),
        (("train-1", "train-10"), "train-1,10"),
        (("a", "b"), "a, b"),
        (tuple(f"rollout-{i}" for i in range(9)), "rollout-0,…,8"),
    ],
)
def test_nodes_are_told_in_few_words(names: tuple[str, ...], told: str) -> None:
    assert few_words(names) == told
