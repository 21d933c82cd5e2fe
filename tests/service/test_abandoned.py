"""Jobs of scripts that attach by themselves and are gone before their first lease: nobody waits long for them.

Invariant: a job stays for as long as one of its processes calls, and for a lease and the drain after the last of them
hung up, or a minute longer where the controller was away. Who has had a lease, is launched, or has never called any
controller is waited for as ever.
"""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import IllegalEvent
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.image import image
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import Ask, Attach, Leave, Listen
from rollmux.service.controller import LOOK_S, Controller
from rollmux.service.live import AWAY_S, SILENT_S
from rollmux.service.recovery import recover
from rollmux.service.views import job_view
from tests.service.memory_journal import MemoryJournal
from tests.service.running import Running, clean_env, running
from tests.service.serving import PAIR, served
from tests.service.serving import job as described
from tests.thorough import examples
from tests.waiting import until

TIMING = Timing(15.0, 10.0)
GRACE_S = TIMING.lease_s + TIMING.drain_s
SOON_S = GRACE_S + LOOK_S + 2.0


class InLine:
    """Job `a` waits for the only place, which a launched job has. Its processes attach by themselves."""

    def __init__(self, processes: int = 1, command: tuple[str, ...] = (), slo: float = 1.0) -> None:
        self.rules = Rules(timing=TIMING, checks=Checks.ALL)
        self.journal, self.now, self.there = MemoryJournal(), 0.0, False
        self.controller = self._recovered()
        for pool in ("rollout", "train"):
            self.controller.tell(0.0, ev.NodeJoined(f"{pool}-0", pool))
        self._submit("busy", 1, ("python",), slo)
        self.controller.tell(0.0, ev.JobStarted("busy", 1))
        self._submit("a", processes, command, slo)

    def _submit(self, name: str, processes: int, command: tuple[str, ...], slo: float) -> None:
        phase = PhaseSpec(20.0, 1)
        job = JobSpec(name, phase, phase, slo, iterations=2, max_attempts=3)
        self.controller.submit(0.0, "team", Submission(job, command, (), "", processes))

    def _recovered(self) -> Controller:
        return recover(self.journal, PAIR, RollmuxPolicy(), self.rules)[0]

    def restart(self) -> None:
        """Every record leads again to what it led to, and the state is the same."""
        self.journal.append(self.controller.take()[0])
        before, self.controller = self.controller, self._recovered()
        assert image(self.controller.machine) == image(before.machine)

    def state(self) -> Job:
        record = self.controller.machine.state.jobs.get("a")
        return Job.ENDED if record is None else record.state

    @property
    def ended(self) -> str:
        return self.controller.machine.state.ended.get("a", "")

    @property
    def said(self) -> str:
        """What its owner hears of it."""
        return job_view(self.controller, self.now, "a", None, {}).reason

    @property
    def attempt(self) -> int:
        return self.controller.machine.state.jobs["a"].attempt

    def attach(self, life: str = "one", rank: int = 0) -> int:
        self.there = True
        processes = self.controller.live("a").submission.processes
        return self.controller.processes.attach(self.now, "a", Attach(life, rank, processes)).attempt

    def hangs_up(self, attempt: int = 0) -> None:
        self.there = False
        self.controller.processes.hung_up(self.now, "a", Listen(attempt) if attempt else Attach("one"))

    def leaves(self, why: str, attempt: int = 0, life: str = "one", rank: int = 0) -> None:
        self.there = False
        self.controller.processes.leave(self.now, "a", Leave(attempt, why, rank, life))

    def a_place_is_free(self) -> None:
        if "busy" in self.controller.machine.state.jobs:
            self.controller.tell(self.now, ev.JobFinished("busy", 1))

    def asks(self) -> None:
        """Its first phase, whose lease it has until it says otherwise: nobody else wants the nodes."""
        lease = self.controller.processes.ask(self.now, "a", Ask(self.attempt, PhaseKind.ROLLOUT, 0)).lease
        assert lease is not None
        self.controller.tell(self.now, ev.PhaseFailed("a", lease.epoch, "given up"))

    def passes(self, seconds: float) -> None:
        """Time, in which who is there calls every now and then."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            if self.there and self.state() is Job.RUNNING:
                self.controller.processes.listen(self.now, "a", Listen(self.attempt))
            elif self.there and self.state() is not Job.ENDED:
                self.attach()
            self.controller.tick(self.now)


# -- pure histories --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(st.sampled_from(["attach", "hang up", "place", "ask", "restart", "10 s", "10 s", "30 s"]), max_size=14))
def test_a_job_ends_only_where_its_script_was_gone_for_long_and_then_soon(steps: list[str]) -> None:
    line, gone_s, patience_s, came, leased = InLine(), -1.0, GRACE_S, False, False
    for step in steps:
        if step == "attach":
            line.attach()
            came, gone_s = True, -1.0
        elif step == "hang up" and line.there:
            line.hangs_up()
            gone_s, patience_s = 0.0, GRACE_S
        elif step == "place":
            line.a_place_is_free()
        elif step == "ask" and line.there and line.attach():
            line.asks()
            leased = True
        elif step == "restart":
            line.restart()
            gone_s, patience_s = (0.0 if came and not line.there else -1.0), AWAY_S + LOOK_S + GRACE_S
        elif step.endswith(" s"):
            seconds = float(step.removesuffix(" s"))
            line.passes(seconds)
            gone_s += seconds if gone_s >= 0.0 else 0.0
        is_due = gone_s > patience_s - LOOK_S and not leased
        assert line.state() is not Job.ENDED or is_due, line.ended
        assert line.state() is Job.ENDED or leased or gone_s < patience_s + LOOK_S + 2.0
        if line.state() is Job.ENDED:
            break
    line.restart()


@pytest.mark.parametrize("where", [Job.QUEUED, Job.STARTING, Job.RUNNING])
def test_who_hung_up_before_the_first_lease_is_waited_for_no_longer_than_a_lease_and_the_drain(where: Job) -> None:
    line = InLine()
    line.attach()
    if where is not Job.QUEUED:
        line.a_place_is_free()
    if where is Job.RUNNING:
        assert line.attach() == 1
    assert line.state() is where
    line.hangs_up()
    line.passes(GRACE_S)
    assert line.state() is where
    line.passes(LOOK_S + 2.0)
    assert line.ended == "its script hung up before its first lease, and nobody came back within 25 s"
    with pytest.raises(IllegalEvent, match="nobody came back within 25 s; give this one another name"):
        line.attach()


def test_who_hung_up_while_it_waited_for_its_first_turn_is_not_begun_with_when_that_comes() -> None:
    line = InLine(slo=8.0)  # they share the place
    (granted,) = line.controller.tell(0.0, ev.PhaseRequested("busy", 1, PhaseKind.ROLLOUT, 0))
    assert isinstance(granted, cmd.Grant)
    line.attach()
    assert line.controller.processes.ask(0.0, "a", Ask(1, PhaseKind.ROLLOUT, 0)).lease is None
    line.hangs_up(1)
    (turn,) = line.controller.tell(0.0, ev.PhaseFailed("busy", granted.lease.epoch, "given up"))
    assert isinstance(turn, cmd.Grant)
    assert turn.lease.job_id == "a"
    line.passes(SOON_S)
    assert line.ended == "its script hung up before its first lease, and nobody came back within 25 s"
    assert not line.controller.machine.state.weaves["group-0"].leases


def test_a_script_that_fails_before_its_first_lease_may_be_started_again_for_as_long() -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.leaves("ValueError: early", 1)
    line.passes(GRACE_S)
    assert line.attach("two") == 2
    line.leaves("ValueError: again", 2, "two")
    line.passes(SOON_S)
    assert line.ended.startswith("its script ended (ValueError: again) before its first lease")


def test_who_comes_back_in_time_keeps_its_place_in_line() -> None:
    line = InLine()
    line.attach()
    line.hangs_up()
    line.passes(GRACE_S)
    line.attach("two")
    line.passes(4 * SOON_S)
    assert line.state() is Job.QUEUED
    line.a_place_is_free()
    line.passes(1.0)
    assert line.state() is Job.RUNNING


def test_a_process_that_goes_on_calling_is_enough() -> None:
    """Its connection was cut, or another process of the job has hung up while no call of this one was parked."""
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.hangs_up(1)
    line.there = True
    line.passes(4 * SOON_S)
    assert (line.state(), line.attempt) == (Job.RUNNING, 1)


def test_a_job_that_has_had_a_lease_is_waited_for_as_ever() -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.asks()
    line.leaves("ValueError: late", 1)
    line.passes(SILENT_S - 10.0)
    assert line.state() is Job.STARTING
    assert line.attach("two") == 2


def test_a_job_whose_script_is_waited_for_says_so_why_and_for_how_long() -> None:
    line = InLine()
    line.a_place_is_free()
    assert line.said == "its script has 600 s to be started"
    line.attach()
    assert line.said == ""
    line.asks()
    line.leaves("ValueError: late", 1)
    assert line.said == "attempt 1 is over (ValueError: late): its script has 600 s to be started again"
    line.restart()
    assert line.said == "attempt 1 is over: its script has 600 s to be started again", (
        "why is of one life of the controller"
    )


def test_a_job_that_has_had_no_lease_says_that_its_script_has_little_time() -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.leaves("ValueError: early", 1)
    assert line.said == "attempt 1 is over (ValueError: early): its script has 25 s to be started again"


@pytest.mark.parametrize("command", [(), ("python",)])
def test_a_script_that_hung_up_between_its_phases_is_said_to_be_waited_for(command: tuple[str, ...]) -> None:
    line = InLine(command=command)
    line.a_place_is_free()
    line.controller.tell(0.0, ev.JobStarted("a", 1))
    line.attach()
    line.asks()
    line.hangs_up(1)
    assert line.state() is Job.RUNNING
    assert line.said == ("" if command else "its script hung up: it has 600 s to be started again")
    line.there = True
    line.passes(1.0)
    assert line.said == ""


def test_a_life_of_the_script_whose_attempt_is_over_hears_why() -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.asks()
    line.attach("two")
    assert line.controller.processes.listen(line.now, "a", Listen(1)).stop == (
        "attempt 1 is over (its script was started again)"
    )
    line.restart()
    assert line.controller.processes.listen(line.now, "a", Listen(1)).stop == "attempt 1 is over"


def test_an_attempt_that_was_stopped_is_over_for_what_it_was_stopped_for() -> None:
    line = InLine(command=("python",))
    line.a_place_is_free()
    assert line.said == "", "its launcher starts it"
    line.controller.tell(0.0, ev.JobStarted("a", 1))
    line.controller.tell(0.0, ev.NodeLost("train-0"))
    line.controller.tell(0.0, ev.JobFailed("a", 1, "rank 0 was killed"))
    line.controller.tell(0.0, ev.NodeJoined("train-0", "train"))
    assert line.state() is Job.STARTING
    assert line.said == "attempt 1 is over (node train-0 is lost)"


@pytest.mark.parametrize("where", [Job.QUEUED, Job.STARTING, Job.RUNNING])
@pytest.mark.parametrize("restarts", [1, 2])
def test_who_ended_before_the_first_lease_while_the_controller_was_away_is_not_waited_for(
    where: Job, restarts: int
) -> None:
    line = InLine()
    line.attach()
    if where is not Job.QUEUED:
        line.a_place_is_free()
    if where is Job.RUNNING:
        assert line.attach() == 1
    line.there = False
    for _ in range(restarts):
        line.restart()
        line.passes(AWAY_S)
    line.passes(GRACE_S)
    assert line.state() is where
    line.passes(2 * LOOK_S + 2.0)
    assert line.ended == (
        "its script was gone when the controller came back before its first lease, and nobody came back within 25 s"
    )


def test_a_new_controller_throws_nobody_out_who_is_yet_to_come_back() -> None:
    line = InLine()
    line.attach()
    line.restart()
    line.there = False
    line.passes(AWAY_S + GRACE_S)
    line.attach()
    line.passes(2 * SILENT_S)
    assert line.state() is Job.QUEUED
    line.a_place_is_free()
    line.attach()
    line.asks()
    line.restart()
    line.hangs_up()
    line.passes(SILENT_S - 10.0)
    assert line.state() is Job.RUNNING, "it has had a lease, in an earlier life of the controller"


def test_who_has_never_called_may_be_started_after_the_controller_too() -> None:
    line = InLine()
    line.restart()
    line.passes(2 * SILENT_S)
    assert line.state() is Job.QUEUED


def test_a_launched_job_is_its_launchers_business() -> None:
    line = InLine(command=("python",))
    line.a_place_is_free()
    assert line.attach() == 0
    line.hangs_up()
    line.leaves("KeyboardInterrupt: ")
    line.passes(2 * SILENT_S)
    assert line.state() is Job.STARTING


def test_a_job_that_nobody_has_come_for_yet_may_wait_in_line() -> None:
    line = InLine()
    line.passes(2 * SILENT_S)
    assert line.state() is Job.QUEUED


def test_who_waits_in_line_and_is_silent_without_hanging_up_is_given_up_in_the_end() -> None:
    line = InLine()
    line.attach()
    line.there = False
    line.passes(SILENT_S - 1.0)
    assert line.state() is Job.QUEUED
    line.passes(LOOK_S + 2.0)
    assert line.ended.startswith("its script waited for a place, and has shown no life for 60")


@pytest.mark.parametrize("restarts", ["never", "meanwhile", "later"])
def test_who_is_told_to_go_elsewhere_hangs_up_and_is_not_given_up_for_that(restarts: str) -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.controller.tell(line.now, ev.NodeLost("train-0"))
    assert line.state() is Job.STOPPING
    if restarts == "meanwhile":
        line.restart()
    line.leaves("Stopped: it is to end, or to go elsewhere", 1)
    line.hangs_up(1)
    if restarts == "later":
        line.restart()
    line.passes(SILENT_S)
    assert line.state() is Job.QUEUED


def test_who_says_goodbye_in_line_leaves_it_at_once() -> None:
    line = InLine()
    line.attach()
    for _ in range(2):  # once more where its answer was lost
        line.leaves("KeyboardInterrupt: ")
        assert line.ended == "its script ended while it waited for a place: KeyboardInterrupt: "


def test_no_goodbye_ends_a_job_that_is_to_be_launched() -> None:
    line = InLine(command=("python",))
    line.leaves("KeyboardInterrupt: ")
    assert line.state() is Job.QUEUED


def test_one_process_that_says_goodbye_in_line_ends_the_job_for_all() -> None:
    line = InLine(processes=2)
    line.attach("one", 0)
    line.attach("other", 1)
    line.leaves("KeyboardInterrupt: ", life="other", rank=1)
    with pytest.raises(IllegalEvent, match="it waited for a place: KeyboardInterrupt"):
        line.attach("one", 0)


def test_an_earlier_life_of_the_script_says_goodbye_for_itself_alone() -> None:
    line = InLine()
    line.attach("one")
    line.attach("two")
    line.leaves("KeyboardInterrupt: ", life="one")
    assert line.state() is Job.QUEUED


def test_a_goodbye_counts_also_where_the_place_had_come_and_was_not_heard_of() -> None:
    line = InLine()
    line.a_place_is_free()
    assert line.attach() == 1
    line.leaves("KeyboardInterrupt: ")
    assert (line.state(), line.attempt) == (Job.STARTING, 2)
    line.passes(SOON_S)
    assert line.ended.startswith("its script ended (KeyboardInterrupt: ) before its first lease")


def test_a_job_with_work_behind_it_outlives_a_goodbye_in_line() -> None:
    line = InLine()
    line.a_place_is_free()
    line.attach()
    line.asks()
    line.controller.tell(line.now, ev.NodeLost("train-0"))
    line.leaves("Stopped: it is to go elsewhere", 1)
    assert line.state() is Job.QUEUED
    line.attach("two")
    line.leaves("KeyboardInterrupt: ", life="two")
    line.passes(2 * SILENT_S)
    assert line.state() is Job.QUEUED, line.ended


# -- sockets and processes -------------------------------------------------------------------------------------------


def test_nothing_is_done_in_the_name_of_who_has_hung_up(tmp_path: Path) -> None:
    """Its call is parked, and would begin the job as soon as there is a place."""
    with served(tmp_path, PAIR) as there:
        assert there.attached("busy") == 1
        there.post("/v1/jobs", described("a", slo=1.0))
        body = b'{"instance":"one","wait_s":30}'
        head = f"POST /v1/jobs/a/attach HTTP/1.1\r\nhost: there\r\nauthorization: Bearer {there.admin}\r\n"
        parked = there.service.host
        with socket.create_connection(("127.0.0.1", int(there.service.url.rsplit(":")[-1]))) as line:
            line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: parked.parked == 1)
        until(lambda: parked.parked == 0, 10.0)
        there.post("/v1/jobs/busy/leave", {"attempt": 1})
        assert there.get("/v1/jobs/a")["state"] == "starting"
        until(lambda: "hung up" in there.get("/v1/jobs/a")["reason"])


WAITS = """
import sys, rollmux
phase = {"nodes": 1, "duration_s": 5}
job = {"name": sys.argv[1], "slo": 1.0, "iterations": 1, "rollout": phase, "train": phase}
with rollmux.connect(job=job):
    sys.stdin.read()
