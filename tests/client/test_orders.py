"""What the controller wants in the middle of a phase, what a stopped job hears, and how several ranks make one job."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Barrier, Condition, Event, Thread
from threading import enumerate as enumerate_threads
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest

from rollmux.client import LeaseLost, Mux, Stopped, stint
from rollmux.client.orders import heed
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Report, Said
from tests.client.world import Crowd, Engine, Floor, World, job_data, soon


class Work:
    """A body of many small steps, which can stand still between them."""

    def __init__(self, mux: Mux) -> None:
        self.turn = Condition()
        self.stands = self.wanted = self.ended = False
        self.steps = 0
        self.calls: list[str] = []
        mux.runtime_hook("pause")(self.pause)
        mux.runtime_hook("resume")(self.resume)
        mux.runtime_hook("lost")(self.lost)

    def run(self, until: Callable[[], object]) -> None:
        while not until():
            with self.turn:
                self.stands = self.wanted
                self.turn.notify_all()
                self.turn.wait_for(lambda: not self.wanted, 5.0)
                self.stands = False
                assert not self.ended, "it goes on without a lease"
            self.steps += 1
            sleep(0.002)

    def pause(self) -> None:
        self.calls.append("pause")
        with self.turn:
            self.wanted = True
            assert self.turn.wait_for(lambda: self.stands, 5.0)

    def resume(self) -> None:
        self.calls.append("resume")
        with self.turn:
            self.wanted = False
            self.turn.notify_all()

    def lost(self, reason: str) -> None:
        self.calls.append("lost")
        with self.turn:
            self.ended, self.wanted = True, False
            self.turn.notify_all()


def long_job(**more: Any) -> dict[str, Any]:
    """Its phases are so long that the short job can't wait for their end."""
    rollout = {"nodes": 1, "duration_s": 500.0, "pause_s": 5.0}
    return job_data("long", rollout=rollout, train={**rollout, "duration_s": 100.0}, **more)


def short_job() -> dict[str, Any]:
    phase = {"nodes": 1, "duration_s": 40.0, "pause_s": 5.0}
    return job_data("short", slo=2.5, rollout=phase, train=phase)


@pytest.mark.parametrize("fate", ["", "lost", "unheard", "twice"])
def test_a_phase_pauses_for_a_more_urgent_job_and_goes_on_afterwards(fate: str) -> None:
    world, floor, engine, crowd = World(), Floor(), Engine(), Crowd()
    left = [fate]
    world.fate = lambda verb, message: (
        left.pop() if left and isinstance(message, Report) and message.said is Said.PAUSED else ""
    )
    short_done, begun = Event(), Event()
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:
        work = Work(mux)

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout", state=Engine()) as phase, floor.on(phase.nodes, "short"):
                assert not engine.here
                sleep(0.02)
            short_done.set()

        crowd.start(hurry)
        began = world.now
        with mux.phase("rollout", state=engine):
            begun.set()
            work.run(short_done.is_set)
            soon(lambda: work.calls == ["pause", "resume"])
            assert engine.here
            before = work.steps
            work.run(lambda: work.steps > before)
        mux_s = world.now - began
        crowd.join()
        assert world.record("long").progress.rolled == world.record("short").progress.rolled == 1
    assert engine.moves == ["load", "offload", "load", "offload"]
    assert mux.timings.last[PhaseKind.ROLLOUT].body_s < mux_s - 0.02  # it did not work while the other did


def test_a_job_without_a_hook_runs_on_to_the_end_of_its_phase() -> None:
    world, crowd, begun = World(), Crowd(), Event()
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout"):
                pass

        crowd.start(hurry)
        with mux.phase("rollout"):
            begun.set()
            sleep(0.05)
        crowd.join()
        assert world.record("long").progress.rolled == 1
    assert not world.said("long", Said.PAUSED)


