"""How samples are put together for one pass."""

from hypothesis import given
from hypothesis import strategies as st

from rollmux.trainer.update.micro_batches import PASS_TOKENS, micro_batches

WIDTHS = st.lists(st.integers(1, 300), max_size=60)


@given(WIDTHS, st.integers(1, 2000))
def test_each_sample_is_in_one_batch_within_the_budget_and_little_padded(widths: list[int], budget: int) -> None:
    batches = micro_batches(widths, budget)
    assert sorted(place for batch in batches for place in batch) == list(range(len(widths)))
    for batch in batches:
        rows = [widths[place] for place in batch]
        assert len(batch) == 1 or max(rows) * len(batch) <= budget
        assert max(rows) * len(rows) - sum(rows) <= PASS_TOKENS


def test_equal_widths_fill_the_budget() -> None:
    assert [len(batch) for batch in micro_batches([10] * 25, 100)] == [10, 10, 5]
