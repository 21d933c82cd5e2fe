"""Pools of servers: first come, first served, no more at once than there are servers; and programs as measured."""

from dataclasses import dataclass
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.sim.job.rewards import HANGS, TEST_S, TEST_SHARES, Pool, Program, drawn_program, reference_s


@dataclass(frozen=True)
class Act:
    """At this second a piece of work comes, or is called off where it is there."""

    at: int
    key: int
    work: int | None


@st.composite
def acts_st(draw: st.DrawFn) -> list[Act]:
    """Keys may come again, once they are done or called off."""
    steps = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 9), st.booleans()), max_size=30)
    )
    acts, at = [], 0
    for wait, key, work, comes in steps:
        at += wait
        acts.append(Act(at, key, work if comes else None))
    return acts


@dataclass(frozen=True)
class Told:
    ends: list[tuple[int, int]]  # when, who
    called_off: list[tuple[int, int, bool]]  # when, who, whether there was any


def naive(servers: int, acts: list[Act]) -> Told:
    """Second by second."""
    waiting: list[list[int]] = []  # who, and how many seconds are left
    serving: list[list[int]] = []
    told = Told([], [])
    second, left = 0, list(acts)
    while left or waiting or serving:
        told.ends.extend((second, key) for key, rest in serving if rest == 0)
        serving = [each for each in serving if each[1]]
        while waiting and len(serving) < servers:
            serving.append(waiting.pop(0))
        while left and left[0].at == second:
            act = left.pop(0)
            there = [each for each in waiting + serving if each[0] == act.key]
            if act.work is None:
                told.called_off.append((second, act.key, bool(there)))
                waiting, serving = ([e for e in some if e[0] != act.key] for some in (waiting, serving))
            elif not there:
                waiting.append([act.key, act.work])
            while waiting and len(serving) < servers:
                serving.append(waiting.pop(0))
        for each in serving:
            each[1] -= 1
        second += 1
    return told


def leaping(servers: int, acts: list[Act]) -> Told:
    """As the scorer drives it."""
    pool: Pool[int] = Pool(servers)
    there: set[int] = set()
    told = Told([], [])

    def run_until(at: float) -> None:
        while (end := pool.next_at()) <= at and end < inf:
            for key in pool.advance(end):
                there.remove(key)
                told.ends.append((round(end), key))

    for act in acts:
        run_until(act.at)
        if act.work is None:
            told.called_off.append((act.at, act.key, pool.cancel(act.key, float(act.at))))
            there.discard(act.key)
        elif act.key not in there:
            pool.submit(act.key, float(act.work), float(act.at))
            there.add(act.key)
    run_until(inf)
    assert not there
    return told


@settings(max_examples=300)
@given(st.integers(1, 4), acts_st())
def test_a_pool_serves_as_a_counter_with_one_queue_does(servers: int, acts: list[Act]) -> None:
    found, expected = leaping(servers, acts), naive(servers, acts)
    assert sorted(found.ends) == sorted(expected.ends)
    assert found.called_off == expected.called_off


def test_calling_off_what_is_served_lets_the_next_one_begin_at_once() -> None:
    pool: Pool[str] = Pool(1)
    for key in ("first", "second", "third"):
        pool.submit(key, 10.0, 0.0)
    assert pool.cancel("second", 1.0)
    assert pool.cancel("first", 4.0)
    assert pool.next_at() == 14.0
    assert pool.advance(14.0) == ["third"]
    assert not pool.cancel("third", 15.0)


def test_an_idle_pool_has_nothing_coming() -> None:
    assert Pool(3).next_at() == inf


def drawn(count: int) -> list[Program]:
    """One program for each of so many prompts."""
    rng = Random(1)
    return [drawn_program(rng.gauss(0, 1), rng.gauss(0, 1), rng, 0.5) for _ in range(count)]


def test_programs_take_as_long_as_was_measured_and_hang_as_often() -> None:
    programs = drawn(20_000)
    took = sorted(program.seconds for program in programs)
    assert sum(p.seconds > 30 for p in programs) / len(programs) == pytest.approx(HANGS, abs=0.005)
    for share, seconds in zip(TEST_SHARES[2:13], TEST_S[2:13], strict=True):
        assert took[int(share * len(took))] == pytest.approx(seconds, rel=0.1)
    ended = [program for program in programs if program.seconds < 30]
    assert sum(program.correct for program in ended) / len(ended) == pytest.approx(0.5, abs=0.02)
    assert not any(program.correct for program in programs if program.seconds > 30)


@given(st.floats(-8, 8), st.floats(0, 8))
def test_the_reference_takes_longer_for_heavier_tests_and_stays_within_what_was_measured(
    one: float, more: float
) -> None:
    assert TEST_S[0] <= reference_s(one) <= reference_s(one + more) <= TEST_S[-1]


def test_programs_for_one_prompt_hang_alike() -> None:
    rng = Random(2)
    loose = [drawn_program(0.0, 2.0, rng, 0.5).seconds > 30 for _ in range(2000)]
    tight = [drawn_program(0.0, -2.0, rng, 0.5).seconds > 30 for _ in range(2000)]
    assert sum(loose) > 20 * max(1, sum(tight))
