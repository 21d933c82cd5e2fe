"""Jobs whose processes nobody watches: who leaves, gives up, was started again, or is never heard again."""

import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import Ask, Attach, Attached, Held, Leave, Listen, Report, Said
from rollmux.service import controller, live
from rollmux.service.controller import LOOK_S, Controller
from rollmux.service.live import SILENT_LEASES, SILENT_S
from rollmux.service.processes import ANOTHER_LIFE
from rollmux.service.recovery import recover
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import job as described
from tests.service.serving import served
from tests.service.world import CLUSTERS
from tests.waiting import until

ROLLOUT = PhaseKind.ROLLOUT
PHASE = PhaseSpec(20.0, 1)


class Alone:
    """One job of several ranks without a launcher, and a controller that can be started anew."""

    def __init__(
        self,
        processes: int = 2,
        lease_s: float = 15.0,
        nodes: int = 1,
        command: tuple[str, ...] = (),
        each: int = 1,
        **more: Any,
    ) -> None:
        self.rules = Rules(timing=Timing(lease_s, 10.0), checks=Checks.ALL)
        self.journal, self.now = MemoryJournal(), 0.0
        self.controller = self._recovered()
        spec = JobSpec("a", PhaseSpec(20.0, nodes), PHASE, 8.0, **{"iterations": 2, "max_attempts": 3, **more})
        self.controller.submit(0.0, "team", Submission(spec, command, (), "", processes // each, each))
        for node, record in list(self.controller.machine.state.book.nodes.items()):
            self.controller.tell(0.0, ev.NodeJoined(node, record.pool))
        if command:
            self.controller.tell(0.0, ev.JobStarted("a", 1))
        self.processes = processes

    def _recovered(self) -> Controller:
        return recover(self.journal, CLUSTERS[0], RollmuxPolicy(), self.rules)[0]

    def restart(self) -> None:
        self.journal.append(self.controller.take()[0])
        self.controller = self._recovered()

    def state(self) -> Job:
        record = self.controller.machine.state.jobs.get("a")
        return Job.ENDED if record is None else record.state

    @property
    def ended(self) -> str:
        return self.controller.machine.state.ended.get("a", "")

    def attach_one(self, rank: int, life: str) -> Attached:
        call = Attach(f"{life}-{rank}", rank, self.processes)
        return self.controller.processes.attach(self.now, "a", call)

    def attach(self, life: str = "one") -> list[Attached]:
        return [self.attach_one(rank, life) for rank in range(self.processes)]

    def ask(self, rank: int = 0, attempt: int = 1, kind: PhaseKind = ROLLOUT) -> Held:
        lease = self.controller.processes.ask(self.now, "a", Ask(attempt, kind, 0, rank)).lease
        assert lease is not None
        return lease

    def say(self, said: Said, epoch: int, rank: int, reason: str = "") -> None:
        self.controller.processes.report(self.now, "a", Report(said, epoch, rank, reason=reason))

    def leave(self, rank: int | None, failed: str = "", attempt: int = 1) -> None:
        self.controller.processes.leave(self.now, "a", Leave(attempt, failed, rank))

    def passes(self, seconds: float, *alive: int, epochs: tuple[int, ...] = ()) -> None:
        """Time, in which these ranks listen every now and then."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            for rank in alive:
                record = self.controller.machine.state.jobs.get("a")
                if record is not None:
                    self.controller.processes.listen(self.now, "a", Listen(record.attempt, epochs, rank))
            self.controller.tick(self.now)


def test_a_job_has_finished_when_its_last_rank_has_left() -> None:
    job = Alone(3)
    job.attach()
    for rank in (2, 0, 0, 2):
        job.leave(rank)
        assert job.state() is Job.RUNNING
    job.leave(1)
    assert job.ended == "finished"


@pytest.mark.parametrize("command", [(), ("python",)], ids=["by hand", "launched"])
def test_of_a_job_that_is_over_its_processes_are_forgotten(command: tuple[str, ...]) -> None:
    """There may have been thousands, and the job itself is remembered for months."""
    job = Alone(3, command=command)
    job.attach()
    job.leave(0)
    live = job.controller.live("a")
    known = live.instances, live.heard, live.left
    assert all(known)
    job.controller.tell(1.0, ev.JobFinished("a", 1))
    assert not any(known)
    for late in (0, 1):
        job.leave(late)
    assert not any(known)


def test_words_about_leases_that_there_have_never_been_are_not_kept() -> None:
    job = Alone(2)
    job.attach()
    for epoch in range(100, 110):
        with pytest.raises(IllegalEvent, match="which was never granted"):
            job.say(Said.FINISHED, epoch, 0)
    assert not job.controller.live("a").said


def test_a_phase_is_done_when_all_ranks_below_all_processes_are_also_for_a_new_controller() -> None:
    job = Alone(4, command=("torchrun",), each=2)
    job.attach()
    epoch = job.ask(0).epoch
    for rank in (0, 2):
        job.say(Said.FINISHED, epoch, rank)
    job.restart()
    for rank in (3, 0, 2):
        job.say(Said.FINISHED, epoch, rank)
        assert job.controller.machine.state.jobs["a"].progress.rolled == 0
    job.say(Said.FINISHED, epoch, 1)
    assert job.controller.machine.state.jobs["a"].progress.rolled == 1
    with pytest.raises(IllegalEvent, match="rank 4"):
        job.leave(4)


def test_an_older_client_that_knows_of_no_ranks_below_its_process_is_refused() -> None:
    job = Alone(4, command=("torchrun",), each=2)
    with pytest.raises(IllegalEvent, match="job a was submitted with 4 processes, this one says 2"):
        job.controller.processes.attach(0.0, "a", Attach("old", 1, 2))


def test_who_leaves_without_a_rank_speaks_for_all_as_older_clients_do() -> None:
    job = Alone(3)
    job.attach()
    job.leave(None)
    assert job.ended == "finished"


def test_who_leaves_late_ends_nobody_else() -> None:
    job = Alone()
    job.attach()
    job.leave(None, "ValueError: nan")
    job.attach("two")
    job.leave(None, "ValueError: nan")  # once more: its answer was lost
    assert job.state() is Job.RUNNING
    for _ in range(2):
        job.leave(None, attempt=2)
        assert job.ended == "finished"


def test_who_is_late_by_more_than_one_attempt_is_not_told_why_another_one_ended() -> None:
    job = Alone(1)
    for attempt, why in enumerate(("ValueError: nan", "OSError: no space"), 1):
        job.attach(f"life {attempt}")
        job.leave(0, why, attempt)
    told = [job.controller.processes.listen(job.now, "a", Listen(attempt)).stop for attempt in (1, 2)]
    assert told == ["attempt 1 is over", "attempt 2 is over (OSError: no space)"]


def test_a_rank_that_fails_ends_the_attempt_once_the_others_have_heard_of_it_and_left() -> None:
    job = Alone()
    job.attach()
    lease = job.ask(1)
    seen = job.controller.processes.orders("a").version
    job.leave(0, "ValueError: nan")
    told = job.controller.processes.listen(job.now, "a", Listen(1, (lease.epoch,), 1, seen=seen))
    assert (told.stop, told.version > seen) == ("ValueError: nan", True)
    assert job.state() is Job.RUNNING  # rank 1 may still be at work
    job.leave(1, "Stopped: ValueError: nan")
    assert job.state() is Job.STARTING
    assert [each.attempt for each in job.attach("two")] == [2, 2]
    assert job.controller.processes.orders("a").stop == ""


def test_a_rank_that_fails_does_not_wait_long_for_one_that_hangs() -> None:
    job = Alone()
    job.attach()
    job.leave(0, "ValueError: nan")
    job.passes(24.0)
    assert job.state() is Job.RUNNING
    job.passes(2.0)
    assert job.state() is Job.STARTING


def test_a_sign_of_life_takes_no_more_work_the_more_processes_a_job_has() -> None:
    def steps(processes: int) -> int:
        job, found = Alone(processes), list[str]()
        job.attach()
        sys.setprofile(lambda _, event, of: found.append(event))
        try:
            job.controller.processes.listen(1.0, "a", Listen(1))
        finally:
            sys.setprofile(None)
        return len(found)

    assert steps(4) == steps(100)


@pytest.mark.parametrize("again", [False, True])
def test_a_call_is_one_sign_of_life_however_often_it_is_looked_at(again: bool) -> None:
    job = Alone()
    job.attach()
    lease = job.ask()
    for _ in range(35):
        job.now += 1.0
        job.controller.processes.listen(job.now, "a", Listen(1, (lease.epoch,), 0))
        job.controller.processes.listen(job.now, "a", Listen(1, (lease.epoch,), 1), again)
        job.controller.tick(job.now)
    (held,) = job.controller.processes.orders("a").held
    assert held.state == ("fenced" if again else "granted")


def test_the_others_hear_that_a_rank_has_given_a_phase_up() -> None:
    job = Alone()
    job.attach()
    lease = job.ask(0)
    assert job.ask(1) == lease
    seen = job.controller.processes.orders("a").version
    job.controller.take()
    job.say(Said.FAILED, lease.epoch, 1, "RuntimeError: out of memory")
    assert job.controller.take()[2] == {"a"}  # parked calls are looked at anew
    told = job.controller.processes.listen(job.now, "a", Listen(1, (lease.epoch,), 0, seen=seen))
    assert told.version != seen
    assert told.held[0].given_up == "process 1 of the job has given it up: RuntimeError: out of memory"
    job.say(Said.FINISHED, lease.epoch, 0)
    (held,) = job.controller.processes.orders("a").held
    assert (held.epoch, held.keep) == (lease.epoch, True), "its state may be there yet"
    job.say(Said.OFFLOADED, lease.epoch, 0)
    job.say(Said.FINISHED, lease.epoch, 0)  # late
    again = job.ask(1)
    assert (again.epoch > lease.epoch, again.given_up) == (True, "")
    assert job.controller.machine.state.jobs["a"].progress.rolled == 0


def test_finished_says_of_a_lease_that_is_over_only_with_a_word_more_that_the_nodes_are_free() -> None:
    """It may have been said before its holder knew, and come late: its state lies there yet."""
    job = Alone(1)
    job.attach()
    lease = job.ask()
    assert lease.keep
    job.passes(16.0)
    late = Report(Said.FINISHED, lease.epoch, left=False)
    assert not job.controller.processes.report(job.now, "a", late).holds
    with pytest.raises(IllegalEvent, match="has lost its lease"):
        job.controller.processes.ask(job.now, "a", Ask(1, ROLLOUT, 0, 0, (lease.epoch,)))
    (held,) = job.controller.processes.orders("a").held
    assert held.state == "fenced"
    job.say(Said.OFFLOADED, lease.epoch, 0)
    lease = job.ask()
    job.passes(16.0)
    job.say(Said.FINISHED, lease.epoch, 0)  # as older clients say it, once they are off
    assert job.controller.processes.orders("a").held == ()
    assert job.controller.machine.state.jobs["a"].progress.rolled == 0


def test_state_that_a_rank_moved_off_early_is_in_nobodys_way() -> None:
    job = Alone()
    job.attach()
    lease = job.ask(0)
    for rank in range(2):
        job.say(Said.FINISHED, lease.epoch, rank)
    job.say(Said.OFFLOADED, lease.epoch, 0)  # by an order that holds no more
    (held,) = job.controller.processes.orders("a").held
    assert held.state == "parked"
    assert job.ask(0, kind=PhaseKind.TRAIN) == job.ask(1, kind=PhaseKind.TRAIN)
    job.controller.submit(job.now, "team", Submission(JobSpec("b", PHASE, PHASE, 8.0, iterations=1)))
    job.controller.processes.attach(job.now, "b", Attach("b"))
    job.say(Said.OFFLOADED, lease.epoch, 0)
    assert job.ask(0, kind=PhaseKind.TRAIN) == job.ask(1, kind=PhaseKind.TRAIN), "rank 1 is on its way"
    job.say(Said.OFFLOADED, lease.epoch, 1)
    assert [held.kind for held in job.controller.processes.orders("a").held] == [PhaseKind.TRAIN]


@pytest.mark.parametrize("command", [(), ("python", "a.py")], ids=["attached", "launched"])
@pytest.mark.parametrize("wanted", [False, True], ids=["before", "after"])
def test_who_has_left_is_in_nobodys_way_when_others_want_the_nodes(command: tuple[str, ...], wanted: bool) -> None:
    job = Alone(command=command)
    job.attach()
    lease = job.ask(0)
    for rank in range(2):
        job.say(Said.FINISHED, lease.epoch, rank)
    if not wanted:
        job.leave(1)
    job.controller.submit(job.now, "team", Submission(JobSpec("b", PHASE, PHASE, 8.0, iterations=1)))
    job.controller.processes.attach(job.now, "b", Attach("b"))
    job.leave(1)
    (held,) = job.controller.processes.orders("a").held
    assert held.state == "offloading", "rank 0 has its state there"
    job.say(Said.OFFLOADED, lease.epoch, 0)
    assert job.controller.processes.orders("a").held == ()
    assert job.state() is Job.RUNNING


def test_who_has_shrunk_still_works_though_others_have_given_up() -> None:
    job = Alone(3, tail=Tail(10, 5, 10.0), nodes=2)
    other = JobSpec("b", PHASE, PHASE, 8.0, iterations=1)
    job.controller.submit(0.0, "team", Submission(other))
    job.controller.processes.attach(0.0, "b", Attach("b"))
    job.attach()
    lease = job.ask(0)
    assert {job.ask(rank) for rank in (1, 2)} == {lease}
    for rank in range(3):
        job.say(Said.STARTED, lease.epoch, rank)
    job.controller.processes.report(0.0, "a", Report(Said.PROGRESSED, lease.epoch, 0, 8, 10))
    assert job.controller.processes.ask(0.0, "b", Ask(1, ROLLOUT, 0)).lease is None
    (held,) = job.controller.processes.orders("a").held
    assert held.state == "shrinking"
    job.say(Said.FAILED, lease.epoch, 0)
    job.say(Said.FAILED, lease.epoch, 1)
    job.say(Said.SHRUNK, lease.epoch, 1)  # late: it works no more
    job.say(Said.SHRUNK, lease.epoch, 2)
    (held,) = job.controller.processes.orders("a").held
    assert (held.state, len(held.nodes)) == ("tail", 1)
    job.say(Said.FINISHED, lease.epoch, 2)
    assert job.controller.processes.orders("a").held == ()
    assert job.controller.machine.state.jobs["a"].progress.rolled == 0


def test_a_script_that_was_started_again_while_the_controller_was_away_begins_anew() -> None:
    job = Alone(1)
    job.attach()
    job.say(Said.FINISHED, job.ask().epoch, 0)
    job.restart()
    assert job.attach("two")[0].attempt == 2
    assert job.ask(attempt=2).iteration == 0


def test_ranks_that_attach_only_after_a_restart_join_the_attempt_that_there_is() -> None:
    job = Alone(2)
    assert job.controller.processes.attach(job.now, "a", Attach("one-0", 0, 2)).attempt == 1
    lease = job.ask(0)
    job.restart()
    assert job.controller.processes.attach(job.now, "a", Attach("one-1", 1, 2)).attempt == 1
    assert job.ask(1) == lease


def test_a_job_that_holds_nothing_and_is_never_heard_again_ends_once_nobody_has_started_it_again() -> None:
    job = Alone(max_attempts=3)
    job.attach()
    job.passes(2 * SILENT_S, 1)  # one of its processes is enough
    assert job.state() is Job.RUNNING
    job.passes(SILENT_S)
    assert job.state() is Job.RUNNING
    job.passes(LOOK_S + 2.0)
    assert job.state() is Job.STARTING
    job.passes(SILENT_S + LOOK_S + 2.0)  # nobody starts it again
    assert job.ended.startswith(
        "its script was not started again within 600 s: attempt 1 is over (none of its processes has shown life for 60"
    )


def test_a_job_that_nobody_starts_is_waited_for_once_and_the_controller_s_restart_counts_anew() -> None:
    job = Alone(max_attempts=3)
    job.passes(SILENT_S - LOOK_S)
    job.restart()
    job.passes(SILENT_S - LOOK_S)
    assert job.state() is Job.STARTING
    job.passes(2 * LOOK_S + 2.0)
    assert job.ended == "its script was not started within 600 s"


def test_a_job_of_which_some_processes_came_fails_its_attempts_one_by_one() -> None:
    """Their owner is at it: another attempt may do."""
    job = Alone(max_attempts=2)
    for attempt in (1, 2):
        assert (job.state(), job.controller.machine.state.jobs["a"].attempt) == (Job.STARTING, attempt)
        job.controller.processes.attach(job.now, "a", Attach(f"life-{attempt}", 0, 2))
        job.passes(SILENT_S + LOOK_S + 2.0)
    assert job.ended.startswith("failed 2 times, at last: none of its processes has shown life for 60")


def test_patience_is_counted_in_leases_where_they_are_long_and_anew_after_a_restart() -> None:
    job = Alone(lease_s=100.0)
    job.attach()
    epoch = job.ask().epoch
    job.say(Said.FINISHED, epoch, 0)
    job.say(Said.FINISHED, epoch, 1)
    job.passes(SILENT_LEASES * 100.0 - 5.0)
    assert job.state() is Job.RUNNING
    job.restart()
    job.passes(SILENT_LEASES * 100.0 - 5.0)
    assert job.state() is Job.RUNNING
    job.passes(LOOK_S + 10.0)
    assert job.state() is Job.STARTING


def test_a_job_with_nothing_left_to_do_that_is_never_heard_again_has_finished() -> None:
    job = Alone(1, iterations=1)
    job.attach()
    for kind in PhaseKind:
        lease = job.ask(kind=kind)
        job.say(Said.FINISHED, lease.epoch, 0)
    job.passes(SILENT_S + LOOK_S + 2.0)
    assert job.ended == "finished"


def test_a_rank_that_the_job_does_not_have_can_not_leave() -> None:
    job = Alone(2)
    job.attach()
    with pytest.raises(IllegalEvent, match="rank 2"):
        job.leave(2)


def test_the_real_controller_notices_the_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SILENT_S", 0.5)
    monkeypatch.setattr(live, "SILENT_LEASES", 0)
    monkeypatch.setattr(controller, "LOOK_S", 0.1)
    with served(tmp_path) as there:
        there.post("/v1/jobs", described("a", max_attempts=2))
        there.post("/v1/jobs/a/attach", {"instance": "one", "wait_s": 5.0})
        until(lambda: there.get("/v1/jobs/a")["state"] == "ended", 20.0)
        assert "none of its processes has shown life" in there.get("/v1/jobs/a")["reason"]


def test_what_an_earlier_life_of_the_script_says_late_counts_no_more() -> None:
    job = Alone()
    job.attach("one")
    epoch = job.ask().epoch
    job.restart()  # the controller knows no more who has attached
    assert [each.attempt for each in job.attach("two")] == [1, 1]
    assert job.ask().epoch == epoch, "the lease is the job's, whichever life of it works"
    for rank in range(2):
        late = Report(Said.FINISHED, epoch, rank, instance=f"one-{rank}")
        assert not job.controller.processes.report(job.now, "a", late).holds
    with pytest.raises(IllegalEvent, match="started again"):
        job.controller.processes.ask(job.now, "a", Ask(1, ROLLOUT, 0, 0, (epoch,), instance="one-0"))
    told = job.controller.processes.listen(job.now, "a", Listen(1, (epoch,), 0, (epoch,), instance="one-0"))
    assert (told.stop, told.held) == ("its script was started again", ())
    job.controller.processes.leave(job.now, "a", Leave(1, "it was killed", 0, "one-0"))
    assert job.state() is Job.RUNNING
    assert job.controller.processes.ask(job.now, "a", Ask(1, ROLLOUT, 0, 1, (), instance="two-1")).lease is not None


def test_what_one_rank_of_an_earlier_life_has_finished_the_next_life_has_not() -> None:
    job = Alone()
    job.attach("one")
    epoch = job.ask().epoch
    job.restart()
    job.say(Said.FINISHED, epoch, 0)  # of the earlier life: the new controller has not seen it attach
    job.attach("two")
    assert [job.ask(rank).epoch for rank in range(2)] == [epoch, epoch]
    job.say(Said.FINISHED, epoch, 1)
    assert job.controller.machine.state.jobs["a"].progress.rolled == 0, "rank 0 has not done it"
    job.say(Said.FINISHED, epoch, 0)
    assert job.controller.machine.state.jobs["a"].progress.rolled == 1


def test_when_a_process_was_started_again_the_nodes_stay_until_the_others_have_left() -> None:
    job = Alone(3)
    job.attach_one(0, "one")  # the only one of its life that got so far
    job.attach_one(1, "two")
    job.attach_one(2, "two")
    lease = job.ask(1)
    told = job.attach_one(0, "two")
    assert told.attempt == 0
    assert told.reason.startswith(ANOTHER_LIFE)
    assert job.attach_one(0, "two").attempt == 0, "a repeated call changes nothing"
    assert job.controller.processes.orders("a").stop == ANOTHER_LIFE
    assert [held.epoch for held in job.controller.processes.orders("a").held] == [lease.epoch]
    job.leave(1)
    assert job.state() is Job.RUNNING
    job.leave(2)
    assert job.state() is Job.STARTING
    assert job.attach_one(0, "two").attempt == 2


def test_the_last_process_that_was_started_again_begins_the_next_attempt() -> None:
    job = Alone(2)
    job.attach("one")
    lease = job.ask(0)
    assert job.attach_one(1, "two").attempt == 0
    assert job.attach_one(0, "two").attempt == 2
    assert job.attach_one(1, "two").attempt == 2
    assert job.ask(0, attempt=2).epoch > lease.epoch


def test_nobody_joins_an_attempt_that_ends() -> None:
    job = Alone(2)
    job.attach_one(0, "one")
    job.restart()
    job.leave(0, "it has failed")
    assert job.attach_one(1, "two").attempt == 2


def test_who_is_done_first_hears_at_once_that_the_last_is(tmp_path: Path) -> None:
    with served(tmp_path) as there:
        there.post("/v1/jobs", described("a", processes=2))
        for rank in range(2):
            there.post("/v1/jobs/a/attach", {"instance": f"{rank}", "rank": rank, "processes": 2, "wait_s": 5.0})

        def ask(wait_s: float) -> Any:
            return there.post("/v1/jobs/a/ask", {"attempt": 1, "kind": "rollout", "iteration": 0, "wait_s": wait_s})

        def done(rank: int) -> Any:
            return there.post("/v1/jobs/a/report", {"said": "finished", "epoch": epoch, "rank": rank})

        epoch = ask(5.0)["lease"]["epoch"]
        assert done(0) == {"holds": True, "committed": False}
        last = Timer(0.3, done, (1,))
        last.start()
        began = time.monotonic()
        assert ask(10.0)["done"]
        assert time.monotonic() - began < 5.0
        last.join()
