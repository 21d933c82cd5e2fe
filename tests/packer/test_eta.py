"""Factors from what was seen: near the best that exists, whatever the winners of races hide of the lengths."""

import json
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.packer import (
    AdaptiveEta,
    Batch,
    Batching,
    EtaPolicy,
    Factors,
    FixedEta,
    Prompt,
    Race,
    Request,
    Response,
    RoundKind,
    TrainedPrompt,
)
from rollmux.packer.batching import launches
from tests.thorough import some

BATCHING = Batching(32, 8)
CROWDING = 0.3


@dataclass
class Lengths:
    """Prompts and responses vary by so much, as logs; a round is run without any batcher."""

    prompts: float
    responses: float
    random: Random

    def prompt(self, width: int) -> list[int]:
        middle = 6.0 + self.random.gauss(0.0, self.prompts)
        return sorted(int(exp(middle + self.random.gauss(0.0, self.responses))) for _ in range(width))

    def race(self, factors: Factors) -> tuple[list[list[int]], int]:
        """The winners of a short round, and how many lost."""
        width, launched = launches(BATCHING.responses, factors.responses), launches(BATCHING.prompts, factors.prompts)
        prompts = sorted((self.prompt(width)[: BATCHING.responses] for _ in range(launched)), key=lambda each: each[-1])
        return prompts[: BATCHING.prompts], launched - BATCHING.prompts

    def longest_of(self, count: int, out_of: int) -> list[list[int]]:
        """A long round: the prompts that lost."""
        prompts = sorted((self.prompt(BATCHING.responses) for _ in range(out_of)), key=lambda each: each[-1])
        return prompts[-count:]

    def cost(self, factors: Factors, cycles: int = 30) -> float:
        """Mean time of a round, over whole cycles; all factors meet the same luck."""
        self.random = Random(11)
        width, launched = launches(BATCHING.responses, factors.responses), launches(BATCHING.prompts, factors.prompts)
        crowd = 1.0 + CROWDING * (launched * width / (BATCHING.prompts * BATCHING.responses) - 1.0)
        short = crowd * fmean(self.race(factors)[0][-1][-1] for _ in range(cycles * 4))
        if launched == BATCHING.prompts:
            return short
        shorts = BATCHING.prompts / (launched - BATCHING.prompts)
        out_of = round(BATCHING.prompts * (shorts + 1))
        long = fmean(self.longest_of(BATCHING.prompts, out_of)[-1][-1] for _ in range(cycles))
        return (shorts * short + long) / (shorts + 1)


def batch(number: int, kind: RoundKind, prompts: list[list[int]], launched: int, lost: int = 8) -> Batch:
    """As the batcher would report it; a short round puts so many prompts off."""
    trained = []
    for identity, lengths in enumerate(prompts):
        prompt = Prompt(number, identity)
        responses = (Response(Request(number, prompt, sample), tokens, 1.0) for sample, tokens in enumerate(lengths))
        trained.append(TrainedPrompt(prompt, tuple(responses), launched, 0))
    deferred = tuple(Prompt(number, -1 - place) for place in range(lost)) if kind is RoundKind.SHORT else ()
    return Batch(number, kind, tuple(trained), deferred, (), (), (), 0, 0, 0, False)


def watch(policy: EtaPolicy, lengths: Lengths, cycles: int = 4, responses: float = 1.25) -> EtaPolicy:
    """Lets a policy see four short rounds and a long one, several times."""
    for cycle in range(cycles):
        for number in range(4):
            short, _ = lengths.race(Factors(1.25, responses))
            policy.observe(batch(5 * cycle + number, RoundKind.SHORT, short, launches(BATCHING.responses, responses)))
        long = lengths.longest_of(BATCHING.prompts, 5 * BATCHING.prompts)
        policy.observe(batch(5 * cycle + 4, RoundKind.LONG, long, 8))
    return policy


def test_fixed_factors_stay_whatever_is_seen() -> None:
    policy = FixedEta(1.5, 1.1)
    before = policy.factors(BATCHING)
    watch(policy, Lengths(0.5, 0.5, Random(1)), 1)
    policy.restore(policy.state())
    assert policy.factors(BATCHING) == before == Factors(1.5, 1.1)


