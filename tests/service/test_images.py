"""Images of the state that are made while it changes: one at a time, however long one takes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service import host as hosts
from rollmux.service.errands import Errands
from rollmux.service.host import Host
from rollmux.service.journal import SqliteJournal
from rollmux.service.recovery import recover
from tests.service.fuzz import Nobody
from tests.service.test_recovery import JOB
from tests.service.world import CLUSTERS, RULES


class Copies:
    """Stands for the copies of the process: each is ready when it is said to be."""

    def __init__(self) -> None:
        self.made = 0
        self.ready = asyncio.Event()

    def begin(self, work: object) -> "Copies":
        self.made += 1
        return self

    async def result(self) -> bytes:
        await self.ready.wait()
        raise OSError("the copy is gone")


def test_the_next_image_is_begun_when_the_last_one_is_done_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "REPLAY_S", -1.0)  # an image is always due

    async def main() -> None:
        copies = Copies()
        monkeypatch.setattr(hosts, "Forked", copies.begin)
        journal = SqliteJournal(tmp_path / "journal.db")
        controller, now = recover(journal, CLUSTERS[0], RollmuxPolicy(), RULES)
        host = Host(controller, journal, Errands(controller.machine, controller.jobs, Nobody(), lambda *_: {}), now, 0)
        await host.start([])

        async def submit(job_id: str) -> None:
            submission = replace(JOB, job=replace(JOB.job, id=job_id))
            await host.call(lambda at: controller.submit(at, "team", submission))
            await asyncio.sleep(0.01)  # what follows a write comes after its answer

        await submit("a")
        await submit("b")
        assert copies.made == 1
        copies.ready.set()
        await asyncio.sleep(0.01)
        await submit("c")
        assert copies.made > 1
        await host.stop()

    asyncio.run(main())
