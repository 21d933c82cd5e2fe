"""A replica that leaps from event to event does what an engine does that makes one token after the other.

Times and rates are binary fractions, so that both reckon exactly, and nothing is ever asked at the end of a step.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.sim.job.engine import Engine
from rollmux.sim.job.machine import Rates

TICK = 1 / 64


@dataclass(frozen=True, eq=False)
class Request:
    name: int
    prompt_tokens: int
    tokens: int
    had: int = 0  # tokens it brings from elsewhere


@dataclass(frozen=True)
class Act:
    """At this time a request comes, or goes away again if it was to come before."""

    at_s: float
    request: Request
    comes: bool


@dataclass(frozen=True)
class Story:
    """What became of everybody."""

    ended: list[tuple[int, float]]
    removed: list[tuple[int, int]]
    preemptions: int
    recomputed: int


class NaiveEngine:
    """Token by token, as plainly as it can be said."""

    def __init__(self, rates: Rates, slots: int) -> None:
        self.rates, self.slots = rates, slots
        self.begun = 0.0  # the step that is being made, or when prefilling is done
        self.held: dict[Request, int] = {}  # tokens of those that run, the last let in at the end
        self.waiting: deque[tuple[Request, int]] = deque()
        self.ended: list[tuple[Request, float]] = []
        self.preemptions = self.recomputed = 0

    @property
    def kv(self) -> int:
        return sum(request.prompt_tokens + had for request, had in self.held.items())

    def admit(self, now: float) -> None:
        prefilled = 0
        while self.waiting and len(self.held) < self.slots:
            request, had = self.waiting[0]
            if self.held and self.kv + request.prompt_tokens + had + len(self.held) + 1 > self.rates.room_tokens:
                break
            self.waiting.popleft()
            self.held[request] = had
            self.recomputed += had
            prefilled += request.prompt_tokens + had
        if prefilled:
            self.begun = max(self.begun, now) + prefilled * self.rates.prefill_token_s

    def run_until(self, now: float, called: float) -> None:
        """Makes all steps that are over by now; the last act was `called`, and nothing can be over before it."""
        while self.held:
            step_s = self.rates.step_s(len(self.held)) + self.rates.kv_token_s * self.kv
            over = self.begun + step_s
            if over > now:
                return
            running = len(self.held)
            done = self.step()
            changes = len(self.held) < running
            self.begun = max(over, called) if changes else over
            self.ended += [(request, self.begun) for request in done]
            if changes:
                self.admit(self.begun)

    def step(self) -> list[Request]:
        """Everybody gets a token, and some make room; returns who is done."""
        for request in self.held:
            self.held[request] += 1
        done = [request for request, had in self.held.items() if had >= request.tokens]
        for request in done:
            del self.held[request]
        while len(self.held) > 1 and self.kv + len(self.held) > self.rates.room_tokens:
            request, had = self.held.popitem()
            self.waiting.appendleft((request, had))
            self.preemptions += 1
        return done

    def remove(self, request: Request) -> int:
        if request in self.held:
            return self.held.pop(request)
        had = next(had for other, had in self.waiting if other is request)
        self.waiting.remove((request, had))
        return had


def naive(rates: Rates, slots: int, acts: list[Act]) -> Story:
    engine = NaiveEngine(rates, slots)
    removed, called = [], 0.0
    for act in acts:
        engine.run_until(act.at_s, called)
        called = act.at_s
        if act.comes:
            engine.waiting.append((act.request, act.request.had))
        elif act.request not in {request for request, _ in engine.ended}:
            removed.append((act.request.name, engine.remove(act.request)))
        engine.admit(act.at_s)
    engine.run_until(inf, called)
    ended = [(request.name, at) for request, at in engine.ended]
    return Story(ended, removed, engine.preemptions, engine.recomputed)


def leaping(rates: Rates, slots: int, acts: list[Act]) -> Story:
    """As the round drives it: brought up to date at its own events and where something is asked of it."""
    replica: Engine[Request] = Engine(rates, slots)
    ended: dict[Request, float] = {}
    removed = []

    def run_until(now: float) -> None:
        while (at := replica.next_at()) <= now:
            assert at >= replica.now, "time goes forward"
            advance(at)
            replica.admit()
            require_room(replica)
            if at == inf:
                return

    def advance(at: float) -> None:
        for request in replica.advance(at):
            assert request not in ended
            ended[request] = at

    for act in acts:
        run_until(act.at_s)
        advance(act.at_s)
        if act.comes:
            replica.submit(act.request, act.request.had)
        elif act.request not in ended:
            removed.append((act.request.name, replica.remove(act.request)))
        replica.admit()
        require_room(replica)
    while replica.load:
        run_until(replica.next_at())
    assert replica.kv_tokens == 0
    assert replica.requests() == []
    return Story([(r.name, at) for r, at in ended.items()], removed, replica.preemptions, replica.recomputed)


def require_room(replica: Engine[Request]) -> None:
    """What everybody has fits, and the next token of each; one alone may have all there is."""
    running = len(replica.running)
    assert running <= replica.slots
    assert running < 2 or replica.kv_tokens + running <= replica.rates.room_tokens
    assert replica.kv_tokens == sum(r.prompt_tokens + replica.tokens_of(r) for r in replica.running)


def assert_same(rates: Rates, slots: int, acts: list[Act]) -> Story:
    found, expected = leaping(rates, slots, acts), naive(rates, slots, acts)
    assert found.removed == expected.removed
    assert dict(found.ended) == pytest.approx(dict(expected.ended), rel=1e-9)
    assert (found.preemptions, found.recomputed) == (expected.preemptions, expected.recomputed)
    everybody = [act.request.name for act in acts if act.comes]
    assert sorted([name for name, _ in found.ended + found.removed]) == sorted(everybody), "nobody is lost"
    return found


rates_st = st.builds(
    Rates,
    base_s=st.integers(1, 64).map(lambda n: n * TICK),
    compute_s=st.integers(0, 16).map(lambda n: n * TICK),
    sample_s=st.integers(0, 8).map(lambda n: n * TICK),
    kv_token_s=st.sampled_from((0.0, TICK / 16)),
    prefill_token_s=st.sampled_from((0.0, TICK)),
    room_tokens=st.integers(10, 200),
    weights_s=st.integers(0, 64).map(lambda n: n * TICK),
)


@st.composite
def acts_st(draw: st.DrawFn) -> list[Act]:
    """Up to ten requests; some go away again. No two acts share a fraction of time, so that no step ends at one."""
    acts = []
    fractions = iter(TICK / 32 / 2**n for n in range(1, 21))
    for name in range(draw(st.integers(1, 10))):
        tokens = draw(st.integers(1, 60))
        had = draw(st.sampled_from((0, 0, tokens // 2, tokens)))
        request = Request(name, draw(st.integers(1, 40)), tokens, had)
        came = draw(st.integers(0, 50)) + next(fractions)
        acts.append(Act(came, request, comes=True))
        if draw(st.booleans()):
            acts.append(Act(came + draw(st.integers(0, 100)) + next(fractions), request, comes=False))
    return sorted(acts, key=lambda act: act.at_s)


@settings(max_examples=200)
@given(rates_st, st.integers(1, 8), acts_st())
def test_leaping_tells_what_making_token_after_token_does(rates: Rates, slots: int, acts: list[Act]) -> None:
    assert_same(rates, slots, acts)


@pytest.mark.parametrize("seed", range(3))
def test_it_does_with_many_requests_that_crowd_the_room(seed: int) -> None:
    rng = Random(seed)
    rates = Rates(0.25, 0.0, TICK, TICK / 64, TICK, 1500, 0.0)
    acts = []
    for name in range(200):
        request = Request(name, rng.randint(1, 40), rng.randint(1, 120))
        came = rng.randint(0, 100) + TICK / 2 ** (6 + rng.random())
        acts.append(Act(came, request, comes=True))
        if rng.random() < 0.4:
            acts.append(Act(came + rng.uniform(0, 300), request, comes=False))
    story = assert_same(rates, 64, sorted(acts, key=lambda act: act.at_s))
    assert story.preemptions > 10
    assert story.recomputed > 100
    assert len(story.removed) > 20


def test_one_request_alone_takes_the_sum_of_its_steps() -> None:
    rates = Rates(0.5, 0.0, 0.25, 0.125, 0.0625, 1000, 0.0)
    replica: Engine[Request] = Engine(rates, 4)
    replica.submit(Request(0, 16, 3))
    replica.admit()
    prefill_s, reading_s = 16 * 0.0625, (16 + 17 + 18) * 0.125
    assert replica.next_at() == prefill_s + 3 * 0.75 + reading_s


def test_the_last_let_in_gives_way_and_comes_back_with_its_tokens() -> None:
    replica: Engine[Request] = Engine(Rates(1.0, 0.0, 0.0, 0.0, 0.0, 30, 0.0), 4)
    first, last = Request(0, 10, 20), Request(1, 10, 20)
    for request in (first, last):
        replica.submit(request)
    replica.admit()
    assert replica.next_at() == 5.0
    assert replica.advance(5.0) == []
    replica.admit()
    assert (list(replica.running), replica.requests(), replica.tokens_of(last)) == ([first], [first, last], 5)
    assert (replica.preemptions, replica.recomputed, replica.kv_tokens) == (1, 0, 15)
    assert replica.next_at() == 20.0
    assert replica.advance(20.0) == [first]
    replica.admit()
    assert (replica.recomputed, replica.next_at()) == (5, 35.0)


def test_a_request_that_is_larger_than_the_room_runs_alone() -> None:
    replica: Engine[Request] = Engine(Rates(1.0, 0.0, 0.0, 0.0, 0.0, 30, 0.0), 4)
    for request in (Request(0, 100, 5), Request(1, 1, 5)):
        replica.submit(request)
    replica.admit()
    assert [request.name for request in replica.running] == [0]
    assert [request.name for request in replica.advance(5.0)] == [0]
    replica.admit()
    assert replica.next_at() == 10.0
    assert replica.preemptions == 0