def test_a_phase_that_ends_while_it_is_to_pause_simply_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stint, "HOOK_GRACE_S", 0.05)
    world, crowd, begun, hooked, resumed = World(), Crowd(), Event(), Event(), Event()
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:
        finished = Event()

        @mux.runtime_hook("pause")
        def pause() -> None:
            hooked.set()
            assert finished.wait(3.0)  # no safe point comes any more

        @mux.runtime_hook("resume")
        def resume() -> None:
            resumed.set()

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout"):
                pass

        crowd.start(hurry)
        with mux.phase("rollout"):
            begun.set()
            assert hooked.wait(3.0)
        finished.set()
        crowd.join()
        assert resumed.wait(3.0)
        assert world.record("long").progress.rolled == 1
    assert not world.said("long", Said.PAUSED)


def test_what_is_wanted_of_another_lease_than_the_present_one_is_nobodys_order() -> None:
    world, told = World(), list[str]()
    with world.connect(long_job()) as mux:
        mux.runtime_hook("pause")(lambda: told.append("pause"))
        with mux.phase("rollout"):
            assert mux._link is not None
            (rollout,) = mux._link.stints.values()
            assert rollout.lease is not None
            lease = replace(rollout.lease, state="pausing")
            heed(rollout, replace(lease, epoch=lease.epoch - 1))
            assert rollout.lease.epoch == lease.epoch
        heed(rollout, lease)  # the phase is over
        sleep(0.05)
    assert told == []


def test_work_that_raises_amid_a_hook_moves_its_state_off_when_that_is_done() -> None:
    world, crowd, engine, begun, hooked = World(), Crowd(), Engine(), Event(), Event()
    was_here = list[bool]()
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:

        @mux.runtime_hook("pause")
        def pause() -> None:
            hooked.set()
            sleep(0.3)
            was_here.append(engine.here)

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout", state=Engine()):
                pass

        crowd.start(hurry)
        with pytest.raises(KeyError, match="its own"), mux.phase("rollout", state=engine):  # noqa: PT012
            begun.set()
            assert hooked.wait(3.0)
            raise KeyError("its own")
        crowd.join()
    assert was_here == [True]


def test_a_job_that_is_cancelled_while_it_pauses_hears_that_its_work_is_lost() -> None:
    world, crowd, begun = World(), Crowd(), Event()
    with world.connect(short_job()) as other:

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout"):
                soon(lambda: world.said("long", Said.PAUSED))
                world.cancel("long")
                soon(lambda: "lost" in work.calls)

        mux = world.connect(long_job())
        work = Work(mux)
        crowd.start(hurry)

        def roll() -> None:
            with mux, mux.phase("rollout", state=Engine()):
                begun.set()
                work.run(lambda: False)

        with pytest.raises(Stopped):
            roll()
        crowd.join()
    assert work.calls == ["pause", "lost"]
    assert world.ended("long") == "cancelled"


def test_work_that_breaks_off_while_it_has_paused_does_not_wait_for_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    world, floor, engine, crowd = World(), Floor(), Engine(), Crowd()
    begun, broken_off = Event(), Event()
    with world.connect(long_job(), wait_s=10.0) as mux, world.connect(short_job()) as other:
        work = Work(mux)

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout", state=Engine()) as phase, floor.on(phase.nodes, "short"):
                assert not engine.here
                assert broken_off.wait(5.0)

        def roll() -> None:
            with mux.phase("rollout", state=engine):
                begun.set()
                work.run(lambda: work.wanted)
                with work.turn:
                    work.stands = True
                    work.turn.notify_all()
                soon(lambda: len(world.said("long", Said.PAUSED)) > 1)  # its next call is parked for ten seconds
                raise KeyError("its own")

        crowd.start(hurry)
        with pytest.raises(KeyError, match="its own"):
            roll()
        broken_off.set()
        world.lives += 1  # what is parked is parked no more
        with mux.phase("rollout", state=engine) as phase, floor.on(phase.nodes, "long"):
            assert engine.here
        crowd.join()
        assert world.record("long").progress.rolled == world.record("short").progress.rolled == 1
    assert work.calls == ["pause"]
    assert "could not do" not in caplog.text


