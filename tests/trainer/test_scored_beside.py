"""A run whose rewards come from a pool: what it trains, what repeats itself, and what is left when it ends."""

import asyncio
import os
import signal
import threading
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from rollmux.runtime.rewards import AsyncTask, Kind, PoolSettings, RewardPool
from rollmux.runtime.sandbox.tree import descendants
from rollmux.trainer.checkpoints import Checkpoints
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.job import train
from rollmux.trainer.metrics import METRICS
from rollmux.trainer.parts import Parts
from rollmux.trainer.pooled import Pooled
from rollmux.trainer.rollout import Rollout
from rollmux.trainer.scoring import Direct
from tests.forking import ROLLMUX, begun
from tests.thorough import some
from tests.trainer import scores
from tests.trainer.jobs import TINY, alone, left_behind, metrics, score_by, tiny
from tests.trainer.test_resume import Killed, killer
from tests.waiting import until

POOL: dict[str, Any] = {"scorer": "pool", "workers": 4}
SYNC = {"mode": "sync"}
RACE = {"race": "rewarded", "eta_responses": 1.5}


def unheard(done: int, total: int) -> None:
    """Progress that nobody wants to know."""


@pytest.mark.parametrize("lag", [0, 16])
def test_where_all_responses_are_awaited_a_pool_trains_what_direct_rewards_do_byte_for_byte(
    lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(batching=SYNC, steps=2), tmp_path / "direct", alone())
    score_by(scores.some_time, monkeypatch)
    train(tiny(batching=SYNC, steps=2, rewards={**POOL, "lag": lag}), tmp_path / "pool", alone())
    assert left_behind(tmp_path / "pool") == left_behind(tmp_path / "direct")


def test_with_a_lag_a_race_repeats_itself_and_goes_on_as_it_would_have_however_long_rewards_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_by(scores.some_time, monkeypatch)
    job = tiny(steps=2, rewards=POOL, batching=RACE)
    train(job, tmp_path / "whole", alone())
    with monkeypatch.context() as patched:
        killer(patched, Checkpoints, "save", 1, False)
        with pytest.raises(Killed):
            train(job, tmp_path / "resumed", alone())
    train(job, tmp_path / "resumed", alone(), resume=True)
    assert left_behind(tmp_path / "resumed") == left_behind(tmp_path / "whole")
    assert sum(each["aborted"] for each in metrics(tmp_path / "whole"))


def test_a_reward_that_fails_is_told_by_its_cause_and_its_response_is_launched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_by(scores.fails_on_short, monkeypatch)
    train(tiny(steps=2, batching=SYNC, rewards=POOL), tmp_path, alone())
    found = metrics(tmp_path)
    assert [each["responses"] for each in found] == [12, 12]
    assert sum(each["failed"] for each in found) > 0
    assert [each["failures"] for each in found] == [
        {"reward error": each["failed"]} if each["failed"] else {} for each in found
    ]


def test_rewards_that_hang_are_timeouts_and_end_a_run_that_has_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_by(scores.hangs, monkeypatch)
    job = tiny(batching={**SYNC, "prompts": 1, "responses": 2}, rewards={**POOL, "cap_s": 0.1})
    others = set(below(os.getpid()))  # of tests before this one
    with pytest.raises(RolloutStuck, match="reward timeout: "):
        train(job, tmp_path, alone())
    assert scores.alive([pid for pid in below(os.getpid()) if pid not in others]) == []


def test_the_engines_go_on_while_rewards_are_worked_out() -> None:
    """No reward comes before all responses have ended: a rollout that waited for one would get none."""
    made = Parts(tiny(batching=SYNC))
    ended: list[str] = []

    async def score() -> float:
        while len(ended) < 12:
            await asyncio.sleep(0.001)
        return 1.0

    def asked(number: int, response: str) -> AsyncTask:
        ended.append(response)
        return AsyncTask(score)

    pool = RewardPool(PoolSettings(turns={Kind.ASYNC: 16}, async_cap_s=20.0))
    was, scorer = made.rollout, Pooled(pool, asked, lag=0)
    rollout = Rollout(was.engines, was.batcher, was.data, made.task, scorer, tiny().sampling, 48, seed=0)
    with closing(rollout):
        rolled = rollout.round(unheard)
    assert {each.reward for each in rolled.samples} == {1.0}
    assert (len(ended), rolled.failures) == (12, {})


def test_after_a_round_no_reward_is_awaited_or_worked_out() -> None:
    job = tiny(batching=RACE, rewards=POOL)
    made = Parts(job)
    for version in (1, 2):
        made.rollout.round(unheard)
        assert made.rollout.scorer.pending == 0
        made.rollout.update(version)
    made.close()


def below(root: int) -> list[int]:
    """What a sandbox of rewards has started there, and the sandbox itself."""
    return [pid for pid in descendants(root) if pid != root]


@pytest.mark.parametrize("ends", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_leaves_no_process_of_its_pool(
    ends: signal.Signals, tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**TINY, "rewards": POOL, "steps": 1000}), encoding="utf-8")
    out, said = tmp_path / "out", tmp_path / "said"
    process = begun(ROLLMUX, "train", str(file), "--out", str(out), said=said, env=environment).process
    try:
        until(lambda: (out / METRICS).exists() and (out / METRICS).read_text().count("\n") >= 2, instead=said.read_text)
        assert process.pid is not None
        started = below(process.pid)
        assert started, "the pool has processes"
        os.kill(process.pid, ends)
        process.join()
    finally:
        process.kill()
    until(lambda: scores.alive(started) == [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(3), every=3))
def test_a_run_whose_reward_processes_are_killed_over_and_over_ends_with_every_prompt_accounted_for(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever it is: a worker, its keeper, or the process that all of them are forked from, twice in a row at most.

    That one is alone while it starts, which takes a busy machine longer than it lives here; killed a third time it is
    given up, as `test_sandbox.py` shows.
    """
    others, rng, over, kills = set(below(os.getpid())), Random(seed), threading.Event(), list[int]()

    def kill() -> None:
        in_a_row = 0
        while not over.wait(rng.uniform(0.05, 0.4)):
            running = [pid for pid in below(os.getpid()) if pid not in others]
            first = running[:1]  # who comes before its children, and starts them
            if victims := running if in_a_row < 2 else running[1:]:
                victim = rng.choice(victims)
                in_a_row = in_a_row + 1 if [victim] == first else 0
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    kills.append(1)

    score_by(scores.some_time, monkeypatch)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = train(tiny(batching=SYNC, steps=8, rewards=POOL), tmp_path, alone())
    finally:
        over.set()
        killer.join()
    assert found is not None
    assert len(kills) > 2  # how many is a matter of the machine's speed
    told = metrics(tmp_path)
    assert [(each["prompts"], each["responses"]) for each in told] == [(3, 12)] * 8
    assert {cause for each in told for cause in each["failures"]} <= {"reward error"}
    accounts = found["epochs"].values()
    assert sum(each["trained"] + each["failed"] for each in accounts) == sum(each["drawn"] for each in accounts)
    until(lambda: [pid for pid in scores.alive(below(os.getpid())) if pid not in others] == [])


def test_both_scorers_are_told_by_the_job_file() -> None:
    assert isinstance(Parts(tiny()).rollout.scorer, Direct)
    assert isinstance(Parts(tiny(rewards=POOL)).rollout.scorer, Pooled)
