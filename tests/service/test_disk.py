"""A controller whose disk is full, or fails: it says so, changes nothing more, and has lost nothing (F13)."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.errands import Errands
from rollmux.service.host import Host
from rollmux.service.journal import Batch, SqliteJournal
from rollmux.service.recovery import recover
from rollmux.service.steps import Steps
from tests.service.fuzz import Nobody
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import PAIR, RULES, Served, job, served
from tests.service.test_recovery import JOB

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 400_000
LIMITED = f"""
import resource, signal, sys
from pathlib import Path
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.serve import Service, Wanted, run
from tests.service.serving import RULES, SMALL
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))
folder = Path(sys.argv[1])
service = Service(Wanted(SMALL, RollmuxPolicy(), folder, RULES), ProcessLauncher(folder))
print(service.url, flush=True)
run(service)
"""


def names(there: Served) -> list[str]:
    return [view["job"] for view in there.get("/v1/cluster")["jobs"]]


def answering(client: httpx.Client) -> httpx.Response:
    """That it is ready."""
    until = time.monotonic() + 30
    while True:
        with suppress(httpx.TransportError):
            answer = client.get("/readyz", timeout=5.0)
            if answer.status_code == 200:
                return answer
        assert time.monotonic() < until
        time.sleep(0.02)


def test_no_file_can_grow_any_more_and_the_controller_is_read_only_until_it_is_started_anew(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        admin = there.admin
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        headers = {"Authorization": f"Bearer {admin}"}
        with httpx.Client(base_url=process.stdout.readline().strip(), headers=headers, timeout=20) as client:
            answer, taken = answering(client), list[str]()
            for number in range(2000):
                answer = client.post("/v1/jobs", json=job(f"job-{number}", env={"TEXT": "x" * 3000}))
                if answer.status_code != 200:
                    break
                taken.append(f"job-{number}")
                time.sleep(0.005)  # below the rate that one caller may have
            assert answer.status_code == 503, answer.text
            assert client.get("/healthz").json()["broken"]
            assert len(client.get("/v1/cluster").json()["jobs"]) >= len(taken) > 10
            assert client.post("/v1/jobs/job-0/cancel").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with served(tmp_path) as there:
        there.admin = admin
        assert names(there)[: len(taken)] == taken
        assert len(names(there)) <= len(taken) + 1  # one whose answer was lost with the disk
        there.post("/v1/jobs/job-0/cancel")


class FailingDisk(SqliteJournal):
    """The words are on the disk, or not: that can't be told any more, as after an error of fsync."""

    after = 5
    keeps = True

    def append(self, batch: Batch) -> None:
        FailingDisk.after -= 1
        if self.after > 0:
            super().append(batch)
            return
        if self.keeps:
            super().append(batch)
        raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("keeps", [True, False], ids=["it was written", "it was not"])
def test_what_may_or_may_not_be_on_disk_was_told_nobody(tmp_path: Path, keeps: bool) -> None:
    FailingDisk.after, FailingDisk.keeps = 5, keeps
    told: list[str] = []
    answer: Any = None
    with served(tmp_path, journal=FailingDisk) as there:
        for number in range(20):
            answer = there.call("POST", "/v1/jobs", job(f"job-{number}"))
            if answer.status_code != 200:
                break
            told.append(f"job-{number}")
        assert answer.status_code == 503
        assert "disk I/O error" in there.get("/healthz")["broken"]
        written = FailingDisk.after
        assert there.call("POST", "/v1/jobs", job("more")).status_code == 503
        assert FailingDisk.after == written  # nothing is tried on a disk that has failed
        admin = there.admin
    with served(tmp_path) as there:
        there.admin = admin
        assert names(there) == told + [f"job-{len(told)}"] * keeps
        # Whoever had no answer asks again.
        for number in range(20):
            there.post("/v1/jobs", job(f"job-{number}"))
        assert names(there) == [f"job-{number}" for number in range(20)]


class SlowDisk(SqliteJournal):
    """Each write waits until it may end."""

    may_end = threading.Event()

    def append(self, batch: Batch) -> None:
        assert self.may_end.wait(10.0)
        super().append(batch)


def test_a_look_at_all_tells_of_nothing_that_is_not_on_disk_yet(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SlowDisk(tmp_path / "journal.db")
        controller, now = recover(journal, PAIR, RollmuxPolicy(), RULES)
        host = Host(controller, journal, Errands(controller.machine, controller.jobs, Nobody(), lambda *_: {}), now, 0)
        journal.may_end.set()
        await host.start([])
        journal.may_end.clear()

        def seen() -> Steps[list[str]]:
            yield
            return list(controller.jobs)

        submitted = asyncio.ensure_future(host.call(lambda at: controller.submit(at, "team", JOB)))
        looked = asyncio.ensure_future(host.look_through(lambda _: seen()))
        await asyncio.sleep(0.05)
        assert not looked.done()
        journal.may_end.set()
        assert await looked == [JOB.job.id]
        await submitted
        await host.stop()

    asyncio.run(main())


def test_a_controller_that_can_write_nothing_from_its_start_on_is_read_only_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingDisk, "after", 1)
    with served(tmp_path, journal=FailingDisk) as there:  # its nodes are news
        assert "disk I/O error" in there.get("/healthz")["broken"]
        assert there.call("GET", "/readyz").status_code == 503
        assert "disk I/O error" in there.get("/v1/cluster")["broken"]
        assert there.call("POST", "/v1/jobs", job("a")).status_code == 503


def test_a_controller_that_can_not_write_its_last_words_ends_as_others_do() -> None:
    """Its launcher waits for starts that are under way: nobody would look after half a start."""
    closed = []

    class Noted(Nobody):
        async def close(self) -> None:
            closed.append("launcher")

    class Full(MemoryJournal):
        def close(self) -> None:
            closed.append("journal")

    async def main() -> None:
        journal = Full()
        controller, now = recover(journal, PAIR, RollmuxPolicy(), RULES)
        host = Host(controller, journal, Errands(controller.machine, controller.jobs, Noted(), lambda *_: {}), now, 0)
        await host.start([])
        journal.full = True
        controller.submit(host.now, "team", JOB)
        await host.stop()
        assert "no space left" in host.broken

    asyncio.run(main())
    assert closed == ["launcher", "journal"]


def small_disk(folder: Path) -> bool:
    """Whether a file system of a megabyte could be mounted here, which takes rights."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_really_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not small_disk(disk):
        pytest.skip("file systems can't be mounted here")
    try:
        taken = []
        with served(disk) as there:
            for number in range(2000):
                answer = there.call("POST", "/v1/jobs", job(f"job-{number}", env={"TEXT": "x" * 3000}))
                if answer.status_code == 429:
                    time.sleep(0.1)
                elif answer.status_code != 200:
                    break
                else:
                    taken.append(f"job-{number}")
            assert answer.status_code == 503
            assert "full" in there.get("/healthz")["broken"]
            admin = there.admin
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        with served(disk) as there:
            there.admin = admin
            assert names(there) == taken
            there.post("/v1/jobs", job("more"))
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