def test_work_that_is_lost_while_it_is_asked_to_pause_does_not_go_on_under_another_lease() -> None:
    """It has heard that it does not count: it would have been committed half done."""
    world, crowd, begun, resumed = World(lease_s=0.6, drain_s=5.0), Crowd(), Event(), Event()
    lost = list[str]()
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:
        rollout = mux.phase("rollout", state=Engine())

        @mux.runtime_hook("pause")
        def pause() -> None:
            world.fate = lambda verb, message: "lost"
            sleep(0.8)
            world.fate = lambda verb, message: ""
            soon(lambda: rollout.lost)

        def hurry() -> None:
            assert begun.wait(3.0)
            while world.record("short").progress.rolled == 0:
                with suppress(LeaseLost), other.phase("rollout", state=Engine()):
                    sleep(0.02)

        def roll() -> None:
            with rollout:
                begun.set()
                assert resumed.wait(10.0)
                assert rollout.lost

        mux.runtime_hook("resume")(resumed.set)
        mux.runtime_hook("lost")(lost.append)
        crowd.start(hurry)
        with pytest.raises(LeaseLost):
            roll()
        assert world.record("long").progress.rolled == 0
        crowd.join()
    soon(lambda: lost)
    assert len(lost) == 1


WIDE = {"nodes": 2, "duration_s": 50.0}
TAIL = {"requests": 10, "requests_per_node": 10, "bulk_s": 30.0}


def test_a_tail_moves_together_and_a_rollout_that_began_beside_it_grows() -> None:
    world, crowd = World(rollout=2), Crowd()
    shrunk: list[Any] = []
    extended: list[Any] = []
    wide_over, grown = Event(), Event()
    first, second = job_data("first", rollout=WIDE, tail=TAIL), job_data("second", rollout=WIDE, elastic_rollout=True)
    with world.connect(first) as mux, world.connect(second) as other:

        @mux.runtime_hook("shrink")
        def shrink(keep: tuple[str, ...], free: tuple[str, ...]) -> None:
            shrunk.append((keep, free))

        @other.runtime_hook("extend")
        def extend(nodes: tuple[str, ...], added: tuple[str, ...]) -> None:
            extended.append((nodes, added))
            grown.set()

        def follow() -> None:
            with other.phase("rollout") as phase:
                assert len(phase.nodes) == 1
                wide_over.set()
                assert grown.wait(3.0)
                assert len(phase.nodes) == 2

        with mux.phase("rollout") as phase:
            assert len(phase.nodes) == 2
            crowd.start(follow)
            mux.progress(4, 10)
            mux.progress(9, 10)
            assert wide_over.wait(3.0)
            soon(lambda: len(phase.nodes) == 1)
            (keep, free) = shrunk[0]
            assert phase.nodes == keep
        crowd.join()
        assert world.record("first").progress.rolled == world.record("second").progress.rolled == 1
    ((nodes, added),) = extended
    assert (set(nodes), set(added)) == ({*keep, *free}, set(keep))
    assert len(shrunk) == 1


