"""The wall clock jumps, and nothing comes of it (F12): durations are monotonic, here and in the client."""

import ast
import asyncio
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import rollmux
from rollmux.mux import events as ev
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service import machine_time
from rollmux.service.journal import Batch, SqliteJournal
from rollmux.service.launcher import OnExit
from rollmux.service.local.launcher import ProcessLauncher
from rollmux.service.machine_time import LONGEST_STEP_S, MachineTime
from rollmux.service.serve import Service, Wanted
from tests.client.world import Crowd, Floor
from tests.service.running import running
from tests.service.serving import CHEAP, DEAR, PAIR, RULES, Served, job, served
from tests.waiting import until

SOURCE = Path(rollmux.__file__).parent
# Who may look at the wall clock: tokens run out at a date, records, pictures and answers say of when they are, the
# checks of a machine look at the clock itself, and systems without /proc tell by it when a process was started.
MAY = {
    "service/local/by_psutil.py": "time.time()",
    "service/serve.py": "Tokens(",
    "service/journal/written.py": "wall_s, rows =",
    "service/routes.py": "view.Health(",
    "service/checkup/machine.py": "time.time()",
    "cli/doctor.py": "time.time()",
    "cli/past.py": "unix_s_at_0",
    "cli/tokens.py": "Tokens(",
    "cli/top.py": "Frame(",
}
YEAR_S = 365 * 86400.0


