"""The ranks of an attempt on one node of Ray's: an actor there, and a keeper below it that does what keepers do.

The keeper dies with the actor, and all that it keeps with it: nothing goes on that Ray believes to be over. Logs are
among the node's own, where the dashboard finds them.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from rollmux.service.local.attempt_files import LEAST_LOG_BYTES, AttemptFiles
from rollmux.service.local.kept import answer, ask, end_leftovers, own_env, spawn, wait_ended
from rollmux.service.local.rank import Plan
from rollmux.service.ray.wire import KEEPER, Part, RayPlan
from rollmux.system import Watched

START_S = 60.0
KILL_S = 30.0
VANISHED = "its processes vanished, killed from outside"
# Variables that Ray sets for its own workers. Ranks are no such workers: they have reserved nothing, and have what
# their nodes have.
_OF_RAY = (
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
    "RAY_CLIENT_MODE",
    "RAY_JOB_ID",
    "RAY_JOB_STOP_WAIT_TIME_S",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_RAYLET_PID",
    "SPT_NOENV",
)


class Ranks:
    """Starts the ranks of one part once, and knows when they are gone."""

    def __init__(self) -> None:
        self._keeper: Watched | None = None  # as long as it lives
        self._gone = asyncio.Event()
        self._failed = ""
        self._watching: asyncio.Task[None] | None = None

    async def start(self, plan: RayPlan, part: Part) -> str:
        """Starts the ranks; returns "" once all are up, else why nothing has been started."""
        folder = plan.folder or os.getcwd()
        if not Path(folder).is_dir():
            return f"its folder {folder!r} is not on this node: name one that all nodes have, or a URI that Ray unpacks"
        try:
            files = AttemptFiles(_logs() / plan.logs / part.ray_node)
            files.prune({(plan.job, plan.attempt)})
            files.prepare((plan.job, plan.attempt))
            # In this thread, which lives as long as the actor: the keeper ends when the thread that started it ends.
            keeper, heard = spawn(_plan(plan, part, folder, files))
        except OSError as error:
            return f"it could not be started: {error}"
        self._keeper = keeper  # from here on there is something to stop
        self._watching = asyncio.create_task(self._see_off(keeper, files, (plan.job, plan.attempt)))
        failed = await answer(heard, START_S)
        if failed is None:
            self._ask(signal.SIGKILL)
        if failed == "":
            return ""
        await self._gone.wait()
        return failed or f"its keeper has failed: {files.complaint((plan.job, plan.attempt))}"

    async def ended(self) -> str:
        """Waits until none of the ranks runs any more; returns why they failed, "" if they did not."""
        await self._gone.wait()
        return self._failed

    async def stop(self, grace_s: float) -> None:
        """Ends the ranks; returns when none of them runs any more."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGUSR1, KILL_S), (signal.SIGKILL, KILL_S)):
            if self._watching is not None and not self._gone.is_set():
                self._ask(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._gone.wait()

    def _ask(self, number: signal.Signals) -> None:
        if self._keeper is not None:
            ask(self._keeper, number)

    async def _see_off(self, keeper: Watched, files: AttemptFiles, key: tuple[str, int]) -> None:
        await wait_ended(keeper)
        self._keeper = None
        failed, started = files.ended(key), files.started(key)
        if failed is None and started is not None:
            await end_leftovers(started.keeper)
        self._failed = VANISHED if failed is None else failed
        self._gone.set()


def _logs() -> Path:
    """Where Ray's dashboard looks for the logs of this node."""
    node: Any = ray._private.worker.global_worker.node
    return Path(node.get_logs_dir_path())


def _plan(plan: RayPlan, part: Part, folder: str, files: AttemptFiles) -> Plan:
    env = {name: value for name, value in own_env().items() if name not in _OF_RAY}
    env |= {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}  # so that a rank may use Ray itself
    if plan.processes == 1:
        env |= _for_actors(plan.env)
    env |= plan.env
    key = plan.job, plan.attempt
    return Plan(
        job=plan.job,
        attempt=plan.attempt,
        command=list(plan.command),
        folder=folder,
        env=env | {KEEPER: plan.id},
        processes=plan.processes,
        record=str(files.record(key)),
        log=str(files.log(key)),
        log_bytes=max(LEAST_LOG_BYTES, plan.log_bytes // plan.processes),
        marker=f"{KEEPER}={plan.id}",
        controller=os.getpid(),
        cores=list(part.cores),
        memory_bytes=part.memory_bytes,
        nodes={str(rank): node for rank, node in part.ranks.items()},
        mortal=True,
        devices={str(rank): list(seen) for rank, seen in part.devices.items()},
    )


def _for_actors(env: Mapping[str, str]) -> dict[str, str]:
    """Variables by which the actors of a rank that calls `ray.init()` know the controller, as in jobs of Ray's own.

    Without these, actors have only their nodes' environment, and a training loop may be in one of them. A rank may also
    give its actors an environment itself.
    """
    controller = {name: value for name, value in env.items() if name.startswith("ROLLMUX_")}
    config = {"runtime_env": {"env_vars": controller | {"ROLLMUX_RANK": "0"}}, "metadata": {}}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config), "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
