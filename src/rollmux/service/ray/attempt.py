"""The program that Ray runs for an attempt: puts its ranks on their nodes, sees them end, and says how.

It says so by what it prints. It ends when nothing of the attempt runs any more, or says that it can't be sure of that.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux.service.ray.part import KILL_S, Ranks
from rollmux.service.ray.wire import Part, RayPlan, from_env, say

# How long what is left of a failed attempt has to end by itself.
LEFT_S = 1.0
# Ray knows of a node's end a moment after its workers' end: for how long, and how often, to ask for it.
NODE_S, LOOK_S = 10.0, 0.5
LONGEST_REASON = 1000


class Run:
    """One attempt, from its start to its end."""

    def __init__(self, plan: RayPlan, ended_from_outside: asyncio.Event) -> None:
        self.plan, self._outside = plan, ended_from_outside
        self._lost = False  # whether the end of some part was not seen
        self._actors: list[Any] = []

    async def to_its_end(self) -> str:
        """Runs the attempt; returns why it failed, or "" if it did not."""
        say(starting=True)
        actor = ray.remote(num_cpus=0, max_restarts=0)(Ranks)
        for part in self.plan.parts:
            here = NodeAffinitySchedulingStrategy(part.ray_node, soft=False)
            self._actors.append(actor.options(scheduling_strategy=here).remote())
        parts = list(zip(self._actors, self.plan.parts, strict=True))
        failed = await self._all_or_first([self._of(part, one.start.remote(self.plan, part)) for one, part in parts])
        if not failed:
            say(up=True)
            failed = await self._all_or_first([self._of(part, one.ended.remote()) for one, part in parts])
        if failed:
            await self._stop(self.plan.grace_s if self._outside.is_set() else LEFT_S)
        return failed

    async def _all_or_first(self, parts: Iterable[Awaitable[str]]) -> str:
        """Waits for all parts, and returns "" if all have gone well; else what has gone wrong first, at once."""
        outside = asyncio.create_task(self._outside.wait())
        waiting: set[asyncio.Task[Any]] = {asyncio.ensure_future(each) for each in parts}
        try:
            while waiting:
                done, _ = await asyncio.wait({*waiting, outside}, return_when=asyncio.FIRST_COMPLETED)
                if outside in done:
                    return "it was told to end from outside"
                waiting -= done
                if failed := next((task.result() for task in done if task.result()), ""):
                    return str(failed)
            return ""
        finally:
            for task in (*waiting, outside):
                task.cancel()

    async def _of(self, part: Part, call: Awaitable[str]) -> str:
        """What a part says, or what Ray says of its death."""
        try:
            return await call
        except RayError as error:
            self._lost = True
            return await _how_lost(part, " ".join(str(error).split()))

    async def _stop(self, grace_s: float) -> None:
        async def one(actor: Any) -> None:
            try:
                async with asyncio.timeout(grace_s + 2 * KILL_S):
                    await actor.stop.remote(grace_s)
            except (RayError, TimeoutError):
                self._lost = True

        await asyncio.gather(*map(one, self._actors))

    @property
    def clean(self) -> bool:
        return not self._lost


async def _how_lost(part: Part, said: str) -> str:
    nodes = ", ".join(dict.fromkeys(part.ranks.values()))
    for _ in range(int(NODE_S / LOOK_S)):
        if part.ray_node not in await asyncio.to_thread(_alive):
            return f"node {nodes} was lost: Ray's node {part.ray_node[:12]} is gone"
        if "memory" in said.lower():
            break
        await asyncio.sleep(LOOK_S)
    return f"what kept its processes on node {nodes} was ended: {said}"


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


async def _run(plan: RayPlan) -> int:
    outside = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, outside.set)
    run = Run(plan, outside)
    failed = await run.to_its_end()
    say(ended=failed[:LONGEST_REASON], clean=run.clean)
    return 1 if failed else 0


def main() -> None:
    plan = from_env(os.environ)
    ray.init(log_to_driver=False, logging_level="warning")
    code = asyncio.run(_run(plan))
    sys.stdout.flush()
    with suppress(RayError):
        ray.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
