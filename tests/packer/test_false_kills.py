"""The bound on a share holds as often as it says, against exact binomial probabilities."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer.false_kills import FalseKills, largest_share


def at_most(hits: int, trials: int, share: Fraction) -> Fraction:
    return sum((comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits + 1)), start=Fraction(0))


@given(trials=st.integers(1, 60), data=st.data())
def test_at_the_bound_so_few_hits_have_a_chance_of_one_in_twenty(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials - 1))
    bound = Fraction(largest_share(hits, trials))
    assert hits / trials < bound <= 1
    assert float(at_most(hits, trials, bound)) == pytest.approx(0.05)


@given(trials=st.integers(1, 40), share=st.fractions(0, 1))
def test_the_bound_is_above_the_truth_in_at_least_95_of_100_samples(trials: int, share: Fraction) -> None:
    """Summed over all samples that could come up, exactly."""
    covered = sum(
        (
            comb(trials, hits) * share**hits * (1 - share) ** (trials - hits)
            for hits in range(trials + 1)
            if largest_share(hits, trials) >= share - Fraction(1, 10**9)
        ),
        start=Fraction(0),
    )
    assert covered >= Fraction(95, 100) - Fraction(1, 10**6)


@given(trials=st.integers(1, 200), data=st.data())
def test_the_bound_falls_with_trials_and_rises_with_hits(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    assert largest_share(hits, trials + 1) <= largest_share(hits, trials)
    assert largest_share(hits, trials + 1) <= largest_share(hits + 1, trials + 1)


def test_known_bounds() -> None:
    assert largest_share(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert largest_share(3, 100) == pytest.approx(0.0757, abs=5e-5)
    assert largest_share(0, 10**6) == pytest.approx(3e-6, rel=0.01)
    assert largest_share(5, 5) == 1.0


def test_without_audits_nothing_is_estimated_and_everything_is_possible() -> None:
    counts = FalseKills(runs=200, killed=10)
    assert counts.estimate is None
    assert counts.of_runs is None
    assert counts.upper == 1.0
    assert counts.of_runs_upper == pytest.approx(0.05)
    assert FalseKills().of_runs_upper == 0.0


def test_the_rate_over_all_runs_is_the_share_of_kills_times_kills_per_run() -> None:
    counts = FalseKills(runs=1000, killed=50, audited=20, would_have_passed=1)
    assert counts.estimate == pytest.approx(0.05)
    assert counts.of_runs == pytest.approx(0.0025)
    assert counts.of_runs_upper == pytest.approx(counts.upper * 0.05)
