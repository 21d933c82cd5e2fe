"""Lengths in bounded memory: quantiles and distances against those of the plain lists."""

import json
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer import LengthBias
from rollmux.packer.lengths import Lengths, kolmogorov_smirnov, wasserstein

TOKENS = st.integers(0, 3) | st.integers(0, 200_000)
BIN = 0.02


def counted(values: list[int]) -> Lengths:
    lengths = Lengths()
    for tokens in values:
        lengths.add(tokens)
    return lengths


def share_up_to(values: list[int], tokens: float) -> float:
    return sum(value <= tokens for value in values) / len(values)


@given(st.lists(TOKENS, min_size=1), st.floats(0.01, 1.0))
def test_means_are_exact_and_quantiles_within_a_bin(values: list[int], share: float) -> None:
    lengths = counted(values)
    assert lengths.count == len(values)
    assert lengths.mean == pytest.approx(fmean(values))
    found = lengths.quantile(share)
    assert share_up_to(values, found * (1 + BIN)) >= share - 1e-9
    assert share_up_to(values, found * (1 - BIN) - 1e-9) < share + 1e-9


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=40))
def test_the_distance_between_two_lists_is_how_far_each_has_to_move(pairs: list[tuple[int, int]]) -> None:
    one, other = sorted(a for a, _ in pairs), sorted(b for _, b in pairs)
    exact = fmean(abs(a - b) for a, b in zip(one, other, strict=True))
    found = wasserstein(counted(one), counted(other))
    assert found == pytest.approx(exact, abs=BIN * (fmean(one) + fmean(other)) / 2 + 0.01)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_largest_gap_between_two_lists(one: list[int], other: list[int]) -> None:
    exact = max(abs(share_up_to(one, tokens) - share_up_to(other, tokens)) for tokens in range(10))
    assert kolmogorov_smirnov(counted(one), counted(other)) == pytest.approx(exact)


@given(st.lists(TOKENS), st.lists(TOKENS))
def test_lengths_are_counted_alike_one_by_one_at_once_and_in_parts(one: list[int], other: list[int]) -> None:
    at_once, parts = Lengths(), counted(one)
    at_once.extend(one + other)
    parts.merge(counted(other))
    assert counted(one + other).state() == at_once.state() == parts.state()
    assert sum(at_once.bins.values()) == at_once.count


def test_a_token_is_more_than_none() -> None:
    assert counted([0]).quantile(1.0) == 0.0
    assert counted([1]).quantile(1.0) == pytest.approx(1.0, rel=BIN)


@given(st.lists(TOKENS), st.lists(TOKENS))
def test_a_length_that_is_taken_back_was_never_there(kept: list[int], taken: list[int]) -> None:
    lengths = counted(kept + taken)
    for tokens in taken:
        lengths.add(tokens, -1)
    assert lengths.count == len(kept)
    assert lengths.mean == pytest.approx(counted(kept).mean)
    assert [lengths.quantile(share) for share in (0.1, 0.5, 1.0)] == [
        counted(kept).quantile(share) for share in (0.1, 0.5, 1.0)
    ]


def test_memory_grows_with_the_range_of_lengths_and_not_with_their_number() -> None:
    assert len(counted(list(range(100_000))).bins) < 600


def biased() -> LengthBias:
    """Of the lengths 10 and 30 in code only the 10 are trained, in math both."""
    bias = LengthBias()
    for domain in ("math", "code"):
        for tokens in (10, 30):
            bias.offered(domain, [tokens])
            if domain == "math" or tokens == 10:
                bias.trained(domain, [tokens])
    return bias


def test_the_report_compares_what_was_trained_with_what_was_offered_by_domain_and_overall() -> None:
    report = biased().report()
    assert list(report.domains) == ["code", "math"]
    math, code = report.domains["math"], report.domains["code"]
    assert (math.kolmogorov_smirnov, math.wasserstein, math.mean_shift) == (0.0, 0.0, 0.0)
    assert math.offered == math.trained
    assert code.kolmogorov_smirnov == 0.5
    assert code.wasserstein == pytest.approx(0.5, rel=BIN)
    assert code.mean_shift == pytest.approx(-0.5)
    assert (code.offered.responses, code.trained.responses, code.trained.mean) == (2, 1, 10.0)
    assert report.overall.mean_shift == pytest.approx((50 / 3 - 20) / 20)
    assert report.overall.offered.p99 == pytest.approx(30, rel=BIN)


def test_nothing_offered_and_nothing_trained_is_no_bias() -> None:
    empty = LengthBias().report()
    assert empty.domains == {}
    assert (empty.overall.wasserstein, empty.overall.mean_shift) == (0.0, 0.0)
    nothing = LengthBias()
    nothing.offered("code", [])  # as of a prompt whose responses failed before they had a length
    assert (nothing.report(), nothing.state()) == (empty, LengthBias().state())
    offered_only = LengthBias()
    offered_only.offered("", [5])
    assert offered_only.report().overall.mean_shift == 0.0


def test_a_report_goes_on_where_it_was() -> None:
    restored = LengthBias.from_state(json.loads(json.dumps(biased().state())))
    assert restored.report() == biased().report()
    restored.trained("code", [30])
    assert restored.report().domains["code"].wasserstein == 0.0
