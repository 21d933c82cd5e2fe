"""What is learnt beside a rollout: from nothing before it is there, and no faster than the devices that have joined."""

from itertools import accumulate
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.packer.commands import Batch, RoundKind, TrainedPrompt
from rollmux.packer.prompt import Prompt, Request, Response
from rollmux.sim.job.job import STREAM_REACHED, STREAM_START_S, Job, streamed_s
from rollmux.sim.job.rollout import Rollout
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import System

Times = list[tuple[float, float]]

NARROW = System("narrow", stream=True)
WIDE = System("wide", stream=True, stream_wide=True)
EARLY = System("early", infer_early=True)
SETUP = SETUPS["7B/8k"]


# -- how much is done --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("joins", "until", "work", "expected"),
    [
        pytest.param([(10.0, 0.5)], 30.0, [(0.0, 4.0)], 4.0, id="there is time for all of it"),
        pytest.param([(10.0, 0.5)], 30.0, [(0.0, 40.0)], 10.0, id="half of the speed for 20 s"),
        pytest.param([(10.0, 0.5)], 30.0, [(26.0, 40.0)], 2.0, id="it is there 4 s before the end"),
        pytest.param([(10.0, 0.5)], 30.0, [(30.0, 40.0)], 0.0, id="it is there at the end"),
        pytest.param([(10.0, 0.5)], 30.0, [(35.0, 40.0)], 0.0, id="it is there after the end"),
        pytest.param([(10.0, 0.5)], 30.0, [], 0.0, id="there is nothing"),
        pytest.param([(10.0, 0.5)], 30.0, [(0.0, 2.0), (20.0, 8.0)], 7.0, id="nobody works from 14 s to 20 s"),
        pytest.param([(10.0, 0.5)], 30.0, [(0.0, 8.0), (20.0, 8.0)], 10.0, id="the second waits for the first"),
        pytest.param([(10.0, 0.5), (20.0, 0.25)], 30.0, [(0.0, 40.0)], 12.5, id="more devices for the last 10 s"),
        pytest.param([(10.0, 0.5), (20.0, 0.25)], 30.0, [(0.0, 8.0)], 8.0, id="a piece while others join"),
        pytest.param([(0.0, 0.5), (1.0, 0.25), (2.0, 0.25)], 9.0, [(5.0, 9.0)], 4.0, id="all join, then it comes"),
        pytest.param([(4.0, 0.5), (4.0, 0.5)], 10.0, [(0.0, 9.0)], 6.0, id="two join at once"),
    ],
)
def test_what_is_learnt_beside_a_rollout_can_be_reckoned_by_hand(
    joins: Times, until: float, work: Times, expected: float
) -> None:
    assert streamed_s(joins, until, work) == expected


@st.composite
def streams_st(draw: st.DrawFn) -> tuple[Times, float, Times]:
    """Whole seconds, and speeds and sizes in binary fractions: both ways reckon exactly but for divisions."""
    speeds = st.sampled_from((0.125, 0.25, 0.5, 1.0))
    joins = sorted(draw(st.lists(st.tuples(st.integers(0, 30).map(float), speeds), min_size=1, max_size=5)))
    until = joins[-1][0] + draw(st.integers(1, 30))
    sizes = st.integers(0, 64).map(lambda quarters: quarters / 4)
    work = draw(st.lists(st.tuples(st.integers(0, 70).map(float), sizes), max_size=8))
    return joins, until, sorted(work)


def naive(joins: Times, until: float, work: Times) -> float:
    """Second by second: whoever has joined works on what is there."""
    done = backlog = 0.0
    for second in range(int(until)):
        backlog += sum(size for at, size in work if at == second)
        spent = min(backlog, sum(speed for at, speed in joins if at <= second))
        backlog -= spent
        done += spent
    return done


def work_of(work: Times, before: float) -> float:
    return sum(size for at, size in work if at < before)


def room_from(joins: Times, start: float, until: float) -> float:
    return sum(speed * max(0.0, until - max(start, at)) for at, speed in joins)


@settings(max_examples=400)
@given(streams_st())
def test_learning_from_piece_to_piece_is_as_much_as_second_by_second(stream: tuple[Times, float, Times]) -> None:
    assert streamed_s(*stream) == pytest.approx(naive(*stream))


