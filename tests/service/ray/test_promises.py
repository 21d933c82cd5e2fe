"""Whatever becomes of any call to Ray, the launcher keeps its promises: each call, at each point, in each way.

The calls of a story are counted, then the story is told again for each of them and each way in which it can go wrong.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rollmux.mux.placed import Placement
from rollmux.protocol.job_file import Submission
from rollmux.service.launcher import Attempt, LaunchFailed
from rollmux.service.ray.launcher import Pace, RayLauncher
from tests import builders
from tests.service.ray.model import CALLS, Fault, Faulty, RayModel, played
from tests.thorough import some

PACE = Pace(look_s=2.0, pause_s=2.0, begin_s=12.0, start_s=24.0, word_s=5.0, sweep_s=30.0)
LONG_S = 15.0


@pytest.fixture(autouse=True)
def _unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is logged of each of a thousand faults is of no interest, and no power is cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Story:
    """A controller and its lives: what it does again after a death is what a journal would have it do again."""

    def __init__(self, folder: Path, faults: dict[int, Fault]) -> None:
        self.folder, self.ray = folder, RayModel("rollout-0", "train-0")
        self.calls = Faulty(self.ray, faults)
        self.told: Counter[tuple[str, int]] = Counter()
        self.reasons: dict[tuple[str, int], str] = {}
        self.latest: Counter[str] = Counter()
        self.running: set[tuple[str, int]] = set()

    async def tell(self) -> None:
        await self.new_life()
        a = await self.starts("a", "run")
        assert self.ray.running
        await self.does(lambda: self.launcher.start(self.attempt(a, "run")))
        await self.stops(a)
        ends = await self.starts("a", "fail")
        await self.hears_of(ends)
        assert self.reasons[ends] == "bad luck"
        away = await self.starts("b", "end")
        a = await self.starts("a", "run")
        self.dies()
        await asyncio.sleep(LONG_S)
        await self.new_life()
        assert a in self.running
        assert away not in self.running
        assert self.told[away] == 1
        await self.does(lambda: self.launcher.start(self.attempt(a, "run")))
        await self.stops(a)
        await self.stops_while_it_starts("a")
        vanishes = await self.starts("a", "vanish")
        await self.hears_of(vanishes)
        await self.dies_and_lives()
        await asyncio.sleep(LONG_S)
        assert self.ray.running == {}
        assert self.running == set()
        assert self.ray.wrong == []
        assert max(self.told.values()) == 1
        self.dies()

    # -- what a controller does --------------------------------------------------------------------------------------

    def attempt(self, key: tuple[str, int], what: str) -> Attempt:
        submission = Submission(builders.job(key[0]), (what,), folder="/")
        return Attempt(submission, key[1], Placement(("rollout-0",), ("train-0",)), {})

    async def starts(self, job: str, what: str) -> tuple[str, int]:
        """An attempt that is up in the end; those before it that could not be started never run again."""
        while True:
            self.latest[job] += 1
            key = job, self.latest[job]
            try:
                await self.does(lambda: self.launcher.start(self.attempt(key, what)))  # noqa: B023
            except LaunchFailed:
                assert key not in self.ray.running.values()
                continue
            return key

    async def stops(self, key: tuple[str, int]) -> None:
        await self.does(lambda: self.launcher.stop(*key, 5.0))
        assert key not in self.ray.running.values()
        assert self.told[key] == 0
        self.told[key] = 1  # by the answer

    async def stops_while_it_starts(self, job: str) -> None:
        self.latest[job] += 1
        key = job, self.latest[job]
        asked = False

        async def both() -> None:
            """Once a stop has been asked for, no later life starts it again."""
            nonlocal asked
            starting = asyncio.ensure_future(
                asyncio.sleep(0) if asked else self.launcher.start(self.attempt(key, "run"))
            )
            asked = True
            try:
                await asyncio.sleep(0.1)
                await self.launcher.stop(*key, 5.0)
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)

        await self.does(both)
        assert key not in self.ray.running.values()

    async def hears_of(self, key: tuple[str, int]) -> None:
        async def heard() -> None:
            while not self.told[key]:
                await asyncio.sleep(0.1)

        await self.does(heard)
        assert key not in self.ray.running.values()

    # -- its lives ---------------------------------------------------------------------------------------------------

    async def does(self, step: Callable[[], Awaitable[object]]) -> None:
        """Again in the next life, where it dies meanwhile."""
        while True:
            doing = asyncio.ensure_future(step())
            died = asyncio.ensure_future(self.calls.died.wait())
            async with asyncio.timeout(10_000):
                await asyncio.wait([doing, died], return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            if not self.calls.died.is_set():
                return await doing  # type: ignore[return-value]
            doing.cancel()
            with suppress(asyncio.CancelledError, LaunchFailed):
                await doing
            await self.dies_and_lives()

    async def dies_and_lives(self) -> None:
        self.dies()
        await self.new_life()

    def dies(self) -> None:
        """As by SIGKILL: nothing of it does anything more."""
        for task in (*self.launcher._tasks, *self.launcher._starting.tasks):
            task.cancel()

    async def new_life(self) -> None:
        async def told(job: str, attempt: int, failed: str) -> None:
            if self.launcher is launcher:
                self.told[job, attempt] += 1
                self.reasons[job, attempt] = failed

        async def changed(node: str, there: bool) -> None:
            raise AssertionError(f"{node} was said to be {there}")

        while True:
            self.calls.died.clear()
            launcher = self.launcher = RayLauncher(self.folder, self.calls, pace=PACE)
            beginning = asyncio.ensure_future(self.begin(launcher, changed, told))
            died = asyncio.ensure_future(self.calls.died.wait())
            await asyncio.wait([beginning, died], return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            if not self.calls.died.is_set():
                self.running = await beginning
                return
            beginning.cancel()
            self.dies()

    async def begin(self, launcher: RayLauncher, changed, told) -> set[tuple[str, int]]:  # type: ignore[no-untyped-def]
        assert await launcher.watch(["rollout-0", "train-0"], changed) == {"rollout-0", "train-0"}
        return await launcher.begin(told)


def calls_of(folder: Path) -> list[str]:
    """The calls of the story where nothing goes wrong."""

    async def told() -> list[str]:
        story = Story(folder, {})
        await story.tell()
        assert story.calls.made is not None
        return story.calls.made

    return played(told())


def test_the_story_makes_every_call_of_the_gateway(tmp_path: Path) -> None:
    assert set(calls_of(tmp_path)) == set(CALLS) - {"tail"}


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_whatever_becomes_of_one_call_the_promises_are_kept(fault: Fault, tmp_path: Path) -> None:
    count = len(calls_of(tmp_path / "sound"))
    calls, shift = [*range(count)], list(Fault).index(fault)  # so that each call meets half of the faults
    for i in some(calls[shift:] + calls[:shift], every=2):

        async def told(i: int = i) -> None:
            await Story(tmp_path / str(i), {i: fault}).tell()

        try:
            played(told())
        except BaseException as error:
            raise AssertionError(f"call {i} of {count} {fault.value}") from error
