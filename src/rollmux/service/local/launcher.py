"""Jobs as processes of this machine, each attempt under a keeper of its own that outlives the controller.

Why a keeper: somebody has to read what a job prints (a file alone can't be bounded), to be the parent of the processes
that the job leaves behind, and to see exit codes, also while no controller is there. The launcher only watches keepers.
An attempt runs at most once at a time: a keeper starts nothing before its record is on disk, nor if its controller is
gone by then. When a keeper is gone without a word, all processes that it kept are ended before the end is told.
"""

import asyncio
import logging
import signal
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rollmux.protocol.node_means import Means
from rollmux.service.launcher import Attempt, LaunchFailed, OnExit, OnNode
from rollmux.service.local.attempt_files import AttemptFiles, Key, Started
from rollmux.service.local.kept import Kept, answer, ask, beside, end_leftovers, remove_memory, spawn, wait_ended
from rollmux.service.local.plans import plan_for
from rollmux.service.local.process_tree import leftovers
from rollmux.service.local.rank import Plan
from rollmux.service.starts import Starts
from rollmux.system import Watched

log = logging.getLogger("rollmux.service")

# How long a keeper has to start all ranks: thousands of them, from a slow file system, take a while.
START_S = 60.0
# A folder that has not answered for so long is worth a line in the log.
SILENT_S = 10.0
# How long a keeper has to kill its processes; after that the keeper is taken to hang, and is killed itself.
KILL_S = 30.0
# How long a start of the controller waits until nothing is left of attempts that have ended meanwhile. A process that
# no signal ends (asleep in a driver) counts as running until it is gone: nobody else waits for that.
BEGIN_S = 10.0
LOG_BYTES = 2**23
VANISHED = "its processes vanished, killed from outside or the machine was restarted"


