"""Errands: what a launcher tells at a controller's start, a start that breaks off, and a stop that waits for none."""

import asyncio
from collections.abc import Collection

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.protocol.job_file import read_job
from rollmux.service.errands import Errands
from rollmux.service.host import Host
from rollmux.service.launcher import Attempt, Launcher, LaunchFailed, OnExit, OnNode
from rollmux.service.recovery import recover
from tests.service.fuzz import Nobody
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import PAIR, RULES, job
from tests.service.test_recovery import JOB
from tests.waiting import eventually


def hosted(launcher: Launcher) -> Host:
    """A new controller with this launcher."""
    journal = MemoryJournal()
    controller, now = recover(journal, PAIR, RollmuxPolicy(), RULES)
    return Host(controller, journal, Errands(controller.machine, controller.jobs, launcher, lambda *_: {}), now, 0)


class LosesOne(Nobody):
    """A node is there at the first look, and lost a moment later."""

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        self._on_node = on_node
        return set(nodes)

    async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
        await self._on_node("train-0", False)
        return set()


class Breaks(Nobody):
    """Every start breaks off with an error that nobody has thought of."""

    def __init__(self) -> None:
        self.stopped: list[int] = []

    async def start(self, attempt: Attempt) -> None:
        raise RuntimeError("can't start new thread")

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        self.stopped.append(attempt)


def test_a_start_that_breaks_off_is_a_failure_of_which_the_owner_hears() -> None:
    """Else the job would be about to start for ever, on nodes that others wait for."""

    async def main() -> None:
        launcher = Breaks()
        host = hosted(launcher)
        await host.start([])
        await host.call(lambda now: host.controller.submit(now, "team", JOB))
        state = host.controller.machine.state
        async with asyncio.timeout(20):
            while state.jobs:
                await asyncio.sleep(0.01)
        assert state.ended["A"].startswith("failed 3 times, at last: it could not be started (RuntimeError)")
        assert launcher.stopped == [1, 2, 3]
        await host.stop()

    asyncio.run(main())


def test_a_node_that_is_lost_while_the_controller_starts_stays_lost() -> None:
    """Else jobs would be sent there until they have failed for good: no later look finds that anything has changed."""

    async def main() -> None:
        host = hosted(LosesOne())
        await host.start([])
        assert list(host.controller.machine.state.book.nodes) == ["rollout-0"]
        await host.stop()

    asyncio.run(main())


class BreaksOff(Nobody):
    """Nothing comes up, so a start goes on until it is told to stop: on Ray for minutes."""

    def __init__(self) -> None:
        self.starts, self.is_unwanted, self.has_gone = asyncio.Event(), asyncio.Event(), False

    async def start(self, attempt: Attempt) -> None:
        self.starts.set()
        await self.is_unwanted.wait()
        raise LaunchFailed("it was stopped before it was up")

    async def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        self.is_unwanted.set()
        await asyncio.sleep(0.05)
        self.has_gone = True


def test_a_job_that_is_cancelled_while_it_starts_is_over_once_its_start_is_broken_off_and_nothing_is_left() -> None:
    async def main() -> None:
        launcher = BreaksOff()
        host = hosted(launcher)
        controller = host.controller
        await host.start([])
        submission = read_job(job("a", command=["sleep", "60"], folder="/"))
        await host.call(lambda now: controller.submit(now, "alice", submission))
        await launcher.starts.wait()
        await host.call(lambda now: controller.cancel(now, "a"))
        await eventually(lambda: "a" in controller.machine.state.ended)
        assert launcher.has_gone
        await host.stop()

    asyncio.run(main())
