"""Carries out the machine's errands: it starts and stops attempts and gets nodes, without holding up calls."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.transitions import Job
from rollmux.protocol.job_file import Submission
from rollmux.service.controller import Errand
from rollmux.service.launcher import Attempt, Launcher, LaunchFailed
from rollmux.service.live import Live, passed_on

log = logging.getLogger("rollmux.service")
Tell = Callable[[ev.Event], Awaitable[object]]
EnvOf = Callable[[str, int], Mapping[str, str]]

# How long a stopped process has to end by itself.
GRACE_S = 5.0
# How long the controller's start waits for attempts that are over to end; a longer end holds up its own job alone.
BEGIN_S = 10.0


class Errands:
    """Launches and stops attempts. Nodes join when the launcher sees them; rented ones, as soon as they are wanted."""

    def __init__(self, machine: ClusterMachine, jobs: Mapping[str, Live], launcher: Launcher, env_of: EnvOf) -> None:
        self.machine, self.jobs, self.launcher, self.env_of = machine, jobs, launcher, env_of
        self._locks: dict[str, asyncio.Lock] = {}  # what is done for one job is done in order
        self._way = asyncio.Lock()  # else one call could forget the output of a job that took the name meanwhile
        self._ends: set[asyncio.Task[None]] = set()  # they stop attempts that are over for the machine
        self._tell: Tell | None = None
        self._pool_of = machine.state.cluster.fixed_nodes
        self._there: set[str] = set()  # those of them that were there at the first look, and not lost since

    async def begin(self, tell: Tell) -> None:
        """Attempts that still run go on; an attempt that is gone, though it should run, has failed."""
        self._tell = tell
        self._there = await self.launcher.watch(self._pool_of, self._node_changed)
        for node in self._pool_of:
            if node not in self._there:  # before anything is launched there
                await self._node_changed(node, False)
        running = await self.launcher.begin(self._exited)
        for record in list(self.machine.state.jobs.values()):
            launched = bool(self.submission(record.job.id).command)
            if launched and record.state is Job.RUNNING and (record.job.id, record.attempt) not in running:
                await self._exited(record.job.id, record.attempt, "its processes were gone after a restart")
        # Attempts that were to be stopped when the controller ended, and still run.
        self._ends = {asyncio.create_task(self._end(*key)) for key in running if not self._is_current(*key, *Job)}
        if self._ends:
            await asyncio.wait(self._ends, timeout=BEGIN_S)
        for node in self._pool_of:
            if node in self._there:  # one may have been lost meanwhile
                await self._node_changed(node, True)

    async def run(self, errand: Errand) -> None:
        match errand:
            case cmd.Launch():
                await self._launch(errand)
            case cmd.Stop():
                await self._stop(errand)
            case cmd.Provision():
                await self._told(ev.NodeJoined(errand.node, errand.pool))
            case cmd.ReleaseNode():
                pass  # a slice of a machine stays where it is

    async def make_way(self, job_id: str) -> None:
        """A job of this name is to be submitted. It does not wait for an older job's end, which may take for ever."""
        async with self._way:
            if job_id not in self.jobs:
                await self.launcher.forget(job_id)

    async def close(self) -> None:
        for task in self._ends:
            task.cancel()
        await asyncio.gather(*self._ends, return_exceptions=True)
        await self.launcher.close()

    def submission(self, job_id: str) -> Submission:
        return self.jobs[job_id].submission

    async def _launch(self, errand: cmd.Launch) -> None:
        submission = self.submission(errand.job_id)
        if not submission.command:
            return  # its owner starts the processes, which attach
        async with self._lock(errand.job_id):
            if not self._is_current(errand.job_id, errand.attempt, Job.STARTING):
                return
            attempt = Attempt(submission, errand.attempt, errand.placement, self.env_of(errand.job_id, errand.attempt))
            try:
                await self.launcher.start(attempt)
            except LaunchFailed as error:
                why = passed_on(str(error))
            except Exception as error:  # whatever it is: else the job would have its place for ever, and do nothing
                log.exception("job %r, attempt %d, could not be started", *attempt.key)
                await self.launcher.stop(*attempt.key, GRACE_S)
                why = f"it could not be started ({type(error).__name__}): the controller's log says more"
            else:
                await self._told(ev.JobStarted(errand.job_id, errand.attempt))
                return
            if self._is_current(errand.job_id, errand.attempt, Job.STARTING):  # else who stops it tells its end
                await self._told(ev.JobFailed(errand.job_id, errand.attempt, why))

    async def _stop(self, errand: cmd.Stop) -> None:
        if not self.submission(errand.job_id).command:
            return  # its processes hear that they are to end, and leave; else the machine goes on without them
        # At once: the turn may be that of a start, which takes minutes and is broken off by this.
        stopping = asyncio.ensure_future(self.launcher.stop(errand.job_id, errand.attempt, GRACE_S))
        try:
            async with self._lock(errand.job_id):
                await stopping
                if self._is_current(errand.job_id, errand.attempt, Job.STOPPING):
                    await self._told(ev.JobStopped(errand.job_id, errand.attempt))
        finally:
            stopping.cancel()

    async def _end(self, job_id: str, attempt: int) -> None:
        async with self._lock(job_id):
            await self.launcher.stop(job_id, attempt, GRACE_S)

    async def _exited(self, job_id: str, attempt: int, failed: str) -> None:
        """An attempt's processes have ended by themselves."""
        record = self.machine.state.jobs.get(job_id)
        if record is None or record.attempt != attempt:
            return
        if record.state is Job.STOPPING:
            await self._told(ev.JobStopped(job_id, attempt))
            return
        if record.state is Job.STARTING and not failed:  # before its start was told: a controller died in between
            await self._told(ev.JobStarted(job_id, attempt))
        if failed or record.state is not Job.RUNNING:
            await self._told(ev.JobFailed(job_id, attempt, passed_on(failed) or "it ended before it had begun"))
        else:
            await self._told(ev.JobFinished(job_id, attempt))

    async def _node_changed(self, node: str, there: bool) -> None:
        if not there:
            self._there.discard(node)
        await self._told(ev.NodeJoined(node, self._pool_of[node]) if there else ev.NodeLost(node))

    def _is_current(self, job_id: str, attempt: int, *states: Job) -> bool:
        record = self.machine.state.jobs.get(job_id)
        return record is not None and record.attempt == attempt and record.state in states

    async def _told(self, event: ev.Event) -> None:
        assert self._tell is not None
        await self._tell(event)

    def _lock(self, job_id: str) -> asyncio.Lock:
        for other in [name for name, lock in self._locks.items() if name not in self.jobs and not lock.locked()]:
            del self._locks[other]
        return self._locks.setdefault(job_id, asyncio.Lock())