class ProcessLauncher:
    """Starts attempts on this machine, each with the part of the machine that `means` gives to its nodes."""

    def __init__(self, folder: Path, means: Mapping[str, Means] | None = None, *, log_bytes: int = LOG_BYTES) -> None:
        self.files = AttemptFiles(folder)
        self._means, self._log_bytes = means or {}, log_bytes
        self._on_exit: OnExit | None = None
        self._starting, self._one_by_one = Starts(), asyncio.Lock()
        self._looks: dict[Key, asyncio.Future[Plan]] = {}  # at the folders of jobs that are to be started
        self._kept: dict[Key, Kept] = {}
        self._watching: set[asyncio.Task[None]] = set()

    def at_work(self) -> set[str]:
        found = set()
        for each in self.files.all_started():
            if not self.files.told(each.key) and (keeper := each.keeper.open()) is not None:
                keeper.close()
                found.add(each.key[0])
        return found

    async def begin(self, on_exit: OnExit) -> set[Key]:
        """When this returns, attempts that ended meanwhile have been reported, if nothing of them is left."""
        self._on_exit = on_exit
        away = [each for each in self.files.all_started() if not self._adopt(each) and not self._is_over(each.key)]
        silent = [each for each in away if self.files.ended(each.key) is None]
        look = self._followed(beside(lambda: self._end_vanished(silent)))
        # `watched` is None: the keeper is gone, and the processes that it kept are still to be looked for.
        ends = [self._watch(each.key, Kept(each.keeper, None, self.files.told(each.key)), look) for each in away]
        await asyncio.wait([look, *ends], timeout=BEGIN_S)
        for each in away:
            if each.key in self._kept:
                said = "what is left of job %r, attempt %d, is not seen to be gone after %g s: it counts as running"
                log.warning(said, *each.key, BEGIN_S)
        return set(self._kept)

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        """All nodes are there: they are slices of this launcher's own machine."""
        return set(nodes)

    async def start(self, attempt: Attempt) -> None:
        key = attempt.key
        if key in self._kept:
            return
        await self._starting.once(key, lambda: self._start(attempt))

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        key = job_id, attempt
        if key in self._looks:
            self._looks[key].cancel()
        await self._starting.settled(key)
        kept = self._kept.get(key)
        if kept is None:
            return
        kept.told = True
        self.files.tell(key)
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGUSR1, KILL_S), (signal.SIGKILL, None)):
            if not kept.gone.is_set():
                if kept.watched is not None:
                    ask(kept.watched, number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await kept.gone.wait()

    async def log(self, job_id: str, lines: int) -> list[str]:
        """If there are several ranks, each has its share of the lines, after its number."""
        # Beside the loop: reading a megabyte from a slow disk would hold up other calls.
        return await asyncio.to_thread(self.files.tail, job_id, lines)

    async def forget(self, job_id: str) -> None:
        await asyncio.to_thread(self.files.forget, job_id)

    async def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        for key in tuple(self._starting):
            await self._starting.settled(key)
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _start(self, attempt: Attempt) -> None:
        key = attempt.key
        try:
            before = self.files.started(key)
            if before is not None and self._adopt(before):
                return
            plan = await self._plan(attempt)
            # Beside the loop: many starts at once would hold up other calls. One by one: no start may take files for
            # over that another has just begun.
            async with self._one_by_one:
                watched, heard = await asyncio.to_thread(self._spawn, plan, {*self._kept, *self._starting})
            try:
                failed = await answer(heard, START_S)
                started = self.files.started(key)
            except Exception:
                ask(watched, signal.SIGUSR1)  # with whatever it has started: nobody else would end that
                await wait_ended(watched)
                raise
        except OSError as error:
            raise LaunchFailed(f"job {key[0]!r} could not be started: {error}") from error
        if failed == "" and started is not None:
            self._watch(key, Kept(started.keeper, watched))
            return
        if failed is None:
            ask(watched, signal.SIGKILL)
        await wait_ended(watched)
        if started is not None:
            await self._end_leftovers(started)
        self.files.tell(key)
        raise LaunchFailed(f"job {key[0]!r}: {failed or f'its keeper has failed: {self.files.complaint(key)}'}")

    async def _plan(self, attempt: Attempt) -> Plan:
        """Looks at the job's folder. If what has it is silent, this job alone waits for that, until it is stopped."""
        folder = f"job {attempt.key[0]!r}: its folder {attempt.submission.folder!r}"
        look = asyncio.ensure_future(beside(lambda: plan_for(attempt, self._means, self._log_bytes, self.files)))
        self._looks[attempt.key] = look
        try:
            if not (await asyncio.wait([look], timeout=SILENT_S))[0]:
                log.warning("%s is waited for: what has it does not answer", folder)
                await asyncio.wait([look])
        finally:
            del self._looks[attempt.key]
            look.cancel()  # if nobody waits any more
        if look.cancelled():
            raise LaunchFailed(f"{folder} did not answer before it was stopped")
        return look.result()

    def _spawn(self, plan: Plan, kept: set[Key]) -> tuple[Watched, int]:
        self.files.prune(kept)
        self.files.prepare((plan.job, plan.attempt))
        return spawn(plan)

    def _adopt(self, started: Started) -> bool:
        """Whether the keeper still runs: then it is watched from now on."""
        watched = started.keeper.open()
        if watched is not None:
            self._watch(started.key, Kept(started.keeper, watched, self.files.told(started.key)))
        return watched is not None

    def _is_over(self, key: Key) -> bool:
        """Whether nothing of the attempt can be left, and nobody waits to hear so."""
        return self.files.told(key) and self.files.ended(key) is not None

    def _end_vanished(self, silent: Sequence[Started]) -> None:
        """Records the end of attempts that have left nothing. One look serves all: a new container may have many."""
        left = leftovers([each.keeper for each in silent])
        for each in silent:
            if each.keeper not in left:
                remove_memory(each.keeper)
                self.files.end(each.key, VANISHED)

    def _watch(self, key: Key, kept: Kept, look: "asyncio.Task[None] | None" = None) -> "asyncio.Task[None]":
        self._kept[key] = kept
        return self._followed(self._see_off(key, kept, look))

    def _followed(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._watching.add(task)
        task.add_done_callback(self._seen_off)
        return task

    async def _see_off(self, key: Key, kept: Kept, look: "asyncio.Task[None] | None") -> None:
        try:
            if look is not None:
                await asyncio.wait([look])
            if kept.watched is not None:
                await wait_ended(kept.watched)
                kept.watched = None
            await self._end_leftovers(Started(key, kept.keeper))
        finally:
            kept.gone.set()
            del self._kept[key]
        if not kept.told:
            await self._report(key)

    def _seen_off(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "the end of an attempt was not heard; the next controller will tell it", exc_info=task.exception()
            )

    async def _report(self, key: Key) -> None:
        assert self._on_exit is not None, "begin comes before all else"
        failed = self.files.ended(key)
        await self._on_exit(*key, VANISHED if failed is None else failed)
        self.files.tell(key)

    async def _end_leftovers(self, started: Started) -> None:
        """Ends what is left of an attempt, unless it is on record how all of it has ended."""
        if self.files.ended(started.key) is None:
            await end_leftovers(started.keeper)
            await asyncio.to_thread(self.files.end, started.key, VANISHED)
