"""Images of the state that are made while it changes: one at a time, however long one takes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service import host as hosts
from rollmux.service.errands import Errands
from rollmux.service.host import Host, Unavailable
from rollmux.service.journal import Batch, Image, Packed, SqliteJournal
from rollmux.service.recovery import recover
from tests.service.fuzz import Nobody
from tests.service.test_recovery import JOB
from tests.service.world import CLUSTERS, RULES
from tests.waiting import eventually


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


class BusyDisk(SqliteJournal):
    """A call comes amid each write, until `calls` of them have come."""

    calls = 20
    call: Callable[[int], object] | None = None
    seq: Callable[[], int]

    def append(self, batch: Batch) -> None:
        super().append(batch)
        if self.call is not None and self.calls:
            self.calls -= 1
            before = self.seq()
            self.call(self.calls)
            until = time.monotonic() + 10.0
            while self.seq() == before:
                assert time.monotonic() < until
                time.sleep(0.0005)

    def keep(self, image: Image | Packed) -> None:
        assert image.seq <= [*self.records()][-1].seq, "an image holds more than is durable"
        super().keep(image)


class AtOnce:
    """Stands for a copy of the process whose work is done as soon as it is begun."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._done = work()

    async def result(self) -> bytes:
        return self._done


def test_images_are_made_while_calls_come_so_fast_that_there_is_always_something_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "REPLAY_S", -1.0)
    monkeypatch.setattr(hosts, "Forked", AtOnce)

    async def main() -> None:
        journal, loop = BusyDisk(tmp_path / "journal.db"), asyncio.get_running_loop()
        controller, now = recover(journal, CLUSTERS[0], RollmuxPolicy(), RULES)
        host = Host(controller, journal, Errands(controller.machine, controller.jobs, Nobody(), lambda *_: {}), now, 0)
        await host.start([])
        calls = list[asyncio.Future[None]]()

        def submit(number: int) -> None:
            submission = replace(JOB, job=replace(JOB.job, id=f"job{number}"))
            calls.append(asyncio.ensure_future(host.call(lambda at: controller.submit(at, "team", submission))))

        journal.seq = lambda: controller.machine.state.ledger.seq
        journal.call = lambda number: loop.call_soon_threadsafe(submit, number)
        submit(BusyDisk.calls)
        while journal.calls:
            await calls[-1]
        kept = journal.image()
        assert kept is not None
        assert kept.seq > 5
        await asyncio.gather(*calls)
        await host.stop()

    asyncio.run(main())
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        after, _ = recover(journal, CLUSTERS[0], RollmuxPolicy(), RULES)
        assert len(after.jobs) == BusyDisk.calls + 1


class FullDisk(SqliteJournal):
    """Takes no record, and would have room for an image."""

    kept = 0

    def append(self, batch: Batch) -> None:
        raise OSError("no space left")

    def keep(self, image: Image | Packed) -> None:
        self.kept += 1


def test_no_image_is_kept_of_what_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life would know of jobs that were refused."""
    monkeypatch.setattr(hosts, "REPLAY_S", -1.0)
    monkeypatch.setattr(hosts, "Forked", AtOnce)

    async def main() -> None:
        journal = FullDisk(tmp_path / "journal.db")
        controller, now = recover(journal, CLUSTERS[0], RollmuxPolicy(), RULES)
        host = Host(controller, journal, Errands(controller.machine, controller.jobs, Nobody(), lambda *_: {}), now, 0)
        await host.start([])
        with pytest.raises(Unavailable, match="no space left"):
            await host.call(lambda at: controller.submit(at, "team", JOB))
        await eventually(lambda: not host._copying)
        await host.stop()
        assert journal.kept == 0

    asyncio.run(main())