def looks_at_the_wall(path: Path) -> list[str]:
    """The lines of this file that read the time of day."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [lines[node.lineno - 1] for name in node.names if name.name in ("time", "time_ns")]
        elif isinstance(node, ast.Attribute) and node.attr in ("time", "time_ns", "utcnow", "today", "now"):
            wall = isinstance(node.value, ast.Name) and node.value.id in ("time", "datetime", "date")
            found += [lines[node.lineno - 1]] * wall
    return found


@pytest.mark.parametrize("part", ["service", "client", "protocol", "cli"])
def test_nothing_is_measured_by_the_wall_clock(part: str) -> None:
    for path in sorted((SOURCE / part).rglob("*.py")):
        for line in looks_at_the_wall(path):
            allowed = MAY.get(path.relative_to(SOURCE).as_posix(), "")
            assert allowed, f"{path}: {line}"
            assert allowed in line, f"{path}: {line}"


def test_jobs_share_nodes_while_the_clock_jumps_by_years(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lots, off, over = random.Random(0), [0.0], threading.Event()
    really = time.time
    monkeypatch.setattr(time, "time", lambda: really() + off[0])

    def jump() -> None:
        while not over.wait(0.01):
            off[0] = lots.choice([-30 * YEAR_S, -3600.0, -1.0, 0.0, 5.0, 3600.0, 30 * YEAR_S])

    jumping, crowd, floor = threading.Thread(target=jump), Crowd(), Floor()
    with served(tmp_path, PAIR) as there:
        jumping.start()
        try:

            def work(name: str) -> None:
                with rollmux.connect(url=there.service.url, token=there.admin, job=job(name, iterations=3)) as mux:
                    floor.walk(mux, name, 3)

            for name in "ab":
                crowd.start(lambda name=name: work(name))  # type: ignore[misc]
            crowd.join(60.0)
        finally:
            over.set()
            jumping.join()
        assert set(floor.done.values()) == {1}
        state = there.service.controller.machine.state
        assert state.ended == {"a": "finished", "b": "finished"}
        assert all(entry.at >= 0 for entry in there.service.controller.machine.log)
        revoked = [c for entry in there.service.controller.machine.log for c in entry.commands if "Revoke" in repr(c)]
        assert revoked == []


def test_a_token_runs_out_by_the_wall_clock_and_a_job_s_own_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, PAIR) as there:
        there.post("/v1/jobs", job("a"))
        own = there.service.tokens.of_job("a", "admin")
        really = time.time
        monkeypatch.setattr(time, "time", lambda: really() + 30 * YEAR_S)
        assert there.call("GET", "/v1/jobs/a", token=own).status_code == 200
        assert there.call("GET", "/v1/cluster").status_code == 200


def test_time_goes_on_from_a_controller_that_ended_before_anything_had_happened(tmp_path: Path) -> None:
    rented = Cluster(Pool("rollout", CHEAP), Pool("train", DEAR))  # else nodes would have come
    with served(tmp_path, rented) as there:
        admin = there.admin
    with served(tmp_path, rented) as there:
        there.post("/v1/jobs", job("a"), admin)
        at = there.get("/v1/cluster", admin)["now"]
        assert at >= 0
    with served(tmp_path, rented) as there:
        after = there.get("/v1/cluster", admin)
        assert after["now"] >= at
        assert [each["job"] for each in after["jobs"]] == ["a"]


def test_quiet_time_before_an_end_in_good_order_is_not_forgotten(tmp_path: Path) -> None:
    """Jobs that held nodes meanwhile, and did nothing of which the controller hears, pay for it."""
    with served(tmp_path, PAIR) as there:
        there.attached("a")
        seen = there.get("/v1/cluster")["now"]
    service = Service(Wanted(PAIR, RollmuxPolicy(), tmp_path, RULES), ProcessLauncher(tmp_path))
    goes_on_from = service.host.now
    Served(service).close()
    assert goes_on_from >= seen


def test_time_stands_until_those_who_hold_leases_can_be_heard(tmp_path: Path) -> None:
    class Slow(ProcessLauncher):
        async def begin(self, on_exit: OnExit) -> set[tuple[str, int]]:
            await asyncio.sleep(0.02)
            seen.append(service.host.now)
            return await super().begin(on_exit)

    with served(tmp_path, PAIR) as there:
        there.attached("a")
    seen = list[float]()
    service = Service(Wanted(PAIR, RollmuxPolicy(), tmp_path, RULES), Slow(tmp_path))
    ended_at = service.host.now
    again = Served(service)
    again.close()
    assert seen == [ended_at]
    assert service.host.now > ended_at


def test_time_stands_while_nobody_looks_at_it_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    at, time_of_machine = 1000.0, MachineTime(7.0)
    monkeypatch.setattr(machine_time, "monotonic", lambda: at)
    assert time_of_machine.now() == 7.0
    time_of_machine.begin()
    for passed_s, counts_s in ((0.25, 0.25), (0.5, 0.5), (60.0, LONGEST_STEP_S), (0.25, 0.25), (0.0, 0.0)):
        before, at = time_of_machine.now(), at + passed_s
        assert time_of_machine.now() - before == counts_s


def test_time_goes_on_while_the_disk_stalls(tmp_path: Path) -> None:
    stalls, goes_on = threading.Event(), threading.Event()

    class Stalling(SqliteJournal):
        def append(self, batch: Batch) -> None:
            if any(isinstance(record.event, ev.JobSubmitted) for record in batch.records):
                stalls.set()
                assert goes_on.wait(20)
            super().append(batch)

    with served(tmp_path, PAIR, journal=Stalling) as there:
        submits = threading.Thread(target=there.post, args=("/v1/jobs", job("a")))
        submits.start()
        assert stalls.wait(20)
        before = there.service.host.now
        time.sleep(6 * LONGEST_STEP_S)
        passed_s = there.service.host.now - before
        goes_on.set()
        submits.join()
    assert passed_s > 2 * LONGEST_STEP_S


HOLDS = """
import time, rollmux
from pathlib import Path
with rollmux.connect() as mux:
    for step in mux.steps(1):
        with mux.phase("rollout"):
            Path("holding").touch()
            while not Path("go").exists():
                time.sleep(0.05)
        with mux.phase("train"):
            pass
"""


def test_no_lease_runs_out_while_the_controller_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "holds.py").write_text(HOLDS)
    holder = job("a", iterations=1, command=[sys.executable, "holds.py"], folder=str(tmp_path))
    with running(tmp_path / "c", "--lease-s", "3", "--drain-s", "1") as there:
        assert there.call("POST", "/v1/jobs", holder).status_code == 200
        until((tmp_path / "holding").exists)
        there.process.send_signal(signal.SIGSTOP)
        time.sleep(8.0)  # longer than lease and drain, and than a call waits for its answer
        there.process.send_signal(signal.SIGCONT)
        until(lambda: "nobody was heard" in there.log.read_text())
        (tmp_path / "go").touch()
        until(lambda: there.call("GET", "/v1/jobs/a").json()["state"] == "ended")
        told = "\n".join(there.call("GET", "/v1/jobs/a/story").json()["lines"])
        assert "Revoke" not in told, told
