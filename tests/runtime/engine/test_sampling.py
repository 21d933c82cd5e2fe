"""Draws: of the right distribution, and decided by seed and place alone."""

from collections import Counter
from itertools import pairwise
from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmux.runtime.engine import GenerationRequest
from rollmux.runtime.engine.draw import uniform
from rollmux.runtime.engine.sampling import sample

KNOWN = [0.05646639900046091, 0.44008326622012295, 0.6388323458534552]


def asked(temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> GenerationRequest:
    return GenerationRequest("r", (1,), 1, temperature=temperature, top_p=top_p, seed=seed)


def test_draws_are_known_numbers() -> None:
    """Written down, for a change would make responses that move between versions of RollMux go on differently."""
    assert [uniform(0, 0), uniform(0, 1), uniform(2**64 - 1, 2**63)] == KNOWN


def test_draws_are_even_and_do_not_follow_seed_or_place() -> None:
    for numbers in ([uniform(7, place) for place in range(4000)], [uniform(seed, 7) for seed in range(4000)]):
        counts = Counter(int(number * 20) for number in numbers)
        assert sum((counts[cell] - 200) ** 2 / 200 for cell in range(20)) < 43.8  # chi-square, 19 degrees, 0.1 %
        mean = sum(numbers) / 4000
        together = sum((a - mean) * (b - mean) for a, b in pairwise(numbers)) / 4000
        assert abs(together * 12) < 0.06


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary", [7, 700])
def test_tokens_come_as_often_as_they_are_likely(temperature: float, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(1, vocabulary) * 2
    count = 6000
    due = [(asked(temperature, seed=3), place) for place in range(count)]
    found = Counter(token for token, _ in sample(logits.expand(count, -1), due))
    want = torch.softmax(logits[0] / temperature, -1)
    for token in want.topk(5).indices.tolist():
        p = want[token].item()
        assert abs(found[token] - count * p) < 4.5 * (count * p * (1 - p)) ** 0.5 + 1


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p() -> None:
    shares = torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15])
    due = [(asked(top_p=0.69, seed=seed), 0) for seed in range(500)]
    counts = Counter(token for token, _ in sample(shares.log().expand(500, -1), due))
    assert set(counts) == {1, 3}
    assert counts[1] / 500 == pytest.approx(4 / 7, abs=0.09)
    wider = [(asked(top_p=0.71, seed=seed), 0) for seed in range(500)]
    assert {token for token, _ in sample(shares.log().expand(500, -1), wider)} == {1, 3, 4}


@given(st.integers(0, 2**64 - 1), st.integers(2, 600), st.integers(0, 10**6))
def test_a_token_of_probability_zero_is_never_drawn(seed: int, vocabulary: int, place: int) -> None:
    logits = torch.full((1, vocabulary), -torch.inf)
    possible = [seed % vocabulary, place % vocabulary]
    logits[0, possible] = 0.0
    assert sample(logits, [(asked(seed=seed), place)])[0][0] in possible


def test_a_draw_does_not_depend_on_the_rows_beside_it() -> None:
    torch.manual_seed(1)
    logits = torch.randn(40, 500)
    due = [(asked(0.0 if row % 3 == 0 else 1.3, 0.9 if row % 2 else 1.0, seed=row), row) for row in range(40)]
    together = sample(logits, due)
    assert together == [sample(logits[row : row + 1], [due[row]])[0] for row in range(40)]


def test_logprobs_are_the_models_own_whatever_the_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    for request in (asked(0.0), asked(0.2, 0.5), asked(3.0)):
        token, logprob = sample(logits, [(request, 0)])[0]
        assert logprob == pytest.approx(token - torch.logsumexp(logits, -1).item(), abs=1e-6)
        assert exp(logprob) < 1


def test_greedy_takes_the_first_of_equals() -> None:
    assert sample(torch.tensor([[1.0, 3.0, 3.0]]), [(asked(0.0), 0)])[0][0] == 1


@pytest.mark.parametrize(("temperature", "top_p"), [(1e-39, 1.0), (1e-46, 1.0), (1.0, 1e-46), (1e-320, 1e-320)])
def test_what_is_nearly_nothing_takes_the_most_likely(temperature: float, top_p: float) -> None:
    torch.manual_seed(2)
    logits = torch.randn(8, 1000)
    due = [(asked(temperature, top_p, seed=row), row) for row in range(8)]
    assert [token for token, _ in sample(logits, due)] == logits.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_does_not_depend_on_torchs_default_type(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    logits = torch.randn(200, 50, dtype=dtype)
    due = [(asked(0.7, 0.9, seed=row), row) for row in range(200)]
    want = sample(logits, due)
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert sample(logits, due) == want
    finally:
        torch.set_default_dtype(torch.float32)