"""


def test_real_scripts_that_are_killed_before_their_first_lease_hold_nobody_up(tmp_path: Path) -> None:
    with running(tmp_path / "controller", "--lease-s", "2", "--drain-s", "0.5") as there:
        scripts = {name: _script(there, name, state) for name, state in [("a", "running"), *_QUEUED]}
        try:
            scripts["c"].send_signal(signal.SIGINT)
            _, error = scripts["c"].communicate(timeout=30)
            assert error.rstrip().endswith("KeyboardInterrupt")
            assert _job(there, "c")["reason"].startswith("its script ended while it waited for a place: Keyboard")
            for name in ("b", "a"):
                scripts[name].kill()
            until(lambda: _job(there, "d")["state"] == "running", 30.0, lambda: str(_job(there, "d")))
            for name in ("b", "a"):
                assert "its script hung up before its first lease" in _job(there, name)["reason"]
            scripts["d"].communicate("", timeout=30)
            assert _job(there, "d")["reason"] == "finished"
        finally:
            for script in scripts.values():
                script.kill()
                script.communicate()


_QUEUED = [(name, "queued") for name in "bcd"]


def _script(there: Running, name: str, state: str) -> "subprocess.Popen[str]":
    """A script that waits: in line, or before its first phase."""
    script = subprocess.Popen(
        [sys.executable, "-c", WAITS, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_env(ROLLMUX_URL=there.url, ROLLMUX_TOKEN=there.token),
    )
    until(lambda: _job(there, name).get("state") == state, 30.0, lambda: str(_job(there, name)))
    until(lambda: _waits(there, name), 30.0)
    return script


def _waits(there: Running, name: str) -> bool:
    """Whether one of its calls is parked: that it was submitted says nothing of that."""
    lines = there.call("GET", "/metrics").text.splitlines()
    (parked,) = [float(line.split()[-1]) for line in lines if line.startswith("rollmux_parked_calls ")]
    return parked > "abcd".index(name)


def _job(there: Running, name: str) -> Any:
    return there.call("GET", f"/v1/jobs/{name}").json()
