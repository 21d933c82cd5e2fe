"""Rewards by a pool: when each is told, what each outcome means, and that nothing is left behind."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from threading import Event, Timer
from typing import Any, cast

import pytest

from rollmux.packer import Prompt, Request
from rollmux.packer.timeouts import TimeoutPolicy
from rollmux.runtime.rewards import (
    AsyncTask,
    Case,
    CodeTask,
    FunctionTask,
    JudgeSettings,
    JudgeTask,
    Kind,
    MathsTask,
    PoolSettings,
    Reward,
    RewardPool,
    Status,
    Task,
)
from rollmux.runtime.sandbox import Program
from rollmux.runtime.sandbox.tree import descendants
from rollmux.trainer.job_file import read_job
from rollmux.trainer.pooled import GROUP_RUNS, Pooled, open_pooled
from rollmux.trainer.scoring import Scored
from rollmux.trainer.tasks import build_task
from tests.runtime.rewards.world import QUICK, SETTINGS
from tests.trainer.scores import alive
from tests.waiting import until

WITHIN_S = 60.0
ENDLESS = CodeTask("endless", Program("while True: pass"), (Case("", ""),))


def request(number: int) -> Request:
    return Request(1, Prompt(0, number), 0)


class Gates:
    """Rewards that come when they are let: response `number` is worth its number."""

    def __init__(self, count: int) -> None:
        self.gates = [Event() for _ in range(count)]
        self.cancelled: list[int] = []

    def asked(self, number: int, response: str) -> AsyncTask:
        async def score() -> float:
            try:
                while not self.gates[number].is_set():
                    await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                self.cancelled.append(number)
                raise
            return float(number)

        return AsyncTask(score)


@pytest.fixture
def gates() -> Gates:
    return Gates(4)


def pooled(gates: Gates, lag: int) -> "closing[Pooled]":
    pool = RewardPool(PoolSettings(turns={Kind.ASYNC: 8}, async_cap_s=WITHIN_S))
    return closing(Pooled(pool, gates.asked, lag))


def told(scored: Sequence[Scored]) -> list[int]:
    assert all(int(each.request.prompt.id) == each.reward.value for each in scored)
    return [int(each.request.prompt.id) for each in scored]


def test_with_a_lag_a_reward_is_told_so_many_ticks_later_however_soon_it_was_there(gates: Gates) -> None:
    for gate in gates.gates:
        gate.set()
    with pooled(gates, lag=3) as scorer:
        scorer.submit(request(0), "")
        found = [told(scorer.collect(wait=False))]
        scorer.submit(request(2), "")
        scorer.submit(request(1), "")
        until(lambda: all(each.reward.done() for each in scorer._waiting.values()))
        found += [told(scorer.collect(wait=False)) for _ in range(4)]
    assert found == [[], [], [], [0], [2, 1]]


def test_with_a_lag_a_reward_that_is_due_is_waited_for_and_those_not_due_are_not(gates: Gates) -> None:
    with pooled(gates, lag=1) as scorer:
        scorer.submit(request(0), "")
        assert scorer.collect(wait=False) == []
        scorer.submit(request(1), "")
        Timer(0.05, gates.gates[0].set).start()
        assert told(scorer.collect(wait=False)) == [0]
        gates.gates[1].set()
        assert told(scorer.collect(wait=True)) == [1]
        assert (scorer.pending, scorer.collect(wait=True)) == (0, [])


def test_idle_engines_wait_for_the_earliest_tick_alone_and_it_is_told_whole(gates: Gates) -> None:
    with pooled(gates, lag=10) as scorer:
        scorer.submit(request(0), "")
        scorer.submit(request(1), "")
        assert scorer.collect(wait=False) == []
        scorer.submit(request(2), "")
        gates.gates[0].set()
        gates.gates[1].set()
        assert told(scorer.collect(wait=True)) == [0, 1]
        assert scorer.pending == 1


def test_without_a_lag_rewards_are_told_as_they_come(gates: Gates) -> None:
    with pooled(gates, lag=0) as scorer:
        for number in range(3):
            scorer.submit(request(number), "")
        assert scorer.collect(wait=False) == []
        for number in (2, 0, 1):
            gates.gates[number].set()
            assert told(scorer.collect(wait=True)) == [number]
        assert (scorer.pending, scorer.collect(wait=True)) == (0, [])


class Counted(Future[Any]):
    """Counts every use of such futures."""

    uses = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.uses += 1
        return super().__getattribute__(name)


def as_they_come(count: int, replies: bool) -> int:
    """How often futures are looked at until so many have come, the last one first."""
    futures = list[Counted]()

    class Beside:
        def score(self, asked: object) -> Counted:
            futures.append(Counted())
            return futures[-1]

        reply = score

        def close(self) -> None:
            """It has nothing of its own."""

    nothing: Any = None
    with closing(Pooled(nothing, lambda *said: nothing, 0, reply_asked=lambda *said: cast(Any, ENDLESS))) as scorer:
        scorer._started = cast(Any, Beside())
        for number in range(count):
            (scorer.ask if replies else scorer.submit)(request(number), "")
        Counted.uses = 0
        for number in reversed(range(count)):
            futures[number].set_result(Reward(Status.SCORE, float(number)))
            if replies:
                assert [each.prompt.id for each, _ in scorer.replies(WITHIN_S)] == [number]
            else:
                assert told(scorer.collect(wait=True)) == [number]
    return Counted.uses


@pytest.mark.parametrize("replies", [False, True], ids=["rewards", "replies"])
def test_whoever_is_told_as_it_comes_costs_the_same_whatever_is_still_to_come(replies: bool) -> None:
    assert as_they_come(200, replies) <= 2 * as_they_come(100, replies)


def test_a_response_that_is_asked_for_again_is_not_told_by_its_first_life(gates: Gates) -> None:
    with pooled(gates, lag=0) as scorer:
        scorer.submit(request(0), "")
        gates.gates[0].set()
        until(scorer._rewards._coming.qsize)
        gates.gates[0].clear()
        scorer.cancel([request(0)])
        scorer.submit(request(0), "")
        assert scorer.collect(wait=False) == []
        gates.gates[0].set()
        assert told(scorer.collect(wait=True)) == [0]


@pytest.mark.parametrize("lag", [0, 1])
def test_what_is_cancelled_is_stopped_and_never_told(gates: Gates, lag: int) -> None:
    with pooled(gates, lag) as scorer:
        scorer.submit(request(0), "")
        scorer.submit(request(1), "")
        gates.gates[1].set()
        until(lambda: any(each.reward.done() for each in scorer._waiting.values()))
        scorer.cancel([request(0), request(3)])
        assert told(scorer.collect(wait=True)) == [1]
        until(lambda: gates.cancelled == [0])
        assert scorer.pending == 0


def test_closing_stops_what_is_under_way_and_may_be_repeated(gates: Gates) -> None:
    with pooled(gates, lag=1) as scorer:
        scorer.submit(request(0), "")
        until(lambda: scorer._pool._running != set())
        scorer.close()
        assert (gates.cancelled, scorer.pending) == ([0], 0)


def test_a_scorer_that_was_never_asked_has_started_nothing(gates: Gates) -> None:
    with pooled(gates, lag=1) as scorer:
        assert scorer.collect(wait=True) == []
        assert scorer._started is None


def test_a_pool_that_can_t_start_is_told_to_whoever_waits() -> None:
    def no_judge() -> Judged:
        raise ValueError("no such model")

    pool = RewardPool(PoolSettings(turns={Kind.JUDGE: 1}, judge=JudgeSettings(no_judge)))
    asked = JudgeTask("{response}", {"response": "yes"})
    with closing(Pooled(pool, lambda number, response: asked, lag=1)) as scorer:
        scorer.submit(request(0), "")
        with pytest.raises(ValueError, match="no such model"):
            scorer.collect(wait=True)


# -- what is scored ----------------------------------------------------------------------------------------------------


class Judged:
    """Finds a response good that says so."""

    def said(self, tasks: Sequence[JudgeTask]) -> Sequence[list[float] | str]:
        return [[-0.1, -9.0] if "good" in task.fields["response"] else "it says nothing" for task in tasks]

    def close(self) -> None:
        """There is nothing."""


def of_each_kind(number: int, response: str) -> Task:
    return (
        MathsTask(response, "1/2"),
        CodeTask("print", Program(f"print({response!r})"), (Case("", "0.5"),)),
        FunctionTask("tests.runtime.rewards.scores:length", {"text": response}),
        JudgeTask("{response}", {"response": response}),
        ENDLESS,
        FunctionTask("tests.runtime.rewards.scores:raises"),
    )[number]


def of_kinds(*kinds: Kind, late_is_zero: bool = False) -> "closing[Pooled]":
    turns = dict.fromkeys(kinds, 1)
    pool = RewardPool(replace(SETTINGS, turns=turns, judge=JudgeSettings(Judged)), TimeoutPolicy(QUICK))
    return closing(Pooled(pool, of_each_kind, lag=1, late_is_zero=late_is_zero))


def outcomes(scorer: Pooled, responses: Mapping[int, str]) -> list[tuple[Status, float | None]]:
    for number, response in responses.items():
        scorer.submit(request(number), response)
    return [(each.reward.status, each.reward.score) for each in scorer.collect(wait=True)]


def test_maths_code_functions_and_judges_score_and_neither_timeouts_nor_errors_are_scores() -> None:
    with of_kinds(Kind.MATHS, Kind.CODE, Kind.FUNCTION, Kind.JUDGE) as scorer:
        found = outcomes(scorer, {0: "0.5", 1: "0.5", 2: "0.5", 3: "good", 4: "", 5: ""})
    assert found[:3] == [(Status.SCORE, 1.0), (Status.SCORE, 1.0), (Status.SCORE, 0.3)]
    status, score = found[3]
    assert (status, score and round(score, 2)) == (Status.SCORE, 1.0)
    assert found[4:] == [(Status.TIMEOUT, None), (Status.ERROR, None)]


def test_a_job_may_say_that_a_program_that_was_cut_off_is_worth_nothing_and_means_programs_alone() -> None:
    with of_kinds(Kind.CODE, Kind.FUNCTION, Kind.JUDGE, late_is_zero=True) as scorer:
        found = outcomes(scorer, {1: "2", 3: "bad", 4: "", 5: ""})
    assert found == [(Status.SCORE, 0.0), (Status.ERROR, None), (Status.SCORE, 0.0), (Status.ERROR, None)]


def test_limits_of_time_that_code_has_earned_are_part_of_the_state() -> None:
    job = read_job({"rewards": {"scorer": "pool"}})
    learnt = TimeoutPolicy()
    learnt.learn("sum/0", 0.5, 0.6)
    with closing(open_pooled(job.rewards, build_task(job.task, job.seed), learnt.state())) as scorer:
        assert scorer.state() == learnt.state()
        scorer.submit(request(0), "1:2;")
        assert scorer.collect(wait=True)[0].reward.status is Status.SCORE
        assert scorer.state() == learnt.state()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_test_that_none_has_passed_has_the_limits_that_its_group_has_earned(resumed: bool) -> None:
    job, before = read_job({"rewards": {"scorer": "pool"}}), TimeoutPolicy()
    with closing(open_pooled(job.rewards, build_task(job.task, job.seed), before.state() if resumed else {})) as scorer:
        timeouts = scorer._pool.timeouts
        for number in range(GROUP_RUNS):
            assert timeouts.limits("line 100/0", "sorting").cpu_s == 30.0
            timeouts.learn(f"line {number}/0", 4.0, 4.0, "sorting")
        assert timeouts.limits("line 100/0", "sorting").cpu_s == 6.0
        assert timeouts.limits("line 100/0").cpu_s == 30.0


@pytest.fixture
def mine() -> Callable[[], list[int]]:
    before = set(descendants(os.getpid()))
    return lambda: [pid for pid in descendants(os.getpid()) if pid not in before]


def test_closing_leaves_no_process_even_while_the_pool_starts(mine: Callable[[], list[int]]) -> None:
    job = read_job({"rewards": {"scorer": "pool", "workers": 2}})
    for wait in (True, False):
        scorer = open_pooled(job.rewards, build_task(job.task, job.seed), {})
        scorer.submit(request(0), "1:2;")
        until(lambda: mine() != [])
        started = mine()
        if wait:
            assert scorer.collect(wait=True)
        scorer.close()
        assert alive([*started, *mine()]) == []
