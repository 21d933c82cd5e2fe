"""Streamed gradients equal the synchronous one: exactly, whatever the loss, the chunks, their order and the ranks."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent, InvalidSpec
from rollmux.packer.gradient_share import Count, Given, GradientShare, Loss

Response = list[Fraction]  # the gradient of each of its tokens
Chunk = list[Response]
TOKENS = st.integers(-50, 50).map(lambda n: Fraction(n, 7))
RESPONSES = st.lists(TOKENS, min_size=1, max_size=5)
CHUNKS = st.lists(st.lists(RESPONSES, min_size=1, max_size=4), min_size=1, max_size=6)
SHARES = st.builds(GradientShare, st.sampled_from(Loss), st.sampled_from(Given), st.integers(1, 4))


def units(loss: Loss, responses: Chunk) -> list[Fraction]:
    """What the loss adds up: a response's own mean, or each token."""
    if loss is Loss.TOKEN_MEAN:
        return [token for response in responses for token in response]
    return [sum(response, Fraction(0)) / len(response) for response in responses]


def synchronous(loss: Loss, responses: Chunk) -> Fraction:
    parts = units(loss, responses)
    return sum(parts, Fraction(0)) / (1 if loss is Loss.SUM else len(parts))


def backward(share: GradientShare, chunk: Chunk) -> Fraction:
    """What a framework accumulates for one chunk."""
    parts = units(share.loss, chunk)
    return sum(parts, Fraction(0)) / (len(parts) if share.given is Given.MEAN else 1)


def count(chunk: Chunk) -> Count:
    return Count(len(chunk), sum(map(len, chunk)))


def joined(chunks: list[Chunk]) -> Chunk:
    return [response for chunk in chunks for response in chunk]


@dataclass
class Ranks:
    """Accumulators of several ranks, and the one exchange after the rollout."""

    sums: list[Fraction]

    def exchanged(self, averaged: bool) -> Fraction:
        return sum(self.sums, Fraction(0)) / (len(self.sums) if averaged else 1)


@given(share=SHARES, chunks=CHUNKS, ranks=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_streamed_update_is_the_synchronous_one(share: GradientShare, chunks: list[Chunk], ranks: list[int]) -> None:
    accumulated = Ranks([Fraction(0)] * share.averaged_ranks)
    for chunk, rank in zip(chunks, ranks, strict=False):
        accumulated.sums[rank % share.averaged_ranks] += share.to_sum(count(chunk)) * backward(share, chunk)
    update = accumulated.exchanged(averaged=True) * share.at_end(count(joined(chunks)))
    assert update == synchronous(share.loss, joined(chunks))


@given(share=SHARES, chunks=CHUNKS)
def test_weights_alone_are_enough_where_the_total_is_known(share: GradientShare, chunks: list[Chunk]) -> None:
    total = count(joined(chunks))
    combined = sum((share.weight(count(chunk), total) * backward(share, chunk) for chunk in chunks), Fraction(0))
    assert combined == synchronous(share.loss, joined(chunks)) * share.averaged_ranks


@given(chunks=CHUNKS)
def test_the_three_rules_by_name(chunks: list[Chunk]) -> None:
    """Means combine with n/N, sums with 1/N, means over tokens with t/T."""
    total = count(joined(chunks))
    for chunk in map(count, chunks):
        samples = Fraction(chunk.samples, total.samples)
        assert GradientShare(Loss.SAMPLE_MEAN, Given.MEAN).weight(chunk, total) == samples
        assert GradientShare(Loss.SAMPLE_MEAN, Given.SUM).weight(chunk, total) == Fraction(1, total.samples)
        assert GradientShare(Loss.TOKEN_MEAN, Given.MEAN).weight(chunk, total) == Fraction(chunk.tokens, total.tokens)
        assert GradientShare(Loss.SUM, Given.SUM).weight(chunk, total) == 1


def test_sums_weighted_by_their_share_as_the_paper_words_it_are_not_the_synchronous_gradient() -> None:
    chunks: list[Chunk] = [[[Fraction(1)]], [[Fraction(1)], [Fraction(1)], [Fraction(1)]]]
    share, total = GradientShare(Loss.SAMPLE_MEAN, Given.SUM), count(joined(chunks))
    worded = sum((backward(share, chunk) * Fraction(len(chunk), total.samples) for chunk in chunks), Fraction(0))
    assert synchronous(share.loss, joined(chunks)) == 1
    assert worded == Fraction(10, 4)


def test_an_exchange_that_averages_over_two_ranks_halves_gradients_unless_the_weights_know() -> None:
    chunks: list[Chunk] = [[[Fraction(4)]], [[Fraction(8)]]]
    total = count(joined(chunks))
    for ranks, update in ((1, Fraction(3)), (2, Fraction(6))):
        share = GradientShare(Loss.SAMPLE_MEAN, Given.MEAN, ranks)
        sums = [share.weight(count(chunk), total) * backward(share, chunk) for chunk in chunks]
        assert Ranks(sums).exchanged(averaged=True) == update
    assert synchronous(Loss.SAMPLE_MEAN, joined(chunks)) == 6


def test_a_batch_without_trained_tokens_has_no_mean_over_tokens() -> None:
    with pytest.raises(IllegalEvent, match="skip its update"):
        GradientShare(Loss.TOKEN_MEAN, Given.SUM).at_end(Count(2, 0))


def test_a_chunk_that_is_masked_altogether_counts_as_responses_and_not_as_tokens() -> None:
    total = Count(4, 10)
    assert GradientShare(Loss.TOKEN_MEAN, Given.MEAN).weight(Count(1, 0), total) == 0
    assert GradientShare(Loss.SAMPLE_MEAN, Given.MEAN).weight(Count(1, 0), total) == Fraction(1, 4)


def test_counts_and_shares_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as wrong:
        Count(0, -1)
    assert len(wrong.value.problems) == 2
    with pytest.raises(InvalidSpec, match="averaged_ranks"):
        GradientShare(Loss.SUM, Given.SUM, 0)