@pytest.mark.no_cover
@pytest.mark.parametrize("raced", [1.0, 4.0])
@pytest.mark.parametrize(("prompts", "responses"), some([(0.1, 0.6), (0.0, 0.05), (0.8, 0.5), (0.6, 0.1)], every=2))
def test_the_factors_chosen_are_nearly_the_best_that_exist(prompts: float, responses: float, raced: float) -> None:
    lengths = Lengths(prompts, responses, Random(7))
    chosen = watch(AdaptiveEta(crowding=CROWDING), lengths, responses=raced).factors(BATCHING)
    grid = [Factors(p, r) for p in (1.0, 1.25, 1.5, 2.0) for r in (1.0, 1.125, 1.25)]
    assert lengths.cost(chosen) <= 1.06 * min(lengths.cost(each) for each in grid)


def test_where_nothing_varies_nothing_is_launched_in_vain() -> None:
    assert watch(AdaptiveEta(), Lengths(0.0, 0.0, Random(1))).factors(BATCHING) == Factors(1.0, 1.0)


def test_the_first_factors_stay_until_a_long_round_was_seen() -> None:
    policy, lengths = AdaptiveEta(Factors(1.4, 1.1)), Lengths(0.6, 0.4, Random(1))
    for number in range(10):
        policy.observe(batch(number, RoundKind.SHORT, lengths.race(Factors(1.4, 1.1))[0], 8))
        assert policy.factors(BATCHING) == Factors(1.4, 1.1)


def test_rounds_that_put_nobody_off_are_learnt_from() -> None:
    policy, lengths = AdaptiveEta(Factors(1.0, 1.0), rounds=4), Lengths(1.0, 0.2, Random(1))
    policy.observe(batch(1, RoundKind.SHORT, lengths.race(Factors(1.0, 1.0))[0], 8, lost=0))
    assert policy.factors(BATCHING).prompts > 1.0


def test_factors_of_one_are_not_forgotten_once_the_last_long_round_is_long_ago() -> None:
    policy, lengths = watch(AdaptiveEta(rounds=5), Lengths(0.0, 0.0, Random(1)), 1), Lengths(0.0, 0.0, Random(1))
    for number in range(6, 12):
        policy.observe(batch(number, RoundKind.SHORT, lengths.race(Factors(1.0, 1.0))[0], 8, lost=0))
        assert policy.factors(BATCHING) == Factors(1.0, 1.0)


@given(st.floats(0.0, 1.5), st.floats(0.0, 1.5), st.integers(0, 99), st.floats(1.0, 3.0), st.floats(1.0, 2.0))
@settings(max_examples=25)
def test_the_factors_are_within_their_bounds(a: float, b: float, seed: int, prompts: float, responses: float) -> None:
    policy = watch(AdaptiveEta(most=Factors(prompts, responses)), Lengths(a, b, Random(seed)), 1)
    for race in Race:
        factors = policy.factors(Batching(32, 8, race=race))
        assert 1.0 <= factors.prompts <= prompts
        assert 1.0 <= factors.responses <= responses
        assert race is not Race.NONE or factors.responses == 1.0


def test_one_response_and_lengths_of_zero_are_lengths_too() -> None:
    policy = AdaptiveEta()
    policy.observe(batch(1, RoundKind.LONG, [[0], [0], [0], [900]], 1))
    factors = policy.factors(Batching(4, 1))
    assert factors.responses == 1.0
    assert factors.prompts > 1.0


@pytest.mark.parametrize("cut", [0, 3, 9, 20])
def test_a_restored_policy_chooses_as_the_first_one_would_have(cut: int) -> None:
    random = Random(5)
    rounds = [
        batch(n, list(RoundKind)[n % 5 == 4], Lengths(0.5, 0.4, random).race(Factors(1.25, 1.25))[0], 10)
        for n in range(30)
    ]
    whole, first, second = AdaptiveEta(), AdaptiveEta(), AdaptiveEta()
    for each in rounds[:cut]:
        first.observe(each)
    second.restore(json.loads(json.dumps(first.state())))
    for number, each in enumerate(rounds):
        whole.observe(each)
        if number >= cut:
            second.observe(each)
            assert second.factors(BATCHING) == whole.factors(BATCHING)
    assert second.state() == whole.state()


def test_all_that_is_wrong_with_a_policy_is_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as refusal:
        AdaptiveEta(Factors(0.5, 1.0), Factors(2.0, float("nan")), -1.0, 0)
    assert [problem.path for problem in refusal.value.problems] == [
        "adaptive_eta.start.prompts",
        "adaptive_eta.most.responses",
        "adaptive_eta.crowding",
        "adaptive_eta.rounds",
    ]
    with pytest.raises(InvalidSpec, match=r"fixed_eta\.prompts = 99"):
        FixedEta(99, 1.0)
