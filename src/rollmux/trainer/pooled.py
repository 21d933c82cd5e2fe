"""Rewards and replies from a `RewardPool`: processes beside the rollout compute them, while the engines go on.

From the first response on the pool runs in an event loop in a thread of its own, with a future for each response.

Invariants: the reward of a cancelled response is never told, and its work is killed; with a `lag` the tick of the token
clock at which a reward is told depends on the tick in which its response ended, never on how long the reward took.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from rollmux.errors import InvalidSpec, Problem
from rollmux.packer import Request
from rollmux.packer.timeouts import TimeoutPolicy, TimeoutSettings
from rollmux.runtime.judge.opening import open_judge
from rollmux.runtime.rewards import (
    CodeTask,
    FunctionTask,
    JudgeSettings,
    Kind,
    PoolSettings,
    Reply,
    Reward,
    RewardPool,
    Status,
    Told,
)
from rollmux.runtime.rewards import Task as Asked
from rollmux.runtime.sandbox import Concern
from rollmux.trainer.scoring import Scored
from rollmux.trainer.settings import Rewards
from rollmux.trainer.tasks import Needs, Task

T = TypeVar("T")
Result = TypeVar("Result")


# The limit by the clock over that of processor time, for a mathematical answer or a function, which may sleep or wait.
CLOCK_FACTOR = 2.0
# The files of a judge, and the largest whose bytes are compared at each start: of larger weights only the size is.
JUDGE_FILES, LARGEST_READ = (".json", ".jinja", ".model", ".txt", ".safetensors", ".bin"), 2**25
# After so many passed tests of a group, a test that was never passed gets the limits of the slowest of them.
GROUP_RUNS = 20
JUDGE_TURNS = 2  # one is judged, and one waits: the time of others would only run out


@dataclass(frozen=True, slots=True)
class _Waiting:
    tick: int  # the tick at which its reward is told
    asked: Asked
    reward: Future[Reward]


class Pooled:
    """Scores responses by the task that `asked` makes of prompt and turns, and replies by the one of `reply_asked`.

    Rewards are told `lag` ticks after their responses came, in the order of these, and waited for if need be; with 0
    they are told as they come. A program that a time limit cut off has no reward, or 0 with `late_is_zero`.
    """

    def __init__(
        self,
        pool: RewardPool,
        asked: Callable[..., Asked],
        lag: int,
        late_is_zero: bool = False,
        reply_asked: Callable[..., FunctionTask | None] = lambda *said: None,
    ) -> None:
        self._pool, self._asked, self._lag, self._late_is_zero = pool, asked, lag, late_is_zero
        self._reply_asked = reply_asked
        self._started: _Beside | None = None
        self._waiting: dict[Request, _Waiting] = {}  # in the order of their ticks
        self._rewards, self._talking = _Futures[Reward](), _Futures[Reply]()  # rewards that are told as they come
        self._tick = 0

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def _beside(self) -> "_Beside":
        if self._started is None:
            self._started = _Beside(self._pool)
        return self._started

    def ask(self, request: Request, *said: Told) -> Reply | None:
        """Asks for the reply, which `replies` gives later. If the pool can't start, `replies` raises."""
        asked = self._reply_asked(int(request.prompt.id), *said)
        if asked is None:
            return Reply()
        self._talking.add(request, self._beside.reply(asked))
        return None

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        return [(request, self._talking.of.pop(request).result()) for request in self._talking.done(wait_s)]

    def submit(self, request: Request, *said: Told) -> None:
        asked = self._asked(int(request.prompt.id), *said)
        self._waiting[request] = _Waiting(self._tick + 1 + self._lag, asked, self._beside.score(asked))
        if not self._lag:
            self._rewards.add(request, self._waiting[request].reward)

    def cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if found := self._waiting.pop(request, None):
                self._rewards.of.pop(request, None)
                found.reward.cancel()
            if reply := self._talking.of.pop(request, None):
                reply.cancel()

    def collect(self, wait: bool) -> list[Scored]:
        """The rewards that are due at the next tick. Raises if the pool can't start, as no reward would ever come."""
        self._tick += 1
        due = self._due(wait) if self._lag else self._rewards.done(None if wait else 0.0)
        return [Scored(request, self._reward(request)) for request in due]

    def _reward(self, request: Request) -> Reward:
        known = self._waiting.pop(request)
        self._rewards.of.pop(request, None)
        reward = known.reward.result()
        if self._late_is_zero and reward.status is Status.TIMEOUT and isinstance(known.asked, CodeTask):
            return replace(reward, status=Status.SCORE, score=0.0)
        return reward

    def _due(self, may_wait: bool) -> list[Request]:
        """The requests whose rewards are due: all of a tick or none, so it does not matter which reward comes first."""
        last = self._tick
        if may_wait and self._waiting:
            last = max(last, next(iter(self._waiting.values())).tick)
        return [request for request, each in takewhile(lambda one: one[1].tick <= last, self._waiting.items())]

    def state(self) -> dict[str, Any]:
        """The time limits that were learnt for code."""
        timeouts = self._pool.timeouts
        return timeouts.state() if self._started is None else self._started.do(_state(timeouts))

    def close(self) -> None:
        self.cancel([*self._waiting, *self._talking.of])
        if self._started is not None:
            self._started.close()
            self._started = None