@pytest.mark.parametrize("is_over", [False, True], ids=["at work", "over meanwhile"])
def test_orders_that_come_together_are_carried_out_one_after_another_while_there_is_work(
    is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout gets its last node as its tail is to leave one: work came to the node that it had said to be free."""
    monkeypatch.setattr(stint, "HOOK_GRACE_S", 0.05)
    world, crowd = World(rollout=2), Crowd()
    ripe, told, shrunk, over = Event(), Event(), Event(), Event()
    done: list[str] = []
    wide = {"rollout": WIDE, "elastic_rollout": True, "tail": TAIL, "slo": 9.0}
    with (
        world.connect(job_data("first", **wide)) as one,
        world.connect(job_data("second", **wide)) as two,
        world.connect(job_data("third", **wide)) as three,
    ):
        one.runtime_hook("shrink")(lambda keep, free: None)

        @two.runtime_hook("extend")
        def extend(nodes: tuple[str, ...], added: tuple[str, ...]) -> None:
            told.set()
            over.wait(3.0 if is_over else 0.05)
            done.append("extend")

        @two.runtime_hook("shrink")
        def shrink(keep: tuple[str, ...], free: tuple[str, ...]) -> None:
            done.append("shrink")
            shrunk.set()

        def follow() -> None:
            with two.phase("rollout"):
                two.progress(9, 10)
                soon(lambda: world.said("second", Said.PROGRESSED))
                ripe.set()
                assert (told if is_over else shrunk).wait(3.0)
            over.set()

        def wait() -> None:
            with three.phase("rollout"):
                pass

        with one.phase("rollout"):
            crowd.start(follow)
            one.progress(9, 10)
            assert ripe.wait(3.0)
            crowd.start(wait)
            soon(lambda: any(job == "third" and verb == "ask" for job, verb, _ in list(world.heard)))
        crowd.join()
        soon(lambda: not any(thread.name in ("rollmux-extend", "rollmux-shrink") for thread in enumerate_threads()))
    assert done == (["extend"] if is_over else ["extend", "shrink"])


def held_by(world: World, job: str) -> tuple[str, ...]:
    (weave,) = world.machine.state.weaves.values()
    return weave.seats[job].lanes[PhaseKind.ROLLOUT].held


def test_an_order_for_which_no_thread_could_be_started_is_carried_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world, crowd, begun, short_done = World(lease_s=0.6), Crowd(), Event(), Event()
    refused, start = [""], Thread.start

    def scarce(thread: Thread) -> None:
        if thread.name == "rollmux-pause" and refused:
            refused.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", scarce)
    with world.connect(long_job()) as mux, world.connect(short_job()) as other:
        work = Work(mux)

        def hurry() -> None:
            assert begun.wait(3.0)
            with other.phase("rollout"):
                short_done.set()

        crowd.start(hurry)
        with mux.phase("rollout"):
            begun.set()
            work.run(short_done.is_set)
            soon(lambda: work.calls == ["pause", "resume"])
        crowd.join()
        assert not refused
        assert world.record("long").progress.rolled == 1


def test_nodes_that_come_while_the_state_is_moved_in_are_told_once_the_work_has_begun() -> None:
    world, crowd = World(rollout=2, lease_s=0.6), Crowd()
    waits, loading, extended = Event(), Event(), Event()

    class Slow(Engine):
        def load(self) -> None:
            loading.set()
            soon(lambda: len(held_by(world, "second")) == 2)
            sleep(0.3)  # it is told of them, and can't do anything about it yet
            super().load()

    first, second = job_data("first", rollout=WIDE, tail=TAIL), job_data("second", rollout=WIDE, elastic_rollout=True)
    with world.connect(first) as mux, world.connect(second) as other:
        mux.runtime_hook("shrink")(lambda keep, free: None)
        other.runtime_hook("extend")(lambda nodes, added: extended.set())

        def follow() -> None:
            waits.set()
            with other.phase("rollout", state=Slow()) as phase:
                assert extended.wait(3.0)
                assert len(phase.nodes) == 2

        with mux.phase("rollout"):
            crowd.start(follow)
            assert waits.wait(3.0)
            mux.progress(9, 10)
            assert loading.wait(3.0)
        crowd.join()


def test_progress_is_passed_on_now_and_then_and_at_last_and_never_fails() -> None:
    world = World()
    with world.connect(job_data("a")) as mux:
        mux.progress(1, 2)  # outside of a rollout
        with mux.phase("rollout"):
            for done in range(1001):
                mux.progress(done, 1000)
            mux.progress(5, 0)
            soon(lambda: [report.done for report in world.said("a", Said.PROGRESSED)][-1:] == [1000])
        world.fate = lambda verb, message: "503" if verb == "report" and message.said is Said.PROGRESSED else ""
    assert len(world.said("a", Said.PROGRESSED)) <= 3


def test_progress_may_be_counted_by_others_numbers_and_what_is_no_number_is_no_progress() -> None:
    world = World()
    with world.connect(job_data("a")) as mux, mux.phase("rollout"):
        mux.progress(None, "many")  # type: ignore[arg-type]
        mux.progress(np.int64(3), np.int64(4))  # type: ignore[arg-type]
        soon(lambda: [report.done for report in world.said("a", Said.PROGRESSED)] == [3])
        mux.progress(4, 4)
        soon(lambda: [report.done for report in world.said("a", Said.PROGRESSED)] == [3, 4])


# -- jobs that are to end ------------------------------------------------------------------------------------------


def test_a_job_that_is_to_end_hears_it_when_it_asks_and_leaves_its_nodes_to_others() -> None:
    world = World()
    mux = world.connect(job_data("a"))

    def script() -> None:
        with mux:
            for _ in mux.steps(10):
                with mux.phase("rollout"):
                    pass
                world.cancel("a")
                with mux.phase("train"):
                    raise AssertionError("it was to end")

    with pytest.raises(Stopped):
        script()
    assert world.ended("a") == "cancelled"


def test_a_job_that_the_controller_no_longer_knows_hears_at_work_that_this_will_not_count() -> None:
    world, unknown, told = World(lease_s=0.6), Event(), list[str]()

    def way(request: httpx.Request) -> httpx.Response:
        if unknown.is_set():
            return httpx.Response(404, json={"error": "there is no job a", "problems": []})
        return world.handle(request)

    mux = world.connect(job_data("a"), transport=httpx.MockTransport(way))
    mux.runtime_hook("lost")(told.append)
    phase = mux.phase("rollout").__enter__()
    unknown.set()
    soon(lambda: told == ["there is no job a"])
    assert phase.lost == mux.stop_reason == "there is no job a"
    with pytest.raises(Stopped, match="there is no job a"):
        phase.__exit__(None, None, None)
    mux.close()


def test_a_job_that_waits_for_its_turn_hears_that_it_is_to_end() -> None:
    world, crowd = World(), Crowd()
    with world.connect(job_data("b")) as other:
        mux = world.connect(job_data("a"))

        def wait() -> None:
            with pytest.raises(Stopped), mux, mux.phase("rollout"):
                raise AssertionError("it has no lease")

        with other.phase("rollout"):
            crowd.start(wait)
            soon(lambda: [1 for job, verb, _ in list(world.heard) if (job, verb) == ("a", "ask")])
            world.cancel("a")
            crowd.join()
    assert world.ended("a") == "cancelled"


def test_what_a_job_does_after_it_was_told_to_end_does_not_count() -> None:
    world = World()
    mux = world.connect(job_data("a"))

    def script() -> None:
        with mux, mux.phase("rollout"):
            world.cancel("a")
            soon(lambda: mux.stop_reason)

    with pytest.raises(Stopped):
        script()
    assert world.ended("a") == "cancelled"


# -- several processes ---------------------------------------------------------------------------------------------


def two_ranks(world: World, name: str = "a") -> tuple[Mux, Mux]:
    first, second = (world.connect(job_data(name), rank=rank, processes=2) for rank in (0, 1))
    return first, second


def test_a_phase_is_done_when_all_ranks_are_and_each_step_counts_once() -> None:
    world, crowd, floor = World(), Crowd(), Floor()

    def work(mux: Mux, rank: int) -> None:
        with mux:
            for step in mux.steps(4):
                for kind in ("rollout", "train", "sync"):
                    with mux.phase(kind, state=Engine()):
                        sleep(0.01 * rank)
                    floor.done["a", kind, step] += 1

    for rank, mux in enumerate(two_ranks(world)):
        crowd.start(lambda mux=mux, rank=rank: work(mux, rank))  # type: ignore[misc]
    crowd.join()
    assert set(floor.done.values()) == {2}
    assert world.ended("a") == "finished"


def test_what_a_rank_has_finished_outlives_a_controller_that_forgets_it() -> None:
    world, crowd, first_done = World(), Crowd(), Event()
    first, second = two_ranks(world)

    def quick() -> None:
        with first.phase("rollout"):
            pass
        first_done.set()

    with second.phase("rollout"):
        crowd.start(quick)
        soon(lambda: world.said("a", Said.FINISHED))
        world.restart(0.02)
        assert not first_done.wait(0.05)
    crowd.join()
    assert world.record("a").progress.rolled == 1
    first.close()
    second.close()


def test_ranks_that_lose_their_lease_do_the_phase_again_together() -> None:
    """Each comes back before a lease is over: for a later one the others would do it once more."""
    world, crowd = World(lease_s=0.8, drain_s=5.0), Crowd()
    tries: list[int] = []
    both_in = Barrier(2)

    def work(mux: Mux, rank: int) -> None:
        while True:
            try:
                with mux.phase("rollout"):
                    tries.append(rank)
                    if tries.count(rank) == 1:
                        both_in.wait(3.0)
                        world.fate = lambda verb, message: "lost"
                        sleep(1.0)
                        both_in.wait(3.0)
                        world.fate = lambda verb, message: ""
            except LeaseLost:
                continue
            return

    both = two_ranks(world)
    for rank, mux in enumerate(both):
        crowd.start(lambda mux=mux, rank=rank: work(mux, rank))  # type: ignore[misc]
    crowd.join()
    assert sorted(tries) == [0, 0, 1, 1]
    assert world.record("a").progress.rolled == 1
    for mux in both:
        mux.close()


def test_a_rank_hears_at_once_that_another_has_given_the_phase_up() -> None:
    world, crowd, both_in, reasons = World(), Crowd(), Barrier(2), list[str]()
    first, second = two_ranks(world)
    broken = Event()

    @first.runtime_hook("lost")
    def stop(reason: str) -> None:
        reasons.append(reason)
        broken.set()

    @first.phase("rollout")
    def long_work() -> None:
        if not broken.is_set():
            both_in.wait(3.0)
            assert broken.wait(5.0)
            raise RuntimeError("broken off")

    @second.phase("rollout")
    def raises() -> None:
        if not broken.is_set():
            both_in.wait(3.0)
            raise ValueError("no reward")

    def twice(work: Callable[[], None], error: type[Exception]) -> None:
        with pytest.raises(error):
            work()
        work()

    crowd.start(lambda: twice(long_work, LeaseLost))
    crowd.start(lambda: twice(raises, ValueError))
    crowd.join()
    assert reasons == ["process 1 of the job has given it up: ValueError: no reward"]
    assert world.record("a").progress.rolled == 1
    first.close()
    assert world.ended("a") == ""
    second.close()
    assert world.ended("a") == "finished"


def test_state_that_stayed_leaves_nodes_whose_next_lease_another_process_has_lost() -> None:
    """It has not begun under that lease: once the lease is over others come."""
    world, crowd, engine, over = World(lease_s=0.4, drain_s=5.0), Crowd(), Engine(), Event()
    both = [world.connect(job_data("a", staleness=1), rank=rank, processes=2) for rank in (0, 1)]

    def roll() -> None:
        with both[0].phase("rollout", state=Engine()):
            pass
        with pytest.raises(Stopped):
            lose()

    def lose() -> None:
        with both[0].phase("rollout", state=Engine()):
            world.fate = lambda verb, message: "lost" if message.rank == 0 else ""
            assert over.wait(5.0)

    crowd.start(roll)
    with both[1].phase("rollout", state=engine):
        pass
    assert engine.here
    soon(lambda: not engine.here)
    assert [held.state for held in world.controller.processes.orders("a").held] == ["fenced"]
    world.cancel("a")
    world.fate = lambda verb, message: ""
    over.set()
    crowd.join()
    for mux in both:
        mux.close()


class SlowToLeave(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.leaves, self.may_leave = Event(), Event()

    def offload(self) -> None:
        self.leaves.set()
        assert self.may_leave.wait(5.0)
        super().offload()


def is_fenced(world: World, job: str) -> bool:
    """As time goes by at the controller."""
    with world.lock:
        world._pass(world.now)
    return any(held.state == "fenced" for held in world.controller.processes.orders(job).held)


@pytest.mark.parametrize("neighbours", [0, 1])
def test_state_that_stayed_leaves_before_the_next_lease_is_given_back_and_before_it_is_loaded_again(
    neighbours: int,
) -> None:
    """The answer that grants the next lease is lost, and so is all else, until that lease has run out."""
    world, crowd, engine, hears = World(lease_s=1.0, drain_s=5.0), Crowd(), SlowToLeave(), Event()
    first = world.connect(job_data("a", staleness=1))
    assert first._link is not None
    life, asked = first._link.instance, Event()

    def fate(verb: str, message: Any) -> str:
        if hears.is_set() or getattr(message, "instance", "") != life:
            return ""
        if verb == "ask" and not asked.is_set():
            asked.set()
            return "unheard"
        return "lost"

    def roll() -> None:
        with first.phase("rollout", state=engine):
            assert engine.here

    def meet(mux: Mux) -> None:
        with mux.phase("rollout", state=Engine()):
            assert not engine.here

    roll()
    assert engine.here
    world.fate = fate
    crowd.start(roll)
    soon(lambda: is_fenced(world, "a"))
    others = [world.connect(job_data("b")) for _ in range(neighbours)]
    for mux in others:
        crowd.start(lambda mux=mux: meet(mux))  # type: ignore[misc]
    hears.set()
    assert engine.leaves.wait(5.0)
    sleep(0.1)
    engine.may_leave.set()
    crowd.join()
    assert engine.moves[:3] == ["load", "offload", "load"]
    assert world.record("a").attempt == 1
    for mux in (first, *others):
        mux.close()


@pytest.mark.parametrize("silent", [True, False], ids=["by silence", "done and waiting for the other"])
def test_a_lease_that_another_process_has_lost_is_given_back_by_who_has_never_begun_under_it(silent: bool) -> None:
    """It is between two phases, for longer than state may take to leave: its job was ended as one that had not left."""
    world, crowd, lost = World(lease_s=0.3, drain_s=5.0), Crowd(), Event()
    both = two_ranks(world)

    def work(mux: Mux) -> None:
        while True:
            with suppress(LeaseLost), mux.phase("rollout", state=Engine()):
                if silent and not lost.is_set():
                    world.fate = lambda verb, message: "lost" if message.rank == 0 else ""
                    soon(lambda: is_fenced(world, "a"))
                    world.fate = lambda verb, message: ""
                    lost.set()
            if world.record("a").progress.rolled:
                return

    crowd.start(lambda: work(both[0]))
    soon(lambda: any(report.rank == 1 for report in world.said("a", Said.OFFLOADED)), 2.0)
    lost.set()
    crowd.start(lambda: work(both[1]))
    crowd.join()
    assert world.record("a").attempt == 1
    assert world.record("a").failures == 0
    for mux in both:
        mux.close()


@pytest.mark.parametrize("done", [1, 2])
def test_ranks_that_are_done_move_off_what_they_were_let_keep_where_others_are_to_pause(done: int) -> None:
    world, crowd, begun, told, short_done = World(), Crowd(), Event(), Event(), Event()
    data = long_job()
    both = [world.connect(data, rank=rank, processes=2) for rank in (0, 1)]
    work, engine = Work(both[0]), Engine()

    def roll() -> None:
        with both[0].phase("rollout", state=Engine()):
            begun.set()
            if done == 2:
                assert told.wait(3.0)
            else:
                work.run(short_done.is_set)

    def finish() -> None:
        with both[1].phase("rollout", state=engine):
            assert begun.wait(3.0)

    def hurry() -> None:
        with world.connect(short_job()) as other, other.phase("rollout"):
            assert not engine.here
            short_done.set()

    if done == 2:
        both[0].runtime_hook("pause")(told.set)
    crowd.start(roll)
    crowd.start(finish)
    soon(lambda: world.said("long", Said.FINISHED))
    assert engine.here  # nobody was pinned beside it when it began
    crowd.start(hurry)
    soon(short_done.is_set)
    crowd.join()
    assert world.record("long").progress.rolled == 1
    for mux in both:
        mux.close()


def test_ranks_pause_together_and_one_whose_work_was_done_has_nothing_left_to_do() -> None:
    world, crowd, begun, short_done = World(), Crowd(), Event(), Event()
    data = long_job()
    both = [world.connect(data, rank=rank, processes=2) for rank in (0, 1)]
    with world.connect(short_job()) as other:
        work = Work(both[0])

        def roll() -> None:
            with both[0].phase("rollout", state=Engine()):
                begun.set()
                work.run(short_done.is_set)

        def hurry() -> None:
            with other.phase("rollout"):
                assert world.said("long", Said.PAUSED)
            short_done.set()

        crowd.start(roll)
        with both[1].phase("rollout"):
            assert begun.wait(3.0)
            crowd.start(hurry)
            soon(lambda: world.said("long", Said.PAUSED))
            world.restart(0.02)  # which forgets that one of the two has paused
            assert not short_done.wait(0.05)
        crowd.join()
        assert work.calls == ["pause", "resume"]
        assert world.record("long").progress.rolled == 1
    for mux in both:
        mux.close()
