"""Gives the controller the time, a journal and errands: the one place of the service that waits.

Invariant (I11): a reply, a wake-up or an errand leaves only after every event that it can have seen is durable. Once
nothing can be made durable any more, questions are still answered. Calls that come during a write share the next one.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import ceil, inf
from typing import TypeVar

from rollmux.errors import IllegalEvent, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.protocol.views import Standing
from rollmux.service.controller import Controller, Errand, MachineFailed
from rollmux.service.errands import Errands
from rollmux.service.forked import Forked
from rollmux.service.journal import Batch, Image, Journal, Packed, packed
from rollmux.service.machine_time import MachineTime
from rollmux.service.steps import Steps

log = logging.getLogger("rollmux.service")
T = TypeVar("T")

# How often the controller looks for leases that have run out, and writes down signs of life.
TICK_S = 0.25
# A look at the time that is late by more than this is logged: all calls have waited for as long.
LATE_S = 2.0
# An image is taken once the events since the last one took this long to handle, for a restart has to handle them again.
# Taking an image stops everything for a moment, longer with more jobs, so with more jobs it is done less often.
REPLAY_S, REPLAY_PER_JOB_S = 0.5, 0.001
# The pause between two portions of old records that are removed, so that writes go on meanwhile.
TRIM_PAUSE_S = 0.05
# If several calls waited for the last write, the next write waits this long, so that more calls share it.
GATHER_S = 0.001
# An answer about all jobs is made in steps of `STEP_S`. In the pause after each step, which is longer than the step,
# other calls are heard and the journal's thread has the interpreter.
STEP_S, PAUSE_S = 0.0005, 0.001
# A parked call is answered after this long at the latest, whatever it asked for: proxies end silent connections.
LONGEST_PARK_S = 30.0
# Parked calls whose time ends within this long are answered together: waking up costs more than an answer.
PARK_GRAIN_S = 0.05


class Unavailable(RollmuxError):
    """Nothing can change before a new start, for the journal can't be written, or the machine has failed. Questions are
    still answered."""


class HungUp(RollmuxError):
    """The caller has closed its connection while its call was parked."""


class Host:
    """Runs one controller on one event loop."""

    def __init__(
        self, controller: Controller, journal: Journal, errands: Errands, begins_at: float, replayed_s: float
    ) -> None:
        self.controller, self.journal, self.errands = controller, journal, errands
        self.broken = ""  # why nothing changes any more
        self.wrote: Callable[[float], object] = float  # hears how many seconds each write took
        self._time = MachineTime(begins_at)
        self._heard_until = -inf  # the machine time from which nobody is heard any more
        self._disk = ThreadPoolExecutor(1, "journal")
        self._dirty = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []  # replies that wait for the next write
        self._written: list[asyncio.Future[None]] = []  # replies that wait for the write that is under way
        # Calls that wait for news of a job, in their order.
        self._parked: dict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)
        self.durable = controller.machine.state.ledger.seq  # the last record that is on disk
        self.hurried = False  # the controller is about to end
        self._followers: list[asyncio.Future[None]] = []  # streams that wait for the next record
        self._writing = self._crowded = self._copying = False
        self._to_replay_s = replayed_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _most_to_replay_s(self) -> float:
        return REPLAY_S + REPLAY_PER_JOB_S * len(self.controller.machine.state.jobs)

    @property
    def _is_durable(self) -> bool:
        """Whether an image of the state may be kept: all of it is on disk. Before the first record there is none."""
        return 0 < self.controller.machine.state.ledger.seq == self.durable

    @property
    def standing(self) -> Standing:
        if self.broken:
            return Standing.BROKEN
        return Standing.ENDING if self.hurried else Standing.READY

    @property
    def parked(self) -> int:
        """How many calls wait for news."""
        return sum(map(len, self._parked.values()))

    @property
    def now(self) -> float:
        """Machine time: it goes on from where the journal ends, once jobs can be heard."""
        return self._time.now()

    async def start(self, again: list[Errand]) -> None:
        """Begins work; `again` are errands of which nobody knows whether an earlier life of the controller ran them."""
        self._spawn(self._write_forever(), "writing")
        with suppress(Unavailable):  # the log says why already
            await self.errands.begin(self.tell)
        self._time.begin()
        self._spawn(self._look_at_time_forever(), "looking at the time")
        self.controller.errands += again
        self._dirty.set()
        self._spawn(self._tick_forever(), "keeping time")

    def hurry(self) -> None:
        """Answers all parked calls with what holds now: no call is to wait any more."""
        if not self.hurried:
            self._heard_until = self.now
        self.hurried = True
        self._wake(set(self._parked))
        self._tell_followers()

    async def stop(self) -> None:
        """No more changes; jobs run on, and find the next controller."""
        if not self.broken:
            with suppress(Unavailable):  # the log says why already
                await self._durable()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.errands.close()
        self._disk.shutdown()
        state = self.controller.machine.state
        try:
            if not self.broken and self._is_durable:
                ends_at = max(state.now, self._heard_until)  # nodes were held until then, though no event says so
                self.journal.keep(Image(state.ledger.seq, ends_at, self.controller.image()))
        except Exception as error:  # noqa: BLE001  whatever it is, what counts is in the records
            log.warning("no image of the state: %s", error)
        finally:
            self.journal.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def call(self, rule: Callable[[float], T]) -> T:
        """What the rule answers, once every event that it can have seen is durable."""
        if self.broken:
            raise Unavailable(self.broken)
        began, seq = time.perf_counter(), self.controller.machine.state.ledger.seq
        try:
            return rule(self.now)
        except MachineFailed as error:
            self._fail(str(error), error)
            raise Unavailable(self.broken) from error
        finally:
            if self.controller.machine.state.ledger.seq != seq:
                self._to_replay_s += time.perf_counter() - began
            if not self.broken:
                await self._durable()

    async def look(self, rule: Callable[[float], T]) -> T:
        """Like `call`, for questions: once nothing can be made durable any more, still what the rule answers."""
        return rule(self.now) if self.broken else await self.call(rule)

    async def look_through(self, rule: Callable[[float], Steps[T]]) -> T:
        """Like `look`, step by step, for answers that take long: other calls are heard meanwhile."""
        steps, until = rule(self.now), time.perf_counter() + STEP_S
        while True:
            try:
                next(steps)
            except StopIteration as end:
                await self.look(float)  # waits until all that the steps have seen is durable
                found: T = end.value
                return found
            if time.perf_counter() >= until:
                await asyncio.sleep(PAUSE_S)
                until = time.perf_counter() + STEP_S

    async def park(
        self,
        job_id: str,
        wait_s: float,
        rule: Callable[[float], T],
        settled: Callable[[T], bool],
        left: Callable[[], Coroutine[object, object, None]],
    ) -> T:
        """The rule's answer as soon as it is settled, else its last answer when the time is over. The rule is asked
        anew whenever there is news of the job.

        `left` returns once the caller is gone: then nothing more is done in its name, and `park` raises HungUp.
        """
        loop = asyncio.get_running_loop()
        until = ceil((loop.time() + min(max(wait_s, 0.0), LONGEST_PARK_S)) / PARK_GRAIN_S) * PARK_GRAIN_S
        gone: asyncio.Task[None] | None = None
        try:
            while True:
                news: asyncio.Future[None] = loop.create_future()
                self._parked[job_id][news] = None
                try:
                    answer = await self.call(rule)
                    if settled(answer) or loop.time() >= until or self.hurried:
                        return answer
                    gone = gone or loop.create_task(left())
                    await _first(loop, until, news, gone)
                finally:
                    self._unpark(job_id, news)
                if gone.done():
                    raise HungUp("the caller is gone")
        finally:
            if gone is not None:
                gone.cancel()

    def is_awaited(self, job_id: str) -> bool:
        """Whether a process of the job waits for news."""
        return job_id in self._parked

    async def tell(self, event: ev.Event) -> tuple[cmd.Command, ...]:
        """An event that comes from no call: a process has ended, a node is there. An illegal one is only logged."""
        try:
            return await self.call(lambda now: self.controller.tell(now, event))
        except IllegalEvent as error:
            log.warning("%s was of no use: %s", type(event).__name__, error)
            return ()

    async def news(self, after: int, gone: "asyncio.Future[None]", within_s: float) -> None:
        """Waits until a record after this one is durable, or the reader is gone, its time is over or the host ends."""
        if self.durable > after or self.hurried:
            return
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.append(news)
        try:
            await asyncio.wait([news, gone], timeout=max(within_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if news in self._followers:
                self._followers.remove(news)

    def _tell_followers(self) -> None:
        followers, self._followers = self._followers, []
        for news in followers:
            _settle(news)

    def _unpark(self, job_id: str, news: asyncio.Future[None]) -> None:
        waiting = self._parked[job_id]
        waiting.pop(news, None)
        if not waiting:
            del self._parked[job_id]

    # -- durability --------------------------------------------------------------------------------------------------

    async def _durable(self) -> None:
        controller = self.controller
        if not (controller.pending or controller.owned or controller.woken or controller.errands or self._writing):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._dirty.set()
        await asyncio.shield(done)

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._dirty.wait()
            if self._crowded:
                await asyncio.sleep(GATHER_S)
            self._dirty.clear()
            if self.broken:
                return
            batch, errands, woken = self.controller.take()
            if batch.records and self._to_replay_s > self._most_to_replay_s and not self._copying:
                self._to_replay_s = 0.0
                self._begin_image()
            self._written, self._waiting = self._waiting, []
            self._crowded = len(self._written) > 1
            if batch != Batch():
                self._writing, began = True, time.perf_counter()
                try:
                    await loop.run_in_executor(self._disk, self.journal.append, batch)
                except Exception as error:  # noqa: BLE001  whatever it is, nothing may leave that is not on disk
                    mend = "free its disk, or mend what else is wrong, then start the controller again"
                    lost = f"what came after record {self.durable} may be lost"
                    self._break(f"the journal can't be written ({error}), {lost}: {mend}")
                    return
                finally:
                    self._writing = False
                self.wrote(time.perf_counter() - began)
                if batch.records:
                    self.durable = batch.records[-1].seq
                    self._tell_followers()
            for reply in self._written:
                _settle(reply)
            self._wake(woken)
            for errand in errands:
                self._spawn(self.errands.run(errand))

    def _fail(self, where: str, bug: BaseException) -> None:
        self._break(
            f"the controller has a bug ({where}): start it again, and it goes on from before; its log says more", bug
        )

    def _break(self, why: str, bug: BaseException | None = None) -> None:
        """Nothing is written from now on: the calls that wait for a write hear why."""
        self.broken = why
        log.critical(why, exc_info=bug)
        for reply in [*self._written, *self._waiting]:
            if not reply.done():
                reply.set_exception(Unavailable(why))

    def _wake(self, jobs: set[str]) -> None:
        for job_id in jobs:
            for news in self._parked.get(job_id, ()):
                _settle(news)

    def _begin_image(self) -> None:
        """Begins an image of a state whose last events are still to be written: where calls come fast, there always are
        some. If it can't be made, nothing is lost but time: the next may succeed."""
        machine = self.controller.machine
        try:
            copy = Forked(lambda: packed(self.controller.image()))
        except OSError as error:
            log.warning("no image of the state: %s", error)
        else:
            self._copying = True  # one at a time: on a core that is always busy a copy takes long
            self._spawn(self._keep(machine.state.ledger.seq, machine.state.now, copy))

    async def _keep(self, seq: int, at: float, copy: Forked) -> None:
        """Keeps the image, then removes old records. Writes wait for the keeping, or for one portion, no longer."""
        try:
            kept = Packed(seq, at, await copy.result())
            await self.call(float)  # all that the image holds is to be durable first
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._disk, self.journal.keep, kept)
            while await loop.run_in_executor(self._disk, self.journal.trim):
                await asyncio.sleep(TRIM_PAUSE_S)
        except Exception as error:  # noqa: BLE001  whatever it is, what counts is in the records
            log.warning("no image of the state: %s", error)
        finally:
            self._copying = False

    # -- time --------------------------------------------------------------------------------------------------------

    async def _look_at_time_forever(self) -> None:
        """Machine time stands still between two looks that lie far apart. A tick may wait for the disk, so these looks
        are apart from the ticks: the time then stands only while this process does."""
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._time.now()
            if (late_s := time.monotonic() - due) > LATE_S:
                log.warning("for %.1f s nobody was heard: this process was stopped, or found no core", late_s)

    async def _tick_forever(self) -> None:
        with suppress(Unavailable):  # the log says why already
            while not self.broken:
                await asyncio.sleep(TICK_S)
                await self.call(self.controller.tick)

    def _spawn(self, work: Coroutine[object, object, None], vital: str = "") -> None:
        """`vital` names work without which the controller can't go on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, vital))

    def _over(self, vital: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and vital and not self.broken:
            self._fail(f"{type(error).__name__} in {vital}", error)
        elif error is not None:
            log.error("a part of the service ended", exc_info=error)


async def _first(
    loop: asyncio.AbstractEventLoop, until: float, news: asyncio.Future[None], gone: asyncio.Task[None]
) -> None:
    """Waits for news, for the end of the time, or for the caller to be gone."""

    def ends(_: asyncio.Task[None]) -> None:
        _settle(news)

    over = loop.call_at(until, _settle, news)
    gone.add_done_callback(ends)
    try:
        await news
    finally:
        over.cancel()
        gone.remove_done_callback(ends)


def _settle(waited_for: asyncio.Future[None]) -> None:
    if not waited_for.done():
        waited_for.set_result(None)
