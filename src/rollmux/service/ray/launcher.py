"""Jobs on a Ray cluster: each attempt is one Ray job, whose ranks run on the nodes of its placement.

An attempt runs at most once at a time, whatever becomes of calls to Ray. What the launcher intends is on disk before it
asks Ray, under an id that is never used again. If nobody knows whether Ray has a submission, or still will have it, an
empty submission takes its id: Ray takes each id once. No attempt is said to be over before Ray says so and the
attempt's program has said that nothing is left, or its nodes have been swept.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from rollmux.errors import RollmuxError
from rollmux.protocol.node_means import Means
from rollmux.service.launcher import Attempt, LaunchFailed, OnExit, OnNode
from rollmux.service.local.attempt_files import Key
from rollmux.service.ray.gateway import VOID, RayGateway, RayJob, RayTrouble, Rejected, Wish
from rollmux.service.ray.intents import Intent, Intents
from rollmux.service.ray.places import Places
from rollmux.service.ray.printed import printed
from rollmux.service.ray.wire import NOTHING, SWEEP, Word, heard, wish_of
from rollmux.service.starts import Starts

log = logging.getLogger("rollmux.service")
T = TypeVar("T")

LOST = "Ray knows it no more: its head node has been started anew"
WORDLESS = "its program on Ray has ended without a word"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often Ray is asked, and how long things may take. Ray's workers take seconds to come up."""

    look_s: float = 0.5
    pause_s: float = 1.0  # after a call that has had no good answer
    begin_s: float = 30.0  # after that the controller goes on without Ray, and believes what it knew
    start_s: float = 180.0
    word_s: float = 15.0
    sweep_s: float = 180.0
    grace_s: float = 5.0  # how long an attempt that is stopped has to end by itself


@dataclass(slots=True)
class Live:
    """An attempt that is not over. `known`: Ray has had it. `work`: a task settles, finishes or ends it now."""

    intent: Intent
    known: bool = False
    up: bool = False
    told: bool = False
    work: "asyncio.Task[None] | None" = None


class Silence:
    """Logs what is wrong with Ray as it begins, changes and ends: each look, one a second, may find the same again."""

    def __init__(self) -> None:
        self._told = ""

    def goes_on(self, error: RollmuxError) -> None:
        if str(error) != self._told:
            log.warning("%s: it is asked again until it answers", error)
        self._told = str(error)

    def ends(self) -> None:
        if self._told:
            log.info("Ray answers again")
        self._told = ""


