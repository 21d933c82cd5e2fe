"""Advantages follow from which responses there are, and from nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent
from rollmux.trainer.update.ledger import Entry, Ledger, Spread
from rollmux.trainer.update.objective import Baseline, Objective

REWARDS = st.floats(-1e3, 1e3) | st.sampled_from([0.1, 0.3])
ENTRIES = st.lists(st.builds(Entry, st.sampled_from("abc"), REWARDS, st.integers(1, 99)), min_size=1, max_size=12)
WHITENED = Objective(whiten=True, drop_equal_groups=True)


def ledger(objective: Objective, entries: Sequence[Entry]) -> Ledger:
    made = Ledger(objective)
    made.book(entries)
    return made


@settings(deadline=None)
@given(st.data(), ENTRIES)
def test_the_order_of_arrival_does_not_change_a_bit(data: st.DataObject, entries: list[Entry]) -> None:
    other = data.draw(st.permutations(entries))
    one, two = ledger(WHITENED, entries), ledger(WHITENED, other)
    assert one.whole() == two.whole()
    assert one.own_advantages(entries) == two.own_advantages(entries)


@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_equal_rewards_have_exactly_no_deviation(reward: float, count: int) -> None:
    assert Spread.of([reward] * count) == Spread(reward, 0.0, True)
    entries = [Entry("a", reward, 1)] * count
    assert ledger(Objective.grpo(), entries).own_advantages(entries) == [0.0] * count


def test_the_advantages_of_grpo_are_those_of_its_paper() -> None:
    entries = [Entry("a", reward, 5) for reward in (0.0, 0.0, 1.0, 1.0)]
    entries += [Entry("b", 7.0, 5), Entry("b", 9.0, 5)]
    found = ledger(Objective.grpo(), entries).own_advantages(entries)
    assert found == pytest.approx([-0.8660254] * 2 + [0.8660254] * 2 + [-0.7071068, 0.7071068], abs=1e-5)


def test_dropped_groups_count_neither_as_samples_nor_as_tokens() -> None:
    entries = [Entry("a", 1.0, 100), Entry("a", 1.0, 100), Entry("b", 0.0, 2), Entry("b", 1.0, 3)]
    whole = ledger(Objective.dapo(group_size=2), entries).whole()
    assert whole.total is not None
    assert (whole.total.samples, whole.total.tokens, whole.dropped) == (2, 5, 1)


def test_a_group_may_not_have_more_samples_than_it_should_and_is_refused_without_a_trace() -> None:
    book = ledger(Objective.grpo(group_size=2), [Entry("a", 0.0, 1)])
    with pytest.raises(IllegalEvent, match="'a'"):
        book.book([Entry("b", 0.0, 1), Entry("a", 0.0, 1), Entry("a", 0.0, 1)])
    assert book.entries == [Entry("a", 0.0, 1)]


def test_a_batch_with_an_incomplete_group_is_refused_and_can_be_completed() -> None:
    book = ledger(Objective.grpo(group_size=2), [Entry("a", 0.0, 1), Entry("b", 0.0, 1), Entry("b", 1.0, 1)])
    with pytest.raises(IllegalEvent, match="1 groups, first 'a'"):
        book.whole()
    book.book([Entry("a", 0.0, 1)])
    assert book.whole().total is not None


def test_a_batch_without_samples_is_refused() -> None:
    with pytest.raises(IllegalEvent, match="no sample"):
        Ledger(Objective.grpo()).whole()


def test_a_mean_of_the_batch_is_taken_from_every_reward() -> None:
    entries = [Entry("a", 1.0, 1), Entry("b", 4.0, 1)]
    whole = ledger(Objective.reinforce(Baseline.BATCH_MEAN), entries).whole()
    assert [whole.affine.of(entry.reward) for entry in entries] == [-1.5, 1.5]
