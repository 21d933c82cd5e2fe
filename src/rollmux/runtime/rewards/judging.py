"""Scores by a judge model, many tasks in one pass, in a thread of its own. Nothing here needs torch.

Invariant: each task ends once. A task that can't be judged is an error of its own and never a low score, and a task
whose cap is over while others are judged is a timeout that does not wait for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from math import exp, isfinite
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, TypeVar

from rollmux.checks import MAX_SECONDS, Checks
from rollmux.runtime.rewards.reward import Reward, Status
from rollmux.runtime.rewards.tasks import JudgeTask

Result = TypeVar("Result")


class Judge(Protocol):
    """Says how likely answers are. It is made, called and closed in one thread."""

    def said(self, tasks: Sequence[JudgeTask]) -> Sequence[list[float] | str]:
        """For each task the log-probability of each of its answers, or a text that says why there is none."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """`open_judge` makes the judge. Answers with less probability than `least_mass` in all are no judgement."""

    open_judge: Callable[[], Judge]
    at_once: int = 16
    cap_s: float = 60.0
    least_mass: float = 0.0

    def __post_init__(self) -> None:
        checks = Checks("judge")
        checks.whole("at_once", self.at_once, 1, 100_000, "give the tasks of one pass")
        checks.number("cap_s", self.cap_s, 1e-3, MAX_SECONDS, "give the seconds after which a task is given up")
        checks.number("least_mass", self.least_mass, 0.0, 1.0, "0 takes whatever the judge says")
        checks.require()


@dataclass(slots=True)
class _Waiting:
    task: JudgeTask
    reward: asyncio.Future[Reward]


class _OneThread:
    """Makes calls one after the other, in a thread for which no process waits when it ends."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], None] | None]()
        Thread(target=self._run, name="judge", daemon=True).start()

    def do(self, call: Callable[..., Result], *args: object) -> "asyncio.Future[Result]":
        future = Future[Result]()

        def made() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args))
                except BaseException as error:  # noqa: BLE001 - whoever awaits it is told
                    future.set_exception(error)

        self._calls.put(made)
        return asyncio.wrap_future(future)

    def end(self, *last: Callable[[], None]) -> None:
        """Ends the thread after all calls before, and after these last ones, for whose results nobody waits."""
        for call in (*last, None):
            self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class JudgeScorer:
    """An async context manager around one judge."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._thread = _OneThread()
        self._opened = ExitStack()  # closes the judge
        self._waiting: deque[_Waiting] = deque()
        self._come = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "JudgeScorer":
        try:
            await self._thread.do(self._open)
        except BaseException:
            self._thread.end(self._opened.close)
            raise
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Waits for a pass that runs, as a thread can't be killed, but not for longer than a task's cap."""
        if self._serving is not None:
            self._serving.cancel()
        closing = self._thread.do(self._opened.close)
        self._thread.end()
        await asyncio.wait([closing], timeout=self._settings.cap_s)
        if closing.done():
            closing.result()

    def _open(self) -> None:
        self._judge = self._settings.open_judge()
        self._opened.callback(self._judge.close)

    async def score(self, task: JudgeTask) -> Reward:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(task, loop.create_future())
        start_s = loop.time()
        self._waiting.append(waiting)
        self._come.set()
        try:
            async with asyncio.timeout(self._settings.cap_s):
                return await waiting.reward
        except TimeoutError:
            told = f"no judgement within {self._settings.cap_s:g} s"
            return Reward(Status.TIMEOUT, None, told, 0.0, loop.time() - start_s)

    async def _serve(self) -> None:
        while True:
            await self._come.wait()
            batch = self._next()
            if not batch:
                self._come.clear()
                continue
            for each, reward in zip(batch, await self._judged([each.task for each in batch]), strict=True):
                if not each.reward.done():
                    each.reward.set_result(reward)

    def _next(self) -> list[_Waiting]:
        """The tasks that still wait, as many as go into a pass."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._settings.at_once:
            each = self._waiting.popleft()
            if not each.reward.done():
                batch.append(each)
        return batch

    async def _judged(self, tasks: Sequence[JudgeTask]) -> list[Reward]:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        try:
            said = await self._thread.do(self._judge.said, tasks)
            wall_s = loop.time() - start_s
            return [self._reward(task, each, wall_s) for task, each in zip(tasks, said, strict=True)]
        except Exception as error:  # noqa: BLE001 - whatever a judge raises is its tasks' error, and the next pass goes on
            return [_failed(error, loop.time() - start_s)] * len(tasks)

    def _reward(self, task: JudgeTask, said: list[float] | str, wall_s: float) -> Reward:
        """One task's reward. Its time is that of the whole pass, which others shared."""
        try:
            return self._weighed(task, said, wall_s)
        except Exception as error:  # noqa: BLE001 - what can't be reckoned with is this task's error
            return _failed(error, wall_s)

    def _weighed(self, task: JudgeTask, said: list[float] | str, wall_s: float) -> Reward:
        if isinstance(said, str):
            return Reward(Status.ERROR, None, said, 0.0, wall_s)
        if not all(map(isfinite, said)):
            told = f"log-probabilities {said} are not all numbers: the judge's weights or memory are damaged"
            return Reward(Status.ERROR, None, told, 0.0, wall_s)
        mass = sum(map(exp, said))
        if mass < self._settings.least_mass:
            told = f"the answers together have probability {mass:.3g}, less than {self._settings.least_mass:g}"
            return Reward(Status.ERROR, None, f"{told}: the judge would say something else", 0.0, wall_s)
        score, told = expected(task, said)
        return Reward(Status.SCORE, score, f"{told}; together {mass:.3g}", 0.0, wall_s)


def _failed(error: Exception, wall_s: float) -> Reward:
    return Reward(Status.ERROR, None, f"{type(error).__name__}: {error}", 0.0, wall_s)


def expected(task: JudgeTask, logprobs: Sequence[float]) -> tuple[float, str]:
    """The mean worth if the judge had to give one of these answers, and each answer's share in words."""
    highest = max(logprobs)
    weights = [exp(each - highest) for each in logprobs]
    shares = [weight / sum(weights) for weight in weights]
    told = ", ".join(f"{answer.strip()} {share:.3g}" for answer, share in zip(task.answers, shares, strict=True))
    return sum(share * worth for share, worth in zip(shares, task.answers.values(), strict=True)), told