@settings(max_examples=200)
@given(streams_st())
def test_nothing_is_learnt_before_it_is_there_nor_faster_than_those_that_joined(
    stream: tuple[Times, float, Times],
) -> None:
    joins, until, work = stream
    done = streamed_s(joins, until, work)
    assert 0 <= done <= sum(size for _, size in work) + 1e-9
    for at in range(int(until) + 1):  # what was there before, and no more than there is time for afterwards
        assert done <= work_of(work, at) + room_from(joins, at, until) + 1e-9


@given(streams_st(), st.integers(0, 9), st.integers(1, 9))
def test_what_comes_at_the_end_or_later_changes_nothing(
    stream: tuple[Times, float, Times], later: int, size: int
) -> None:
    joins, until, work = stream
    more = sorted([*work, (until + later, float(size))])
    assert streamed_s(joins, until, more) == streamed_s(joins, until, work)


# -- who joins when ----------------------------------------------------------------------------------------------------


def rolled_out(idle_s: list[float], freed_s: float = 200.0, *freed: int) -> Rollout:
    """A round of 1000 s."""
    return Rollout(
        complete_s=1000.0, generated_s=1000.0, idle_s=idle_s, freed_s=freed_s, freed=frozenset(freed or (0, 3))
    )


def joins_of(system: System, rollout: Rollout) -> Times:
    return Job(SETUP, system, 0)._joins(rollout)


@pytest.mark.parametrize("system", [NARROW, WIDE], ids=lambda system: system.name)
def test_without_freed_replicas_nobody_joins(system: System) -> None:
    assert joins_of(system, rolled_out([10.0, 20.0, 30.0, 40.0], inf)) == []


def test_freed_replicas_join_once_and_together_when_training_has_started_on_them() -> None:
    each = STREAM_REACHED / 4
    assert joins_of(NARROW, rolled_out([200.0, 240.0, 900.0, 200.0])) == [(200.0 + STREAM_START_S, 2 * each)]
    assert joins_of(NARROW, rolled_out([200.0, 240.0, 900.0, 200.0], 200.0, 3)) == [(200.0 + STREAM_START_S, each)]


def test_kept_replicas_join_a_wide_stream_when_they_have_run_dry() -> None:
    each = STREAM_REACHED / 4
    assert joins_of(WIDE, rolled_out([200.0, 900.0, 240.0, 200.0])) == [
        (200.0 + STREAM_START_S, 2 * each),
        (240.0 + STREAM_START_S, each),
        (900.0 + STREAM_START_S, each),
    ]


def test_a_kept_replica_that_ran_dry_before_joins_with_the_freed_ones() -> None:
    joins = joins_of(WIDE, rolled_out([200.0, 50.0, 240.0, 200.0]))
    assert [at for at, _ in joins] == [200.0 + STREAM_START_S, 200.0 + STREAM_START_S, 240.0 + STREAM_START_S]
    assert sum(speed for _, speed in joins) == STREAM_REACHED


def test_whoever_would_start_when_the_round_is_over_does_not_join() -> None:
    last = 1000.0 - STREAM_START_S
    assert [at for at, _ in joins_of(WIDE, rolled_out([200.0, last, last - 1, 200.0]))] == [
        200.0 + STREAM_START_S,
        999.0,
    ]
    assert joins_of(NARROW, rolled_out([last] * 4, last)) == []


# -- what there is to learn from ---------------------------------------------------------------------------------------


def batch_of(*tokens: tuple[int, ...]) -> Batch:
    """Prompts with responses of these lengths."""
    trained = []
    for identity, lengths in enumerate(tokens):
        prompt = Prompt(0, identity, "math")
        responses = tuple(Response(Request(1, prompt, sample), n, 1.0) for sample, n in enumerate(lengths))
        trained.append(TrainedPrompt(prompt, responses, len(lengths), 0))
    return Batch(1, RoundKind.LONG, tuple(trained), (), (), (), (), 0, 0, 0, False)


def scored(rollout: Rollout, batch: Batch, *seconds: float) -> Rollout:
    requests = [response.request for prompt in batch.prompts for response in prompt.responses]
    rollout.scored_s = dict(zip(requests, seconds, strict=True))
    return rollout


