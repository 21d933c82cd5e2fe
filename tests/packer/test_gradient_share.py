"""Streamed gradients equal the synchronous one: exactly, whatever the loss, the chunks, their order and the ranks."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent, InvalidSpec
from rollmux.packer.gradient_share import (
    Count,
    Given,
    GradientShare,
    Loss,
    Pass,
    StreamedBatch,
    Whitening,
)

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


@given(
    share=SHARES,
    chunks=CHUNKS,
    whitening=st.sampled_from(Whitening),
    total_known=st.booleans(),
    ranks=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_a_streamed_update_is_the_synchronous_one(
    share: GradientShare, chunks: list[Chunk], whitening: Whitening, total_known: bool, ranks: list[int]
) -> None:
    total = count(joined(chunks)) if total_known else None
    batch = StreamedBatch(share, whitening, total)
    accumulated = Ranks([Fraction(0)] * share.averaged_ranks)
    by_name = {str(n): (chunk, ranks[n] % share.averaged_ranks) for n, chunk in enumerate(chunks)}
    works = [batch.add(name, count(chunk)) for name, (chunk, _) in by_name.items()]
    closing = batch.close()
    trained = [work for work in (*works, *closing.work) if work.kind is Pass.GRADIENT]
    assert sorted(work.chunk for work in trained) == sorted(by_name)
    for work in trained:
        chunk, rank = by_name[work.chunk]
        assert work.weight is not None
        accumulated.sums[rank] += work.weight * backward(share, chunk)
    update = accumulated.exchanged(averaged=True) * closing.scale
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


@given(share=SHARES, chunks=CHUNKS, whitening=st.sampled_from((Whitening.DEFER, Whitening.TWO_PASS)))
def test_advantages_of_the_whole_batch_allow_no_gradient_before_its_end(
    share: GradientShare, chunks: list[Chunk], whitening: Whitening
) -> None:
    batch = StreamedBatch(share, whitening)
    works = [batch.add(str(n), count(chunk)) for n, chunk in enumerate(chunks)]
    allowed = Pass.FORWARD if whitening is Whitening.TWO_PASS else Pass.NOTHING
    assert {work.kind for work in works} == {allowed}
    assert {work.weight for work in works} == {None}
    assert {work.kind for work in batch.close().work} == {Pass.GRADIENT}


@given(share=SHARES, chunks=CHUNKS)
def test_a_chunk_that_is_refused_changes_nothing(share: GradientShare, chunks: list[Chunk]) -> None:
    batch, twin = (StreamedBatch(share, total=count(joined(chunks))) for _ in range(2))
    for n, chunk in enumerate(chunks):
        assert batch.add(str(n), count(chunk)) == twin.add(str(n), count(chunk))
        with pytest.raises(IllegalEvent, match="count twice"):
            batch.add(str(n), count(chunk))
    with pytest.raises(IllegalEvent, match="more than the batch"):
        batch.add("one too many", Count(1, 0))
    assert batch.close() == twin.close()
    for late in (batch.close, lambda: batch.add("late", Count(1, 1))):
        with pytest.raises(IllegalEvent, match="closed"):
            late()


def test_a_batch_that_is_not_what_was_announced_is_not_closed() -> None:
    batch = StreamedBatch(GradientShare(Loss.SAMPLE_MEAN, Given.SUM), total=Count(2, 10))
    with pytest.raises(IllegalEvent, match="without chunks"):
        batch.close()
    batch.add("a", Count(1, 5))
    with pytest.raises(IllegalEvent, match="was to be"):
        batch.close()
    with pytest.raises(IllegalEvent, match="more than"):
        batch.add("b", Count(1, 6))
    batch.add("b", Count(1, 5))
    assert batch.close().scale == 1


def test_a_chunk_of_a_batch_without_trained_tokens_is_refused_as_often_as_it_comes() -> None:
    batch = StreamedBatch(GradientShare(Loss.TOKEN_MEAN, Given.SUM), total=Count(2, 0))
    for _ in range(2):
        with pytest.raises(IllegalEvent, match="skip its update"):
            batch.add("masked", Count(1, 0))
    with pytest.raises(IllegalEvent, match="without chunks"):
        batch.close()


def test_a_chunk_that_is_masked_altogether_counts_as_responses_and_not_as_tokens() -> None:
    total = Count(4, 10)
    assert GradientShare(Loss.TOKEN_MEAN, Given.MEAN).weight(Count(1, 0), total) == 0
    assert GradientShare(Loss.SAMPLE_MEAN, Given.MEAN).weight(Count(1, 0), total) == Fraction(1, 4)
    batch = StreamedBatch(GradientShare(Loss.TOKEN_MEAN, Given.SUM))
    batch.add("masked", Count(2, 0))
    with pytest.raises(IllegalEvent, match="skip its update"):
        batch.close()
    batch.add("trained", Count(2, 8))
    assert batch.close().scale == Fraction(1, 8)


def test_counts_and_shares_report_all_that_is_wrong_with_them() -> None:
    with pytest.raises(InvalidSpec) as wrong:
        Count(0, -1)
    assert len(wrong.value.problems) == 2
    with pytest.raises(InvalidSpec, match="averaged_ranks"):
        GradientShare(Loss.SUM, Given.SUM, 0)