class RayLauncher:
    """Starts attempts on a Ray cluster. `means` says which Ray nodes ours are; others are found by their names."""

    def __init__(
        self, folder: Path, ray: RayGateway, means: Mapping[str, Means] | None = None, pace: Pace | None = None
    ) -> None:
        self.ray, self.pace = ray, pace or Pace()
        self.intents = Intents(folder)
        self.places = Places(means or {})
        self._live: dict[Key, Live] = {}
        self._starting = Starts()
        self._unwanted: set[Key] = set()
        self._silence = Silence()
        self._nodes: dict[str, bool] = {}  # our nodes, and whether each was there at the last look
        self._on_exit: OnExit | None = None
        self._on_node: OnNode | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        self._begun = self._closed = False

    # -- the seam ----------------------------------------------------------------------------------------------------

    def at_work(self) -> set[str]:
        return {each.job for each in self.intents.open() if not each.told}

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        """If Ray does not answer, all nodes are taken to be there: no job is to be stopped for that."""
        # Not as the launcher is made: the controller before may still have the folder then, and start attempts.
        self._live = {each.key: Live(each, told=each.told) for each in self.intents.open()}
        for live in self._live.values():
            self.places.at |= live.intent.nodes
        self._nodes = dict.fromkeys(nodes, True)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pace.begin_s):
                await self._until_answered(self._look_at_nodes)
        self._on_node = on_node
        return {node for node, there in self._nodes.items() if there}

    async def begin(self, on_exit: OnExit) -> set[Key]:
        """When this returns, attempts that ended meanwhile have been reported, if Ray answers."""
        self._on_exit = on_exit
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pace.begin_s):
                await self._until_answered(self._look_at_jobs)
                while working := [live.work for live in self._live.values() if live.work is not None]:
                    await asyncio.wait(working)
        self._spawn(self._watch_forever())
        self._begun = True
        return set(self._live)

    async def start(self, attempt: Attempt) -> None:
        key = attempt.key
        live = self._live.get(key)
        if live is not None and live.up and live.work is None:
            return
        await self._starting.once(key, lambda: self._start(attempt))

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """No call to Ray can say `grace_s`: the grace is this launcher's own, fixed when the attempt starts."""
        key = job_id, attempt
        self._unwanted.add(key)
        try:
            await self._starting.settled(key)
            while (live := self._live.get(key)) is not None and not self._closed:
                live.told = True
                await asyncio.to_thread(self.intents.tell, live.intent, False)
                if live.work is None:
                    live.work = self._spawn(self._working(live, self._end(live)))
                await asyncio.wait([live.work])
                if key in self._live:  # that work was another, or broke off, of which the log tells
                    await asyncio.sleep(self.pace.pause_s)
        finally:
            self._unwanted.discard(key)

    async def log(self, job_id: str, lines: int) -> list[str]:
        """If there are several ranks, each has its share of the lines, after its number.

        Until an attempt is up, its nodes may still have what an older job of the same name has printed.
        """
        intent = await asyncio.to_thread(self.intents.latest, job_id)
        if intent is None or lines <= 0:
            return []
        try:
            is_up = heard(await self.ray.said(intent.id)).up
        except RayTrouble as error:
            return [f"(can't be read: {error})"]
        return await printed(self.ray, intent, self._logs, lines) if is_up else []

    async def forget(self, job_id: str) -> None:
        for gone in await asyncio.to_thread(self.intents.forget, job_id):
            self._spawn(self._forget_at_ray(gone))

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._tasks, *self._starting.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ray.close()

    @property
    def _logs(self) -> str:
        return f"rollmux/{self.intents.cluster}"

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _start(self, attempt: Attempt) -> None:
        live = self._live.get(attempt.key)
        while live is not None and live.work is not None:  # a task ends it, or finds out whether Ray has it
            await asyncio.wait([live.work])
            live = self._live.get(attempt.key)
        if live is None:
            live = await self._submit(attempt)
        await self._until_up(live)

    async def _submit(self, attempt: Attempt) -> Live:
        """Submits the attempt to Ray. Raises LaunchFailed if Ray will never have it."""
        wish, intent = await self._prepare(attempt)
        live = self._live[attempt.key] = Live(intent)
        async for _ in self._rounds(self.pace.start_s, intent.key):
            try:
                await self.ray.submit(wish)
            except Rejected as error:
                why = str(error)
                break
            except RayTrouble as error:
                why = str(error)
                log.warning("job %r, attempt %d: %s", *intent.key, why)
            else:
                live.known = True
                return live
        else:
            why = f"it was not started within {self.pace.start_s:g} s, or stopped before"
        if await self._is_void(intent):
            await self._forget(live)
            raise LaunchFailed(f"job {intent.job!r}: {why}")
        live.known = True
        return live

    async def _prepare(self, attempt: Attempt) -> tuple[Wish, Intent]:
        submission, key = attempt.submission, attempt.key
        at = await self._where(attempt)
        parts = self.places.parts(attempt.placement, submission.processes, at, submission.ranks_per_process)
        machine_of = {rank: part.ray_node for part in parts for rank in part.ranks}
        intent = self.intents.new(key, at, tuple(machine_of[rank] for rank in range(submission.processes)))
        wish = wish_of(attempt, intent.id, self._logs, parts, self.pace.grace_s)
        try:
            for gone in await asyncio.to_thread(self.intents.prune):
                self._spawn(self._forget_at_ray(gone))
            await asyncio.to_thread(self.intents.keep, intent)
        except OSError as error:
            raise LaunchFailed(f"job {key[0]!r} could not be started: {error}") from error
        return wish, intent

    async def _where(self, attempt: Attempt) -> dict[str, str]:
        """Ray's node for each node of an attempt. A missing node is told to be lost before the start fails."""
        wanted = attempt.placement.all_nodes
        for node in wanted:
            self._nodes.setdefault(node, True)
        async for _ in self._rounds(self.pace.start_s, attempt.key):
            with suppress(RayTrouble):
                await self._look_at_nodes()
                missing = [node for node in wanted if node not in self.places.at]
                if missing:
                    raise LaunchFailed(f"node {', '.join(missing)} is not there: Ray has no such node")
                return {node: self.places.at[node] for node in wanted}
        raise LaunchFailed(f"job {attempt.key[0]!r}: Ray has not answered, or it was stopped before")

    async def _until_up(self, live: Live) -> None:
        intent = live.intent
        async for _ in self._rounds(self.pace.start_s, intent.key):
            with suppress(RayTrouble):
                if heard(await self.ray.said(intent.id)).up:
                    live.up = True
                    return
                job = await self.ray.job(intent.id)
                if job is None or job.over:
                    why = await self._seen_off(live, job)
                    await self._forget(live)
                    raise LaunchFailed(f"job {intent.job!r}: {why or 'it ended before it was up'}")
        if intent.key in self._unwanted:
            raise LaunchFailed(f"job {intent.job!r} was stopped before it was up")
        await self._end(live)
        raise LaunchFailed(f"job {intent.job!r} was not up within {self.pace.start_s:g} s")

    async def _is_void(self, intent: Intent) -> bool:
        """Makes sure whether Ray will never have this attempt: it won't if an empty submission gets its id first."""
        while True:
            try:
                await self.ray.submit(Wish(intent.id, NOTHING, metadata=VOID))
                job = await self.ray.job(intent.id)
                if job is not None:
                    return job.void
            except RayTrouble as error:
                log.warning("nobody knows whether job %r, attempt %d, will be started: %s", *intent.key, error)
            await asyncio.sleep(self.pace.pause_s)

    # -- ending ------------------------------------------------------------------------------------------------------

    async def _end(self, live: Live) -> None:
        """Ends the attempt; returns when nothing of it runs any more."""
        intent = live.intent
        if not live.known and await self._is_void(intent):
            await self._seen_off(live, None)
            await self._forget(live)
            return
        while True:
            with suppress(RayTrouble):
                await self.ray.stop(intent.id)
            with suppress(RayTrouble):
                job = await self.ray.job(intent.id)
                if job is None or job.over:
                    break
            await asyncio.sleep(self.pace.look_s)
        await self._seen_off(live, job)
        await self._forget(live)

    async def _finish(self, live: Live, job: RayJob | None) -> None:
        """The attempt has ended by itself: tells first which nodes were lost with it, then why it ended."""
        why = await self._seen_off(live, job)
        with suppress(RayTrouble):
            await self._look_at_nodes()
        await self._tell(live, why)

    async def _settle(self, live: Live) -> None:
        """Ray does not know this attempt of an earlier life: makes sure that Ray never will have it, or has it."""
        if not await self._is_void(live.intent):
            live.known = True
            return
        why = await self._seen_off(live, None)
        # No end is told to a controller that has not heard that it runs, nor to a start of it that waits here.
        live.told = live.told or not self._begun or live.intent.key in self._starting
        await self._tell(live, why)

    async def _tell(self, live: Live, why: str) -> None:
        if not live.told:
            assert self._on_exit is not None, "begin comes before all else"
            try:
                await self._on_exit(*live.intent.key, why)
            except RollmuxError:
                del self._live[live.intent.key]  # the next controller will tell it
                raise
        await self._forget(live)

    async def _seen_off(self, live: Live, job: RayJob | None) -> str:
        """Makes sure that nothing of the attempt is left; returns why it ended."""
        intent = live.intent
        if job is None or job.void:  # its ranks may still run
            await self._sweep(intent, await self._found_again(intent))
            return LOST
        word = await self._word(intent)
        if word is None or (word.starting and not word.clean):
            await self._sweep(intent, intent.nodes.values())
        if word is not None and word.ended is not None:
            return word.ended
        last = (job.message.strip().splitlines() or [""])[-1]
        return f"{WORDLESS}: {last}" if last else WORDLESS

    async def _found_again(self, intent: Intent) -> Collection[str]:
        """Ray's ids of the attempt's nodes at its start, and of all our nodes now: with a new head nodes get new ids.

        Which node of ours is which of Ray's may have changed too. After a while, nodes that stay away are left out.
        """
        async for _ in self._rounds(self.pace.sweep_s):
            with suppress(RayTrouble):
                await self._look_at_nodes()
                if intent.nodes.keys() <= self.places.at.keys():
                    break
        return {*intent.nodes.values(), *self.places.at.values()}

    async def _word(self, intent: Intent) -> Word | None:
        async for _ in self._rounds(self.pace.word_s):
            with suppress(RayTrouble):
                return heard(await self.ray.said(intent.id))
        return None

    async def _sweep(self, intent: Intent, nodes: Collection[str]) -> None:
        """Ends whatever is left of an attempt on these nodes. If Ray can't do so for a while, this gives up."""
        env = {"ROLLMUX_SWEPT": intent.id, "ROLLMUX_SWEPT_NODES": ",".join(nodes)}
        wish, job = None, None
        async for _ in self._rounds(self.pace.sweep_s):
            if wish is None or (job is not None and job.over):
                wish = Wish(f"{intent.id}-sweep-{uuid4().hex[:4]}", SWEEP, env, {"rollmux": "sweep"})
            with suppress(RayTrouble):
                job = await self.ray.job(wish.id)
                if job is None:
                    await self.ray.submit(wish)
                elif job.status == "SUCCEEDED":
                    self._spawn(self._forget_at_ray(wish.id))
                    return
        log.error("what is left of job %r, attempt %d, could not be looked for on its nodes", *intent.key)

    async def _forget(self, live: Live) -> None:
        await asyncio.to_thread(self.intents.tell, live.intent, True)
        del self._live[live.intent.key]

    async def _forget_at_ray(self, job_id: str) -> None:
        with suppress(RayTrouble):  # the submission only takes room there
            await self.ray.forget(job_id)

    # -- watching ----------------------------------------------------------------------------------------------------

    async def _watch_forever(self) -> None:
        """Looks at Ray again and again, less often at a slow dashboard: looks take a fifth of the time at most."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._look_at_nodes()
                await self._look_at_jobs()
                self._silence.ends()
            except RollmuxError as error:
                self._silence.goes_on(error)
                await asyncio.sleep(self.pace.pause_s)
            except Exception:  # whatever it is: without more looks no end and no loss would be seen
                log.exception("a look at Ray has failed in an unexpected way; it is looked at again")
                await asyncio.sleep(self.pace.pause_s)
            await asyncio.sleep(max(self.pace.look_s, 4 * (loop.time() - began)))

    async def _look_at_jobs(self) -> None:
        """Begins to finish attempts that have ended, and to settle those of which nobody knows if Ray has them."""
        idle = [live for live in self._live.values() if live.work is None and live.intent.key not in self._starting]
        jobs = await self.ray.jobs() if idle else {}
        for live in idle:
            job = jobs.get(live.intent.id)
            if job is None:
                job = await self.ray.job(live.intent.id)
            if live.work is not None or live.intent.key in self._starting:
                continue
            live.known = live.known or (job is not None and not job.void)
            if not live.known:
                live.work = self._spawn(self._working(live, self._settle(live)))
            elif job is None or job.over:
                live.work = self._spawn(self._working(live, self._finish(live, job)))

    async def _look_at_nodes(self) -> None:
        """Tells which nodes were lost or are back. A node that is now another one of Ray's was lost, with all that ran
        there; the next look finds it back.
        """
        async with self._looking:
            was_at, found = dict(self.places.at), await self.ray.nodes()
            there = {node for node, at in self.places.find(self._nodes, found).items() if was_at.get(node, at) == at}
            for node in [node for node, was in self._nodes.items() if was != (node in there)]:
                if self._on_node is not None:
                    await self._on_node(node, node in there)
                self._nodes[node] = node in there

    # -- what these share --------------------------------------------------------------------------------------------

    async def _rounds(self, most_s: float, key: Key | None = None) -> AsyncIterator[None]:
        """Rounds with a pause after each, for so long at most, and until this attempt is to be stopped."""
        until = asyncio.get_running_loop().time() + most_s
        while key not in self._unwanted and asyncio.get_running_loop().time() < until:
            yield
            await asyncio.sleep(self.pace.look_s)

    async def _until_answered(self, look: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                found = await look()
            except RayTrouble as error:
                self._silence.goes_on(error)
                await asyncio.sleep(self.pace.pause_s)
            else:
                self._silence.ends()
                return found

    async def _working(self, live: Live, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        finally:
            live.work = None

    def _spawn(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a part of the launcher has ended; the next controller goes on", exc_info=task.exception())