BATCH = batch_of((700, 1700), (200, 200))


def test_a_gradient_waits_for_the_last_score_of_its_prompt() -> None:
    job = Job(SETUP, NARROW, 0)
    rollout = scored(rolled_out([0.0]), BATCH, 300.0, 900.0, 400.0, 350.0)
    (first, first_s), (second, second_s) = job._learnt(rollout, BATCH)
    assert (first, second) == (400.0, 900.0)
    assert first_s == pytest.approx(1000 * SETUP.train_token_s)
    assert second_s == pytest.approx(3000 * SETUP.train_token_s)


def test_log_probabilities_of_a_wide_stream_wait_for_their_response_only() -> None:
    job = Job(SETUP, WIDE, 0)
    rollout = scored(rolled_out([0.0]), BATCH, 300.0, 900.0, 400.0, 350.0)
    work = job._learnt(rollout, BATCH)
    token_s, infer = SETUP.train_token_s, SETUP.training.infer_part
    expected = [
        (300.0, infer * 1000),
        (350.0, infer * 500),
        (400.0, infer * 500),
        (400.0, (1 - infer) * 1000),
        (900.0, infer * 2000),
        (900.0, (1 - infer) * 3000),
    ]
    assert [at for at, _ in work] == [at for at, _ in expected]
    assert sorted(size for _, size in work) == pytest.approx(sorted(tokens * token_s for _, tokens in expected))


def test_what_is_hidden_is_what_those_that_joined_have_learnt_until_the_round_was_over() -> None:
    job = Job(SETUP, NARROW, 0)
    rollout = scored(rolled_out([200.0, 900.0, 900.0, 200.0]), BATCH, 300.0, 1000.0, 400.0, 350.0)
    assert job._hidden_s(rollout, BATCH, 4000) == pytest.approx(1000 * SETUP.train_token_s)  # one prompt, in time
    huge = batch_of((10**9,), (1,))
    rollout = scored(rolled_out([200.0, 900.0, 900.0, 200.0]), huge, 300.0, 999.0)
    assert job._hidden_s(rollout, huge, 10**9) == pytest.approx(700.0 * STREAM_REACHED / 2)
    assert job._hidden_s(rolled_out([200.0] * 4, inf), huge, 10**9) == 0.0


def test_without_a_pass_for_the_old_policy_a_token_takes_less_and_less_of_it_is_inferred() -> None:
    whole, spared = Job(SETUP, WIDE, 0), Job(SETUP, System("one", one_update=True), 0)
    assert (whole.token_s, whole.infer_part) == (SETUP.train_token_s, SETUP.training.infer_part)
    assert spared.token_s == pytest.approx(0.8 * whole.token_s)  # of ten passes' worth, two are the old policy's
    assert spared.infer_part * spared.token_s == pytest.approx(0.2 * whole.token_s)


# -- log-probabilities on replicas that ran dry ------------------------------------------------------------------------


def test_inferring_early_hides_no_more_than_the_idle_time_and_no_more_than_there_is_to_infer() -> None:
    job = Job(SETUP, EARLY, 0)
    rollout = rolled_out([400.0, 700.0, 1000.0, 900.0], inf)  # idle for 600, 300, 0 and 100 s
    assert job._hidden_s(rollout, BATCH, 10**12) == 250.0
    tokens = 1000
    to_infer_s = SETUP.training.infer_part * tokens * SETUP.train_token_s
    assert to_infer_s < 250.0
    assert job._hidden_s(rollout, BATCH, tokens) == pytest.approx(to_infer_s)


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=8), st.integers(1, 10**9))
def test_inferring_early_never_hides_more_than_either(idle_s: list[float], tokens: int) -> None:
    job = Job(SETUP, EARLY, 0)
    hidden_s = job._hidden_s(rolled_out(idle_s, inf), BATCH, tokens)
    idle = list(accumulate(1000.0 - since for since in idle_s))[-1] / len(idle_s)
    assert hidden_s <= idle + 1e-9
    assert hidden_s <= SETUP.training.infer_part * tokens * SETUP.train_token_s
