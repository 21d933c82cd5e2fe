"""Scores responses side by side, up to a number of each kind at once, and replies to those that may go on.

Invariant: every submitted task ends in exactly one `Reward`. A task that hangs costs its own cap; the other turns
of its kind and all other kinds go on. After `close` no process of the pool is left.
"""

import asyncio
import os
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

from rollmux.checks import MAX_SECONDS, Checks
from rollmux.packer.timeouts import TimeoutPolicy
from rollmux.runtime.rewards.budget import Budget
from rollmux.runtime.rewards.code import Audit, CodeScorer
from rollmux.runtime.rewards.functions import Functions, score_here
from rollmux.runtime.rewards.judging import JudgeScorer, JudgeSettings
from rollmux.runtime.rewards.maths import MathsScorer
from rollmux.runtime.rewards.reward import Reply, Reward, Status
from rollmux.runtime.rewards.tasks import KINDS, AsyncTask, CodeTask, FunctionTask, JudgeTask, Kind, MathsTask, Task
from rollmux.runtime.sandbox import Concern, Mechanism, Protections, RunLimits, Sandbox, SandboxError
from rollmux.system import cores

_MOST_AUDITS = 100  # beyond these the oldest is dropped: audits only measure
_TRIES = 3  # work that broke off is tried again: a kill from outside says nothing about a response
_CALLED_OFF = "called off"
_CORES = cores()

Told = TypeVar("Told", Reward, Reply)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many tasks of each kind run at once (`turns`), and what each may take. `timeouts` sets code's times."""

    turns: Mapping[Kind, int] = field(
        default_factory=lambda: {Kind.MATHS: _CORES, Kind.CODE: _CORES, Kind.FUNCTION: _CORES, Kind.ASYNC: 256}
    )
    code: RunLimits = field(default_factory=RunLimits)
    maths: RunLimits = field(default_factory=lambda: RunLimits(cpu_s=10.0, wall_s=20.0))
    function: RunLimits = field(default_factory=lambda: RunLimits(cpu_s=60.0, wall_s=60.0, address_bytes=None))
    async_cap_s: float = 60.0
    judge: JudgeSettings | None = None  # needed if `turns` has some for judges
    function_modules: Sequence[str] = ()
    function_folders: Sequence[str] = ()  # where functions' modules are looked for last
    confine_functions: bool = False  # functions are given texts of strangers, and some run them
    allow: Collection[Concern] = ()

    def __post_init__(self) -> None:
        checks = Checks("pool")
        for kind, turns in self.turns.items():
            checks.whole(f"turns[{kind.value}]", turns, 0, 100_000, "0 refuses that kind")
        checks.number("async_cap_s", self.async_cap_s, 1e-3, MAX_SECONDS, "give the seconds after which it is given up")
        if self.turns.get(Kind.JUDGE) and self.judge is None:
            checks.report("judge", None, "given with turns[judge]", "say how to open one, or leave out its turns")
        checks.require()


class Scoring:
    """One task on its way to its reward. Cancelling it kills what it has started."""

    def __init__(self, work: asyncio.Task[Reward]) -> None:
        self._work = work

    def cancel(self) -> None:
        """Makes the reward CANCELLED, unless it is known already."""
        self._work.cancel()

    async def reward(self) -> Reward:
        """Waits for the reward. To stop waiting cancels the scoring too."""
        await _end_of(self._work)
        return _outcome(self._work)


