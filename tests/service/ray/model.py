"""Ray as its Jobs API is known to behave, in memory and in virtual time, and calls to it that go wrong.

Jobs come up late, stop late, and take each id once, as the real one does (`test_gateway.py` asks both the same).
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from rollmux.service.ray.gateway import RayGateway, RayJob, RayNode, Unsure, Wish
from rollmux.service.ray.wire import ATTEMPT, SWEEP, from_env

T = TypeVar("T")
CALLS = tuple(name for name, call in vars(RayGateway).items() if inspect.iscoroutinefunction(call) and name != "close")
COMES_UP_S, ENDS_S = 2.0, 1.5
# What takes effect late does so when its caller has long gone on.
LATE_S = 7.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits: when nothing can be done now, it is later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        future.set_result(func(*args))
        return future

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready and loop._scheduled:
            self.now = max(self.now, loop._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


def played(story: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


class RayModel:
    """One cluster. An attempt's command is a word: `run` until it is stopped, `end` or `fail` soon, or `vanish`."""

    def __init__(self, *nodes: str) -> None:
        self._names, self._life = nodes, 0
        self._nodes = self._born()
        self._jobs: dict[str, RayJob] = {}
        self._said: dict[str, str] = {}
        self._stopped: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.running: dict[str, tuple[str, int]] = {}  # whose processes there are now, by submission
        self.ran: list[tuple[str, int]] = []
        self.wrong: list[str] = []

    async def submit(self, wish: Wish) -> None:
        if wish.id not in self._jobs:
            self._jobs[wish.id] = RayJob(wish.id, "PENDING", metadata=dict(wish.metadata))
            self._said[wish.id], self._stopped[wish.id] = "", asyncio.Event()
            self.beside(self._job(wish))

    async def jobs(self) -> dict[str, RayJob]:
        return dict(self._jobs)

    async def job(self, job_id: str) -> RayJob | None:
        return self._jobs.get(job_id)

    async def stop(self, job_id: str) -> None:
        if job_id not in self._jobs:
            raise Unsure("there is no such job")
        self._stopped[job_id].set()

    async def said(self, job_id: str) -> str:
        if job_id not in self._jobs:
            raise Unsure("there is no such job")
        return self._said[job_id]

    async def tail(self, node: str, file: str, lines: int) -> str:
        return ""

    async def nodes(self) -> list[RayNode]:
        return list(self._nodes)

    async def forget(self, job_id: str) -> None:
        if self._jobs[job_id].over:
            del self._jobs[job_id]

    async def close(self) -> None:
        return None

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def starts_anew(self, away_s: float) -> None:
        """Its head, without its memory. Its programs end; ranks run on, on nodes that come back later by other ids."""
        for task in self._tasks:
            task.cancel()
        self._jobs, self._said, self._stopped, self._nodes = {}, {}, {}, []
        self._life += 1
        self.beside(self._come_back(away_s))

    async def _come_back(self, away_s: float) -> None:
        await asyncio.sleep(away_s)
        self._nodes = self._born()

    def _born(self) -> list[RayNode]:
        return [RayNode(f"id-{name}-{self._life}", "10.0.0.1", {name: 1.0}) for name in self._names]

    async def _job(self, wish: Wish) -> None:
        if await self._stops(wish.id, COMES_UP_S):
            self._is(wish.id, "STOPPED")
            return
        self._is(wish.id, "RUNNING")
        if wish.command == ATTEMPT:
            await self._attempt(wish)
        elif wish.command == SWEEP:
            await asyncio.sleep(ENDS_S)
            if self._nodes and {node.id for node in self._nodes} <= {*wish.env["ROLLMUX_SWEPT_NODES"].split(",")}:
                self.running.pop(wish.env["ROLLMUX_SWEPT"], None)
            self._is(wish.id, "SUCCEEDED")
        else:
            self._is(wish.id, "SUCCEEDED")

    async def _attempt(self, wish: Wish) -> None:
        plan = from_env(wish.env)
        what = plan.command[0]
        self._say(wish.id, '{"starting": true}')
        key = plan.job, plan.attempt
        if same := [each for each in self.running.values() if each[0] == key[0]]:
            self.wrong.append(f"{key} begins while {same} runs")
        if key in self.ran:
            self.wrong.append(f"{key} begins twice")
        self.running[wish.id] = key
        self.ran.append(key)
        await asyncio.sleep(ENDS_S)
        self._say(wish.id, '{"up": true}')
        stopped = await self._stops(wish.id, None if what == "run" else ENDS_S)
        if what == "vanish" and not stopped:
            self._is(wish.id, "FAILED")
            return
        await asyncio.sleep(ENDS_S)
        del self.running[wish.id]
        why = "bad luck" if what == "fail" else ""
        self._say(wish.id, f'{{"ended": "{why}", "clean": true}}')
        await asyncio.sleep(ENDS_S)
        self._is(wish.id, "STOPPED" if stopped else "FAILED" if why else "SUCCEEDED")

    async def _stops(self, job_id: str, within_s: float | None) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await self._stopped[job_id].wait()
        except TimeoutError:
            return False

    def _is(self, job_id: str, status: str) -> None:
        if job_id in self._jobs:
            self._jobs[job_id] = RayJob(job_id, status, metadata=self._jobs[job_id].metadata)

    def _say(self, job_id: str, what: str) -> None:
        self._said[job_id] += f"rollmux: {what}\n"


class Fault(Enum):
    """What becomes of one call. In the last three its caller, the whole controller, is killed meanwhile."""

    LOST = "fails before it took effect"
    UNHEARD = "takes effect, and its reply is lost"
    LATE = "is given up, and takes effect later"
    DIES_FIRST = "is never made: the controller is killed"
    DIES_AFTER = "takes effect, and the controller is killed"
    DIES_BEFORE = "takes effect long after the controller was killed"


@dataclass
class Faulty:
    """Any gateway, and the calls to it that go wrong, by their numbers. Whatever is added to it is covered.

    In a `storm` the first calls of each name go wrong too, in these ways.
    """

    inner: Any
    faults: dict[int, Fault]
    storm: tuple[Fault, ...] = ()
    made: list[str] | None = None
    late_s: float = LATE_S

    def __post_init__(self) -> None:
        self.made, self.died = [], asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in CALLS:
            return call

        async def made(*args: Any) -> Any:
            assert self.made is not None
            nth = self.made.count(name)
            self.made.append(name)
            storm = self.storm[nth] if nth < len(self.storm) else None
            return await self._made(call, args, self.faults.get(len(self.made) - 1, storm))

        return made

    async def _made(
        self, call: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...], fault: Fault | None
    ) -> Any:
        if fault is None:
            return await call(*args)
        if fault in (Fault.UNHEARD, Fault.DIES_AFTER):
            await call(*args)
        if fault in (Fault.LATE, Fault.DIES_BEFORE):
            task = asyncio.get_running_loop().create_task(self._later(call, args))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        if fault in (Fault.DIES_FIRST, Fault.DIES_AFTER, Fault.DIES_BEFORE):
            self.died.set()
            await asyncio.Event().wait()
        raise Unsure(f"a call that {fault.value}")

    async def _later(self, call: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        await asyncio.sleep(self.late_s)
        try:
            await call(*args)
        except Exception:  # noqa: BLE001  nobody hears it
            return
