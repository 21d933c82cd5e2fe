"""Whoever works out rewards is killed at random moments: each task has its score all the same, and nothing is left."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from rollmux.packer.timeouts import TimeoutPolicy
from rollmux.runtime.rewards import Case, CodeTask, FunctionTask, Kind, MathsTask, Reward, RewardPool, Status, Task
from rollmux.runtime.sandbox import Program
from rollmux.runtime.sandbox.tree import descendants
from tests.runtime.rewards.world import ONLY_FUNCTIONS, QUICK, SETTINGS

SCORES = "tests.runtime.rewards.scores"


async def killed(pool: RewardPool, kind: Kind, tasks: Sequence[Task], times: int, seed: int) -> list[Reward]:
    """The rewards of these tasks, two at a time, while one of the processes that work them out is killed so often."""
    sandbox, random = pool._sandboxes[kind], Random(seed)
    scoring = asyncio.gather(*map(pool.score, tasks))
    for _ in range(times):
        await asyncio.sleep(random.uniform(0.05, 0.5))
        assert not scoring.done(), "they came too soon: give more tasks"
        with suppress(ProcessLookupError):
            os.kill(random.choice([sandbox.pid, *descendants(sandbox.pid)]), signal.SIGKILL)
    return await scoring


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_functions_whose_processes_are_killed_score_what_they_would_have(times: int) -> None:
    async def story() -> list[Reward]:
        async with RewardPool(ONLY_FUNCTIONS) as pool:
            return await killed(pool, Kind.FUNCTION, tasks, times, seed=0)

    before = set(descendants(os.getpid()))
    texts = ["x" * (number % 10) for number in range(40 * times)]
    tasks = [FunctionTask(f"{SCORES}:slowly", {"text": text}) for text in texts]
    found = asyncio.run(story())
    assert [(each.status, each.score) for each in found] == [(Status.SCORE, len(text) / 10) for text in texts]
    assert set(descendants(os.getpid())) <= before


@pytest.mark.parametrize(
    ("kind", "task", "score"),
    [
        (Kind.MATHS, MathsTask("\\boxed{x^2 + 2x + 1}", "(x+1)^2"), 1.0),
        (Kind.CODE, CodeTask("sum", Program("import time; time.sleep(0.1); print(3)"), (Case("", "3"),)), 1.0),
        (Kind.CODE, CodeTask("asserts", Program("def f(): return 3"), asserts="assert f() == 4"), 0.0),
    ],
    ids=["maths", "code by cases", "code by asserts"],
)
def test_a_sandbox_that_is_killed_is_made_anew_and_what_it_ran_is_run_again(
    kind: Kind, task: Task, score: float
) -> None:
    async def story() -> list[Reward]:
        async with RewardPool(replace(SETTINGS, turns={kind: 2}), TimeoutPolicy(QUICK)) as pool:
            scoring = asyncio.gather(*(pool.score(task) for _ in range(8)))
            await asyncio.sleep(0.15)
            os.kill(pool._sandboxes[kind].pid, signal.SIGKILL)
            return await scoring

    assert [(each.status, each.score) for each in asyncio.run(story())] == [(Status.SCORE, score)] * 8


def test_a_function_that_is_killed_each_time_is_an_error_and_no_score() -> None:
    async def story() -> Reward:
        async with RewardPool(ONLY_FUNCTIONS) as pool:
            return await pool.score(FunctionTask(f"{SCORES}:kills_itself"))

    found = asyncio.run(story())
    assert (found.status, found.score) == (Status.ERROR, None)
    assert "SIGKILL" in found.detail
