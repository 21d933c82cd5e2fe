"""How samples are put together for one pass."""

from hypothesis import given
from hypothesis import strategies as st

from rollmux.trainer.sample import Sample
from rollmux.trainer.update.micro_batches import PASS_TOKENS, micro_batches, shared_rows

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


def sample(prompt: int, length: int, name: int = 0, group: str = "one") -> Sample:
    """A prompt of so many tokens, one for each name."""
    return Sample((name,) * prompt, (1,) * length, (0.0,) * length, (0,) * length, 0.0, group)


GROUPS = st.sampled_from(["one", "two"])
SAMPLES = st.lists(st.builds(sample, st.integers(1, 40), st.integers(1, 60), st.integers(0, 2), GROUPS), max_size=30)


@given(SAMPLES, st.integers(1, 300), st.sampled_from([0.0, 3.0, 1000.0, 1e12]))
def test_each_sample_is_in_one_row_of_its_prompt_within_the_budget(
    samples: list[Sample], budget: int, pairs_per_token: float
) -> None:
    rows = shared_rows(samples, budget, pairs_per_token)
    assert sorted(place for row in rows for place in row) == list(range(len(samples)))
    for group in ("one", "two"):
        mine = [place for place, each in enumerate(samples) if each.group == group]
        alone = shared_rows([samples[place] for place in mine], budget, pairs_per_token)
        assert [[mine[place] for place in row] for row in alone] == [row for row in rows if row[0] in mine]
    for row in rows:
        ((prompt, _),) = {(samples[place].prompt, samples[place].group) for place in row}
        assert len(row) == 1 or len(prompt) + sum(len(samples[place].tokens) for place in row) <= budget
        assert len(row) == 1 or pairs_per_token > 0


def test_a_prompt_is_shared_where_that_is_less_work() -> None:
    """Four times 100 and 10 tokens: 300 fewer of them, and fewer pairs. Four times 10 and 100: 30, for 119,700 more."""
    long, short = [sample(100, 10)] * 4, [sample(10, 100)] * 4
    assert shared_rows(long, 1024, 1.0) == [[0, 1, 2, 3]]
    assert shared_rows(short, 1024, 3000.0) == [[0], [1], [2], [3]]
    assert shared_rows(short, 1024, 6000.0) == [[0, 1, 2, 3]]
    assert shared_rows(long, 1024, 0.0) == [[0], [1], [2], [3]]
    assert shared_rows(long, 120, 1.0) == [[0, 1], [2, 3]]
