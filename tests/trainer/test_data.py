"""The order of prompts: once in each epoch, and a matter of seed and position alone."""

from hypothesis import given
from hypothesis import strategies as st

from rollmux.trainer.data import Data

COUNTS = st.integers(1, 30)
SEEDS = st.integers(0, 2**63)


@given(COUNTS, SEEDS, st.integers(1, 4))
def test_every_epoch_has_every_prompt_once(count: int, seed: int, epochs: int) -> None:
    data = Data(count, seed)
    drawn = [data.draw() for _ in range(count * epochs)]
    for epoch in range(epochs):
        assert sorted(prompt.id for prompt in drawn if prompt.epoch == epoch) == list(range(count))


@given(COUNTS, SEEDS, st.integers(0, 100), st.integers(1, 50))
def test_drawing_goes_on_from_a_position_as_if_it_had_never_stopped(count: int, seed: int, at: int, more: int) -> None:
    whole = Data(count, seed)
    before = [whole.draw() for _ in range(at)]
    resumed = Data(count, seed, whole.position)
    assert len(before) == resumed.position
    assert [resumed.draw() for _ in range(more)] == [whole.draw() for _ in range(more)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[object]:
        data = Data(50, seed, 50 * epoch)
        return [data.draw().id for _ in range(50)]

    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 0) == order(0, 0)
