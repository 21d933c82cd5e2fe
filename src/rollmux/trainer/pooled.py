"""Rewards and replies by a `RewardPool`: in processes beside the rollout, while the engines go on.

The pool lives in an event loop in a thread of its own, from the first response on. Each response is a future there.

Invariants: a cancelled response is never told, and its work is killed; with a `lag` a reward's tick of the token clock
is a matter of the tick in which its response ended, never of how long the reward took.
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


# Processor seconds of a mathematical answer or a function, by the clock twice as many: what sleeps or waits for a core.
CLOCK_FACTOR = 2.0
# What a judge is read from, and how much of it at each start: of weights that are larger the size must do.
JUDGE_FILES, LARGEST_READ = (".json", ".jinja", ".model", ".txt", ".safetensors", ".bin"), 2**25
# Tests of a group that were passed, after which one that none has passed yet has the limits of the slowest of them.
GROUP_RUNS = 20
JUDGE_TURNS = 2  # one is judged, and one waits: more would only use up their caps


@dataclass(frozen=True, slots=True)
class _Waiting:
    tick: int  # in which its reward is told
    asked: Asked
    reward: Future[Reward]


class Pooled:
    """Scores what `asked` makes of a prompt and of what was said to it, and replies by what `reply_asked` makes of it.

    Rewards are told `lag` ticks after their responses came, in their order, and waited for if need be; with 0 they are
    told as they come. Programs that were cut off by a limit of time have no reward, or, with `late_is_zero`, none left.
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
        self._waiting: dict[Request, _Waiting] = {}  # by their ticks
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
        """A pool that can't start raises in `replies`."""
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
        """A pool that can't start raises here, for no reward will ever come."""
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
        """All of one tick or none, so that it does not matter which of them is there first."""
        last = self._tick
        if may_wait and self._waiting:
            last = max(last, next(iter(self._waiting.values())).tick)
        return [request for request, each in takewhile(lambda one: one[1].tick <= last, self._waiting.items())]

    def state(self) -> dict[str, Any]:
        """The limits of time that code has earned."""
        timeouts = self._pool.timeouts
        return timeouts.state() if self._started is None else self._started.do(_state(timeouts))

    def close(self) -> None:
        self.cancel([*self._waiting, *self._talking.of])
        if self._started is not None:
            self._started.close()
            self._started = None


async def _state(timeouts: TimeoutPolicy) -> dict[str, Any]:
    """Where they are learnt, so that nothing changes meanwhile."""
    return timeouts.state()


class _Futures(Generic[T]):
    """Futures, and which of them are done, without a look at the others: there may be thousands, and this each tick."""

    def __init__(self) -> None:
        self.of: dict[Request, Future[T]] = {}
        self._done: dict[Request, Future[T]] = {}
        self._coming = SimpleQueue[tuple[Request, Future[T]]]()

    def add(self, request: Request, future: Future[T]) -> None:
        self.of[request] = future
        future.add_done_callback(lambda done: self._coming.put((request, done)))

    def done(self, wait_s: float | None) -> list[Request]:
        """Those that are there and done, in the order in which they came to be. If none is, waits for one that long."""
        self._done = {request: each for request, each in self._done.items() if self.of.get(request) is each}
        with suppress(Empty):
            while self.of:
                request, future = self._coming.get(timeout=0.0 if self._done else wait_s)
                if self.of.get(request) is future:
                    self._done[request] = future
        return [*self._done]


class _Beside:
    """A thread with an event loop, and the pool in it. It starts at once, and is waited for by those to be scored."""

    def __init__(self, pool: RewardPool) -> None:
        self._pool = pool
        self._started = asyncio.Event()
        self._refusal: Exception | None = None
        self._loop = asyncio.new_event_loop()
        # A daemon: whoever forgets to close can end all the same, and the pool's processes end with this one.
        self._thread = Thread(target=self._loop.run_forever, name="rewards", daemon=True)
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(self._start(), self._loop)

    def score(self, asked: Asked) -> Future[Reward]:
        """Cancelling it kills what it has started."""
        return asyncio.run_coroutine_threadsafe(self._asked(self._pool.score, asked), self._loop)

    def reply(self, told: FunctionTask) -> Future[Reply]:
        """Likewise."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, each who waits for the pool is told
            self._refusal = error
        finally:
            self._started.set()

    async def _asked(self, ask: Callable[[T], Awaitable[Result]], what: T) -> Result:
        await self._started.wait()
        if self._refusal is not None:
            raise self._refusal
        return await ask(what)

    async def _end(self) -> None:
        """A start that is under way is broken off, and cleans up behind itself."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._pool.close()


def open_pooled(rewards: Rewards, task: Task, state: dict[str, Any]) -> Pooled:
    """As a job file describes it, with the limits of time that a checkpoint knows."""
    settings = TimeoutSettings(prior_after=GROUP_RUNS)
    timeouts = TimeoutPolicy.from_state(settings, state) if state else TimeoutPolicy(settings)
    pool = RewardPool(pool_settings(rewards, task.needs), timeouts)
    return Pooled(pool, task.asked, rewards.lag, rewards.code_timeout == "zero", task.reply_asked)


def pool_settings(rewards: Rewards, needs: Needs) -> PoolSettings:
    """Turns for what rewards need, and for nothing else: each kind starts processes of its own."""
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
        # One to a pass: what a judge says of a response does not depend on its company, and a run repeats itself.
        judge=JudgeSettings(partial(open_judge, folder), at_once=1, cap_s=wall_s) if asks_judge else None,
        function_modules=needs.modules,
        function_folders=needs.folders,
        confine_functions=rewards.functions == "confined",
        allow=[Concern[name.upper()] for name in rewards.allowed],
    )


def judge_digest(folder: Path) -> str:
    """Of the judge there: another one gives other rewards."""
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in JUDGE_FILES:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            if size <= LARGEST_READ:
                digest.update(path.read_bytes())
    return digest.hexdigest()
