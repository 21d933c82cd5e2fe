"""Errands at a controller's start: what a launcher tells meanwhile counts."""

import asyncio
from collections.abc import Collection

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.errands import Errands
from rollmux.service.host import Host
from rollmux.service.launcher import OnExit, OnNode
from rollmux.service.recovery import recover
from tests.service.fuzz import Nobody
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import PAIR, RULES


class LosesOne(Nobody):
    """A node is there at the first look, and lost a moment later."""

    async def watch(self, nodes: Collection[str], on_node: OnNode) -> set[str]:
        self._on_node = on_node
        return set(nodes)

    async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
        await self._on_node("train-0", False)
        return set()


def test_a_node_that_is_lost_while_the_controller_starts_stays_lost() -> None:
    """Else jobs would be sent there until they have failed for good: no later look finds that anything has changed."""

    async def main() -> None:
        journal = MemoryJournal()
        controller, now = recover(journal, PAIR, RollmuxPolicy(), RULES)
        host = Host(
            controller, journal, Errands(controller.machine, controller.jobs, LosesOne(), lambda *_: {}), now, 0
        )
        await host.start([])
        assert list(controller.machine.state.book.nodes) == ["rollout-0"]
        await host.stop()

    asyncio.run(main())