async def _state(timeouts: TimeoutPolicy) -> dict[str, Any]:
    """Runs in the pool's loop, where the limits are learnt: so nothing changes meanwhile."""
    return timeouts.state()


class _Futures(Generic[T]):
    """Futures, and a list of those that are done, kept so that no tick has to look at thousands of others."""

    def __init__(self) -> None:
        self.of: dict[Request, Future[T]] = {}
        self._done: dict[Request, Future[T]] = {}
        self._coming = SimpleQueue[tuple[Request, Future[T]]]()

    def add(self, request: Request, future: Future[T]) -> None:
        self.of[request] = future
        future.add_done_callback(lambda done: self._coming.put((request, done)))

    def done(self, wait_s: float | None) -> list[Request]:
        """The requests whose futures are done, in the order in which they ended. If there is none, waits up to `wait_s`
        for one."""
        self._done = {request: each for request, each in self._done.items() if self.of.get(request) is each}
        with suppress(Empty):
            while self.of:
                request, future = self._coming.get(timeout=0.0 if self._done else wait_s)
                if self.of.get(request) is future:
                    self._done[request] = future
        return [*self._done]


class _Beside:
    """A thread with an event loop, and the pool in it. The pool starts at once; calls to it wait until it has."""

    def __init__(self, pool: RewardPool) -> None:
        self._pool = pool
        self._started = asyncio.Event()
        self._refusal: Exception | None = None
        self._loop = asyncio.new_event_loop()
        # A daemon: a process that forgets to close can still end, and the pool's processes end with it.
        self._thread = Thread(target=self._loop.run_forever, name="rewards", daemon=True)
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(self._start(), self._loop)

    def score(self, asked: Asked) -> Future[Reward]:
        """The future reward. Cancelling it kills what it has started."""
        return asyncio.run_coroutine_threadsafe(self._asked(self._pool.score, asked), self._loop)

    def reply(self, told: FunctionTask) -> Future[Reply]:
        """The future reply. Cancelling it kills what it has started."""
        return asyncio.run_coroutine_threadsafe(self._asked(self._pool.reply, told), self._loop)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        try:
            await self._pool.start()
        except Exception as error:  # noqa: BLE001 - every call that waits for the pool raises it
            self._refusal = error
        finally:
            self._started.set()

    async def _asked(self, ask: Callable[[T], Awaitable[Result]], what: T) -> Result:
        await self._started.wait()
        if self._refusal is not None:
            raise self._refusal
        return await ask(what)

    async def _end(self) -> None:
        """Ends the pool. A start that is under way is broken off, and cleans up after itself."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._pool.close()


def open_pooled(rewards: Rewards, task: Task, state: dict[str, Any]) -> Pooled:
    """The scorer that a job file describes, with the time limits that a checkpoint has learnt."""
    settings = TimeoutSettings(prior_after=GROUP_RUNS)
    timeouts = TimeoutPolicy.from_state(settings, state) if state else TimeoutPolicy(settings)
    pool = RewardPool(pool_settings(rewards, task.needs), timeouts)
    return Pooled(pool, task.asked, rewards.lag, rewards.code_timeout == "zero", task.reply_asked)


def pool_settings(rewards: Rewards, needs: Needs) -> PoolSettings:
    """The pool's settings. Only kinds that the task's rewards need get turns: each kind starts processes of its own."""
    asks_judge, folder = Kind.JUDGE in needs.kinds, Path(rewards.judge)
    if asks_judge and not (rewards.judge and (folder / "config.json").is_file()):
        limit, remedy = "a folder with a model, as `save_pretrained` writes it", "name the model that is to judge"
        raise InvalidSpec("job", (Problem("job.rewards.judge", rewards.judge, limit, remedy),))
    standard = PoolSettings()
    cpu_s, wall_s = rewards.cap_s, rewards.cap_s * CLOCK_FACTOR
    turns = {kind: rewards.workers or standard.turns[kind] for kind in needs.kinds if kind is not Kind.JUDGE}
    return PoolSettings(
        turns=turns | ({Kind.JUDGE: JUDGE_TURNS} if asks_judge else {}),
        maths=replace(standard.maths, cpu_s=cpu_s, wall_s=wall_s),
        function=replace(standard.function, cpu_s=cpu_s, wall_s=wall_s),
        async_cap_s=wall_s,
        # One response to a pass: its score does not depend on others in the pass, so a run repeats itself.
        judge=JudgeSettings(partial(open_judge, folder), at_once=1, cap_s=wall_s) if asks_judge else None,
        function_modules=needs.modules,
        function_folders=needs.folders,
        confine_functions=rewards.functions == "confined",
        allow=[Concern[name.upper()] for name in rewards.allowed],
    )


def judge_digest(folder: Path) -> str:
    """A digest of the judge in this folder: another judge gives other rewards."""
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in JUDGE_FILES:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            if size <= LARGEST_READ:
                digest.update(path.read_bytes())
    return digest.hexdigest()
