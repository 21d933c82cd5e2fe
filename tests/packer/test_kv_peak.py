"""Projected peaks against requests that grow token by token, and lengths that are never projected too short."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rollmux.packer.kv_peak import KnownLengths, peak_tokens

REQUESTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12)
LENGTHS = st.lists(st.integers(1, 100), max_size=40)


def grown(requests: list[tuple[int, int]]) -> int:
    """The most held together, a token at a time; a request that has ended holds nothing."""
    return max(
        (sum(held + step for held, left in requests if left >= step) for step in range(51)),
        default=0,
    )


@given(requests=REQUESTS)
def test_the_peak_is_that_of_growing_token_by_token(requests: list[tuple[int, int]]) -> None:
    assert peak_tokens(requests) == grown(requests)


@given(requests=REQUESTS.filter(bool), data=st.data())
def test_longer_requests_never_lower_the_peak(requests: list[tuple[int, int]], data: st.DataObject) -> None:
    longer = [(held, left + data.draw(st.integers(0, 20))) for held, left in requests]
    assert peak_tokens(longer) >= peak_tokens(requests)


@given(
    past=LENGTHS,
    cap=st.integers(1, 120),
    support=st.integers(1, 10),
    running=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 100), st.integers(0, 99)), max_size=10),
)
def test_at_quantile_1_the_projected_peak_is_never_below_what_a_known_history_needs(
    past: list[int], cap: int, support: int, running: list[tuple[int, int, int]]
) -> None:
    """The true final lengths are in the history, as any within the cap are."""
    now = [(prompt, min(final, cap), tokens % min(final, cap)) for prompt, final, tokens in running]
    history = [*past, *(final for _, final, _ in now)]
    known = KnownLengths(history, cap_tokens=cap, quantile=1.0, support=support)
    projected = peak_tokens((prompt + tokens, known.final(tokens) - tokens) for prompt, _, tokens in now)
    assert projected >= grown([(prompt + tokens, final - tokens) for prompt, final, tokens in now])


@given(past=LENGTHS, tokens=st.integers(0, 110), quantile=st.integers(0, 100), support=st.integers(1, 10))
def test_a_projected_length_is_the_quantile_of_those_longer_or_the_cap(
    past: list[int], tokens: int, quantile: int, support: int
) -> None:
    final = KnownLengths(past, cap_tokens=90, quantile=quantile / 100, support=support).final(tokens)
    longer = [length for length in past if length > tokens]
    assert final >= tokens
    if len(longer) < support:
        assert final == max(90, tokens)
        return
    capped = [min(length, max(90, tokens)) for length in longer]
    assert final in capped
    assert Fraction(sum(length <= final for length in capped), len(longer)) >= Fraction(quantile, 100)
    assert Fraction(sum(length < final for length in capped), len(longer)) <= Fraction(quantile, 100)


@given(past=LENGTHS, tokens=st.integers(0, 110), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_higher_quantile_never_projects_less(past: list[int], tokens: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    finals = [KnownLengths(past, cap_tokens=90, quantile=q, support=3).final(tokens) for q in (low, high)]
    assert finals[0] <= finals[1]