class RewardPool:
    """Scores tasks within `async with`. What a kind needs is started with the pool, if the kind has turns."""

    def __init__(self, settings: PoolSettings | None = None, timeouts: TimeoutPolicy | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.timeouts = timeouts or TimeoutPolicy()
        self.outcomes: Counter[tuple[Kind, Status]] = Counter()
        self._budgets: dict[Kind, Budget] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._sandboxes: dict[Kind, Sandbox] = {}
        self._stack = AsyncExitStack()
        self._is_open = self._is_taken = False  # taken: from before it is open until all of it is closed
        self._audits: deque[Audit] = deque(maxlen=_MOST_AUDITS)
        self._auditor: asyncio.Task[None] | None = None

    @property
    def protections(self) -> Protections:
        """What stands between the code that is scored and this machine."""
        if Kind.CODE not in self._sandboxes:
            raise SandboxError("no code is scored in this pool: give it turns, and start the pool")
        return self._sandboxes[Kind.CODE].protections

    async def start(self) -> Self:
        """Starts the pool. Once closed it may be started again, in another event loop too."""
        if self._is_taken:
            raise SandboxError("the pool is started already: start it once, or close it before")
        settings = self.settings
        self._budgets = {kind: Budget(turns) for kind, turns in settings.turns.items() if turns}
        self._audits_wait = asyncio.Event()
        async with AsyncExitStack() as stack:
            self._is_taken = True
            stack.callback(setattr, self, "_is_taken", False)
            for kind, sandbox in _sandboxes(settings).items():
                if kind in self._budgets:
                    self._sandboxes[kind] = await stack.enter_async_context(sandbox)
            if Kind.JUDGE in self._budgets and settings.judge is not None:
                self._judge = await stack.enter_async_context(JudgeScorer(settings.judge))
            self._stack = stack.pop_all()
        if Kind.CODE in self._budgets:
            self._code = CodeScorer(self._sandboxes[Kind.CODE], self.timeouts, settings.code, self._audit_later)
            self._auditor = asyncio.create_task(self._audit())
        if Kind.MATHS in self._budgets:
            self._maths = MathsScorer(self._sandboxes[Kind.MATHS], settings.maths)
        if Kind.FUNCTION in self._budgets:
            self._functions = Functions(self._sandboxes[Kind.FUNCTION], settings.function)
        self._is_open = True
        return self

    async def close(self) -> None:
        """Cancels all work that still runs, and ends the pool's processes."""
        self._is_open = False
        running = [*self._running, *([] if self._auditor is None else [self._auditor])]
        for task in running:
            task.cancel()
        try:
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def submit(self, task: Task) -> Scoring:
        kind = KINDS[type(task)]
        work = self._begin(kind, lambda: self._scored(task), lambda why: Reward(Status.ERROR, None, why))
        work.add_done_callback(lambda done: self._count(kind, done))
        return Scoring(work)

    def _count(self, kind: Kind, work: asyncio.Task[Reward]) -> None:
        self.outcomes[kind, _outcome(work).status] += 1

    async def score(self, task: Task) -> Reward:
        return await self.submit(task).reward()

    async def reply(self, task: FunctionTask) -> Reply:
        """What the function replies to a response. To stop waiting ends the call, with all that it has started."""
        work = self._begin(Kind.FUNCTION, lambda: self._functions.reply(task), lambda why: Reply(None, why))
        await _end_of(work)
        return Reply(None, _CALLED_OFF) if work.cancelled() else work.result()

    def _begin(
        self, kind: Kind, ask: Callable[[], Awaitable[Told]], untold: Callable[[str], Told]
    ) -> asyncio.Task[Told]:
        """Calls `ask` once it has a turn. `untold` makes the result if asking fails."""
        if not self._is_open:
            raise SandboxError("the pool is not started, or closed: score within `async with`")
        if kind not in self._budgets:
            raise SandboxError(f"{kind.value} has no turns in this pool: give it some in PoolSettings.turns")
        work = asyncio.create_task(self._told(self._budgets[kind], ask, untold))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return work

    async def _told(self, budget: Budget, ask: Callable[[], Awaitable[Told]], untold: Callable[[str], Told]) -> Told:
        broke = ""
        async with budget:
            for _ in range(_TRIES):
                try:
                    return await ask()
                except (SandboxError, OSError) as error:
                    broke = str(error) or type(error).__name__
                except Exception as error:  # noqa: BLE001 - a task that can't be asked at all has one outcome too
                    return untold(f"{type(error).__name__}: {error}")
        return untold(broke)

    async def _scored(self, task: Task) -> Reward:
        match task:
            case MathsTask():
                return await self._maths.score(task)
            case CodeTask():
                return await self._code.score(task)
            case FunctionTask():
                return await self._functions.score(task)
            case AsyncTask():
                return await score_here(task, self.settings.async_cap_s)
            case JudgeTask():
                return await self._judge.score(task)

    def _audit_later(self, audit: Audit) -> None:
        self._audits.append(audit)
        self._audits_wait.set()

    async def _audit(self) -> None:
        """Runs audits one at a time, and only while no code waits or runs."""
        while True:
            await self._audits_wait.wait()
            await self._budgets[Kind.CODE].idle()
            if self._audits:
                with suppress(SandboxError, OSError):
                    await self._code.audit(self._audits.popleft())
            else:
                self._audits_wait.clear()


async def _end_of(work: asyncio.Task[Any]) -> None:
    """Waits for the end of work, and cancels it if the wait is cancelled."""
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        work.cancel()
        raise


def _outcome(work: asyncio.Task[Reward]) -> Reward:
    """The reward of work that is done. Work that was cancelled before its first step has none of its own."""
    return Reward(Status.CANCELLED, None, _CALLED_OFF) if work.cancelled() else work.result()


def _sandboxes(settings: PoolSettings) -> dict[Kind, Sandbox]:
    """Confines code and answers, which may be hostile. The caller's functions are watched, and confined if asked."""
    path = [os.path.abspath(each) for each in (*sys.path, *settings.function_folders)]
    functions = partial(Sandbox, warm=["rollmux.runtime.rewards.functions", *settings.function_modules], path=path)
    return {
        Kind.CODE: Sandbox(allow=settings.allow, warm=["rollmux.runtime.rewards.asserts.calls"]),
        Kind.MATHS: Sandbox(allow=settings.allow, warm=["rollmux.runtime.rewards.maths:warm"]),
        Kind.FUNCTION: functions(allow=settings.allow, readable=path)
        if settings.confine_functions
        else functions(allow=list(Concern), without=list(Mechanism), environment=dict(os.environ), folder=os.getcwd()),
    }
