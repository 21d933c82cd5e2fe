"""A reward pool that plain functions can call."""

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Self, TypeVar

from rollmux.packer.timeouts import TimeoutPolicy, TimeoutSettings
from rollmux.runtime.rewards import Kind, PoolSettings, Reward, RewardPool, Task
from rollmux.runtime.sandbox import Concern, RunLimits

T = TypeVar("T")
QUICK = TimeoutSettings(floor_s=0.3, ceiling_s=2.0, wall_factor=4.0, audit_every=1)
SETTINGS = PoolSettings(
    turns={Kind.MATHS: 2, Kind.CODE: 2, Kind.FUNCTION: 2, Kind.ASYNC: 8},
    function=RunLimits(cpu_s=30.0, wall_s=3.0, address_bytes=None),
    maths=RunLimits(cpu_s=2.0, wall_s=30.0),
    async_cap_s=0.3,
    function_modules=["tests.runtime.rewards.scores"],
    allow=list(Concern),
)
ONLY_FUNCTIONS = replace(SETTINGS, turns={Kind.FUNCTION: 2})  # where maths is warm begins two seconds of a core later


class Pooled:
    """An event loop in a thread with one pool."""

    def __init__(self, settings: PoolSettings = SETTINGS) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.pool = self.do(self._made())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _made(self) -> RewardPool:
        return await RewardPool(self._settings, TimeoutPolicy(QUICK)).start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def score(self, task: Task) -> Reward:
        return self.do(self.pool.score(task))
