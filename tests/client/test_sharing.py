"""Jobs that share nodes by the controller's word, over a wire on which anything may get lost."""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import pytest

from rollmux.client import LeaseLost, Mux, Stopped, Unreachable
from rollmux.errors import RollmuxError
from rollmux.mux import Timing
from rollmux.mux.job import PhaseKind
from rollmux.mux.transitions import Job
from rollmux.protocol.messages import Ask, Listen, Report, Said
from tests.client.world import FOREVER_S, Crowd, Engine, Fate, Floor, World, job_data, soon

ROLLOUT = PhaseKind.ROLLOUT


def walk_all(world: World, names: str, iterations: int) -> Floor:
    """Jobs of these names, each in a thread, until all are done."""
    floor, crowd = Floor(), Crowd()

    def work(name: str) -> None:
        with world.connect(job_data(name)) as mux:
            floor.walk(mux, name, iterations)

    for name in names:
        crowd.start(lambda name=name: work(name))  # type: ignore[misc]
    crowd.join()
    return floor


def each_once(names: str, iterations: int) -> Counter[tuple[str, str, int]]:
    return Counter((name, kind, step) for name in names for kind in ("rollout", "train") for step in range(iterations))


def test_three_jobs_on_the_same_nodes_never_meet_and_do_each_step_once() -> None:
    world = World()
    floor = walk_all(world, "abc", 6)
    assert floor.done == each_once("abc", 6)
    assert {world.ended(name) for name in "abc"} == {"finished"}


def test_rollouts_that_roam_run_on_whichever_of_their_nodes_is_free() -> None:
    """The first job finds no other node and stays on its own. While it is there the others roll out one after the other
    on the second node; once it has left, both at the same time.
    """
    world, floor, crowd = World(rollout=2), Floor(), Crowd()
    rollout = {"nodes": 1, "duration_s": 100.0, "pause_s": 1.0}
    roaming = {"rollout": rollout, "train": {**rollout, "duration_s": 20.0}, "slo": 1.5, "rollout_spares": 1}
    seen: dict[str, list[str]] = {name: [] for name in "abc"}
    all_are_placed, others_have_rolled, both_roll = Barrier(3), Barrier(3), Barrier(2)

    def work(name: str) -> None:
        with world.connect(job_data(name, **roaming)) as mux:
            assert mux.roams == (len(mux.rollout_nodes) == 2)
            all_are_placed.wait(FOREVER_S)
            for step in mux.steps(3 if mux.roams else 1):
                with mux.phase("rollout", state=Engine()) as phase, floor.on(phase.nodes, name):
                    (node,) = phase.nodes
                    assert node in mux.rollout_nodes
                    seen[name].append(node)
                    if not mux.roams:
                        others_have_rolled.wait(FOREVER_S)
                    elif step == 1:
                        both_roll.wait(FOREVER_S)
                if mux.roams and step == 0:
                    others_have_rolled.wait(FOREVER_S)
                with mux.phase("train") as phase, floor.on(phase.nodes, name):
                    pass

    for name in "abc":
        crowd.start(lambda name=name: work(name))  # type: ignore[misc]
    crowd.join()
    (own,), *others = sorted(seen.values(), key=len)
    assert [nodes[0] for nodes in others] == ["rollout-1" if own == "rollout-0" else "rollout-0"] * 2
    assert {nodes[1] for nodes in others} == {"rollout-0", "rollout-1"}
    assert {world.ended(name) for name in "abc"} == {"finished"}


def faulty(seed: int) -> Fate:
    """One call in six meets with a fault."""
    lots = random.Random(seed)
    return lambda verb, message: (
        lots.choice(["lost", "unheard", "twice", "late", "503"]) if lots.random() < 1 / 6 else ""
    )


@pytest.mark.parametrize("seed", range(3))
def test_lost_repeated_and_late_calls_change_nothing(seed: int) -> None:
    world = World(lease_s=5.0)
    world.fate = faulty(seed)
    assert walk_all(world, "abc", 4).done == each_once("abc", 4)


def test_jobs_go_on_under_a_controller_that_is_started_anew_again_and_again() -> None:
    world, over = World(), Event()

    def restart() -> None:
        while not over.wait(0.15):
            world.restart(0.02)

    restarting = Thread(target=restart)
    restarting.start()
    try:
        assert walk_all(world, "abc", 4).done == each_once("abc", 4)
    finally:
        over.set()
        restarting.join()


@pytest.mark.parametrize("said", [Said.STARTED, Said.FINISHED])
@pytest.mark.parametrize("fate", ["lost", "unheard", "twice"])
def test_a_phase_counts_once_whatever_becomes_of_one_of_its_reports(said: Said, fate: str) -> None:
    world, left = World(), [fate]
    world.fate = lambda verb, message: (
        left.pop() if left and isinstance(message, Report) and message.said is said else ""
    )
    assert walk_all(world, "a", 2).done == each_once("a", 2)
    assert world.ended("a") == "finished"


def test_a_lease_that_came_with_a_lost_answer_is_kept_alive_until_it_is_asked_for_again() -> None:
    world, lost = World(lease_s=0.3, drain_s=0.1), Event()

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Ask) and not lost.is_set():
            lost.set()
            return "unheard"
        return "lost" if isinstance(message, Ask) and world.now < until else ""

    with world.connect(job_data("a")) as mux:
        until = world.now + 0.8  # far longer than a lease lasts
        world.fate = fate
        with mux.phase("rollout"):
            assert world.record("a").attempt == 1
    assert world.ended("a") == "finished"


def test_what_was_done_after_the_lease_had_expired_does_not_count_and_can_be_done_again() -> None:
    world, engine, reasons = World(lease_s=0.2, drain_s=5.0), Engine(), list[str]()
    lost = Event()
    with world.connect(job_data("a")) as mux:
        rollout = mux.phase("rollout", state=engine)

        @mux.runtime_hook("lost")
        def stop(reason: str) -> None:
            reasons.append(reason)
            lost.set()

        def roll_in_silence() -> None:
            with rollout:
                world.fate = lambda verb, message: "lost"
                sleep(0.3)
                world.fate = lambda verb, message: ""
                assert lost.wait(3.0)

        with pytest.raises(LeaseLost, match=r"rollout\(0\) of job a"):
            roll_in_silence()
        assert engine.moves == ["load", "offload"]
        sleep(0.3)  # the next lease, which came in passing, waits for the job to begin again
        with rollout:
            assert engine.moves == ["load", "offload", "load"]
            assert world.record("a").progress.rolled == 0
        assert world.record("a").progress.rolled == 1
        assert world.record("a").attempt == 1
    assert len(reasons) == 1


def test_work_that_breaks_off_because_its_lease_is_gone_raises_lease_lost() -> None:
    world = World(lease_s=0.2, drain_s=5.0)
    with world.connect(job_data("a")) as mux:
        rollout = mux.phase("rollout")

        def work() -> None:
            with rollout:
                world.fate = lambda verb, message: "lost"
                sleep(0.3)
                world.fate = lambda verb, message: ""
                soon(lambda: rollout.lost)
                raise KeyError("the engine was stopped")

        with pytest.raises(LeaseLost) as raised:
            work()
        assert isinstance(raised.value.__cause__, KeyError)
        with rollout:
            pass


def silent(world: World, for_s: float = 0.3) -> None:
    """Longer than a lease."""
    world.fate = lambda verb, message: "lost"
    sleep(for_s)
    world.fate = lambda verb, message: ""


class Slow(Engine):
    """State whose first arrival outlasts the lease, and ends when it is told to break off."""

    def __init__(self, world: World, raises: bool = False) -> None:
        super().__init__()
        self.world, self.raises = world, raises
        self.told = Event()

    def load(self) -> None:
        super().load()
        if self.moves == ["load"]:
            silent(self.world)
            assert self.told.wait(3.0)
            if self.raises:
                raise EOFError("it is not waited for any more")

    def break_off(self) -> None:
        assert self.here, "only what is on its way is told"
        self.told.set()


class Deaf(Engine):
    def break_off(self) -> None:
        raise KeyError("it does not know how")


@pytest.mark.parametrize("raises", [False, True])
def test_state_hears_that_its_lease_is_lost_while_it_is_moved_in(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever becomes of what came before it, and what comes after it is not begun."""
    world, lost = World(lease_s=0.2, drain_s=5.0), list[str]()
    deaf, slow, after = Deaf(), Slow(world, raises), Engine()
    with world.connect(job_data("a")) as mux:
        mux.runtime_hook("lost")(lost.append)
        rollout = mux.phase("rollout", state=[deaf, slow, after])
        if raises:
            with pytest.raises(LeaseLost, match="before it began") as raised:
                rollout.__enter__()
            assert isinstance(raised.value.__cause__, EOFError)
            assert slow.moves == ["load", "offload"]
        with rollout as phase:
            assert not phase.lost
        assert world.record("a").progress.rolled == 1
        assert world.record("a").attempt == 1
    assert deaf.moves == slow.moves == ["load", "offload"] * 2
    assert after.moves == ["load", "offload"]
    assert not lost  # there was no work yet that could have been
    assert "could not be told" in caplog.text


def test_state_that_is_told_late_of_a_lost_lease_is_told_before_the_next_one() -> None:
    class Distant(Engine):
        """It is there before it hears that it need not come."""

        def __init__(self) -> None:
            super().__init__()
            self.told = Event()

        def load(self) -> None:
            super().load()
            self.told.clear()
            if self.moves == ["load"]:
                silent(world)
                sleep(0.2)
            elif self.told.wait(1.0):
                raise EOFError("told to break off")

        def break_off(self) -> None:
            sleep(0.5)
            self.told.set()

    world, distant = World(lease_s=0.2, drain_s=5.0), Distant()
    with world.connect(job_data("a")) as mux, mux.phase("rollout", state=distant) as phase:
        assert not phase.lost
        assert distant.moves == ["load", "offload", "load"]


def test_who_is_told_while_it_arrives_that_another_process_gave_up_does_not_begin() -> None:
    world, crowd, arriving = World(lease_s=30.0, drain_s=5.0), Crowd(), Event()

    class Arriving(Slow):
        def load(self) -> None:
            Engine.load(self)
            arriving.set()
            assert self.moves != ["load"] or self.told.wait(3.0)

    def other() -> None:
        with world.connect(job_data("a"), rank=1, processes=2) as mux:
            rollout = mux.phase("rollout")
            with pytest.raises(KeyError):
                give_up(rollout)
            with rollout:
                pass

    def give_up(rollout: Any) -> None:
        with rollout:
            assert arriving.wait(3.0)
            raise KeyError("it is mine")

    crowd.start(other)
    state = Arriving(world)
    with world.connect(job_data("a"), rank=0, processes=2) as mux:
        with mux.phase("rollout", state=state) as phase:
            assert state.moves == ["load", "offload", "load"]
            assert not phase.lost
        crowd.join()
        assert world.record("a").progress.rolled == 1


def test_state_that_fails_as_it_is_moved_in_fails_the_phase_whoever_has_the_lease() -> None:
    world = World()
    with world.connect(job_data("a")) as mux:

        class Broken(Engine):
            def load(self) -> None:
                super().load()
                if len(self.moves) == 1:
                    raise EOFError("no such weights")

        rollout = mux.phase("rollout", state=Broken())
        with pytest.raises(EOFError):
            rollout.__enter__()
        with rollout:
            pass
        assert world.record("a").progress.rolled == 1


def test_a_lease_that_expired_before_its_holder_knew_of_it_is_given_back_and_asked_for_again() -> None:
    world = World(lease_s=0.15, drain_s=5.0)
    with world.connect(job_data("a")) as mux:
        lost = Event()

        def fate(verb: str, message: Any) -> str:
            if isinstance(message, Ask) and not lost.is_set():
                lost.set()
                return "unheard"
            return "lost" if lost.is_set() and world.now < until and isinstance(message, Ask | Listen) else ""

        until = world.now + 0.5
        world.fate = fate
        with mux.phase("rollout"):
            pass
        assert world.record("a").progress.rolled == 1
    assert {report.epoch for report in world.said("a", Said.OFFLOADED)} == {1}
    assert {report.epoch for report in world.said("a", Said.FINISHED)} == {2}


def test_state_stays_where_nobody_else_is_and_leaves_when_somebody_comes() -> None:
    world, engine = World(), Engine()
    with world.connect(job_data("a")) as mux:
        for _ in mux.steps(2):
            with mux.phase("rollout", state=engine):
                pass
            with mux.phase("train"):
                pass
        assert engine.moves == ["load"]
        with world.connect(job_data("b")) as other:
            soon(lambda: not engine.here)
            with other.phase("rollout"):
                pass
            with mux.phase("rollout", state=engine):
                assert engine.here
    assert engine.moves == ["load", "offload", "load", "offload"]


class Alike(Engine):
    """By what it is made of: like a dataclass, or like an array, which is neither equal nor unequal."""

    def __init__(self, compares: bool) -> None:
        super().__init__()
        self.compares = compares

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not self.compares:
            raise ValueError("The truth value of an array with more than one element is ambiguous")
        return isinstance(other, Alike)


@pytest.mark.parametrize("compares", [True, False])
def test_state_that_is_like_what_has_stayed_is_moved_in_all_the_same(compares: bool) -> None:
    world, states = World(), [Alike(compares), Alike(compares)]
    with world.connect(job_data("a")) as mux:
        for step in mux.steps(2):
            with mux.phase("rollout", state=states[step]):
                assert [state.here for state in states] == [step == 0, step == 1]
            with mux.phase("train"):
                pass


def test_who_takes_its_leave_leaves_no_state_behind() -> None:
    """Nobody sees the end of a script that no launcher started, and it may live on."""
    world, engine, here = World(), Engine(), list[bool]()

    def fate(verb: str, message: Any) -> str:
        here.extend([engine.here] if verb == "leave" else [])
        return ""

    world.fate = fate
    with world.connect(job_data("a")) as mux, mux.phase("rollout", state=engine):
        pass
    assert engine.moves == ["load", "offload"]
    assert here == [False]


def test_a_launched_process_that_has_done_its_part_makes_way_while_it_does_other_work() -> None:
    world, engine = World(lease_s=0.6, drain_s=0.6), Engine()
    with world.lock:
        world.submit(job_data("a", command=["python", "a.py"], iterations=1))
    with world.connect("a", attempt=1) as mux:
        with mux.phase("rollout", state=engine):
            pass
        with mux.phase("train"):
            pass
    assert engine.moves == ["load"]
    with world.connect(job_data("b")) as other:
        with other.phase("rollout"):
            assert engine.moves == ["load", "offload"]
        with other.phase("train"):
            pass
        sleep(1.5)
    assert (world.record("a").attempt, world.record("a").state) == (1, Job.RUNNING)
    world.connect("a", attempt=1)._at_exit()
    assert mux._link is not None
    soon(mux._link.wire.closing.is_set)  # another speaks for it


def test_a_launched_process_that_connects_again_leaves_nothing_that_nobody_speaks_for() -> None:
    world, engine = World(), Engine()
    with world.lock:
        world.submit(job_data("a", command=["python", "a.py"], iterations=2))
    for step in range(2):
        with world.connect("a", attempt=1) as mux:
            assert not engine.here
            with mux.phase("rollout", state=engine, iteration=step):
                pass
            with mux.phase("train"):
                pass
        assert engine.here
    again = world.connect("a", attempt=1)
    with world.connect(job_data("b")) as other, other.phase("rollout"):
        assert not engine.here
    again._at_exit()


def test_a_launched_process_that_ends_before_the_others_is_not_asked_to_make_way() -> None:
    world, engines, crowd = World(lease_s=0.6, drain_s=0.6), [Engine(), Engine()], Crowd()
    with world.lock:
        world.submit(job_data("a", command=["python", "a.py"], iterations=1, processes=2))
    ranks = [world.connect("a", attempt=1, rank=rank, processes=2) for rank in range(2)]

    def work(rank: int) -> None:
        with ranks[rank] as mux:
            for kind in ("rollout", "train"):
                with mux.phase(kind, state=engines[rank] if kind == "rollout" else None):
                    pass

    for rank in range(2):
        crowd.start(partial(work, rank))
    crowd.join()
    assert [engine.here for engine in engines] == [True, True]
    ranks[1]._at_exit()
    with world.connect(job_data("b")) as other, other.phase("rollout"):
        assert [engine.here for engine in engines] == [False, False]
    assert (world.record("a").attempt, world.record("a").state) == (1, Job.RUNNING)
    ranks[0]._at_exit()


class Lingering(Engine):
    """State that takes its time to leave."""

    def __init__(self, offload_s: float) -> None:
        super().__init__()
        self.offload_s, self.leaving = offload_s, Event()

    def offload(self) -> None:
        self.leaving.set()
        sleep(self.offload_s)
        super().offload()


def test_a_launched_process_that_ends_its_part_while_its_state_leaves_says_that_it_has_left() -> None:
    world, engine, crowd = World(lease_s=0.6, drain_s=0.6), Lingering(0.3), Crowd()
    with world.lock:
        world.submit(job_data("a", command=["python", "a.py"], iterations=1))

    def neighbour() -> None:
        with world.connect(job_data("b")) as other:
            with other.phase("rollout"):
                assert not engine.here
            with other.phase("train"):
                pass

    with world.connect("a", attempt=1) as mux:
        with mux.phase("rollout", state=engine):
            pass
        with mux.phase("train"):
            pass
        crowd.start(neighbour)
        link = mux._link
        assert link is not None
        soon(lambda: link.moving and not link.parked)
    crowd.join()
    assert (world.record("a").attempt, world.record("a").state) == (1, Job.RUNNING)
    mux._at_exit()


def test_a_phase_that_ends_while_its_process_takes_its_leave_leaves_no_state_behind() -> None:
    """In another thread, while the state of another kind is moved off."""
    world, engine, crowd, begun, leaving, here = World(), Engine(), Crowd(), Event(), Event(), list[bool]()

    class Slow(Engine):
        def offload(self) -> None:
            leaving.set()
            soon(lambda: len(world.said("a", Said.FINISHED)) == len(("rollout", "train", "sync", "rollout")))
            super().offload()

    def fate(verb: str, message: Any) -> str:
        here.extend([engine.here] if verb == "leave" else [])
        return ""

    def roll() -> None:
        with suppress(Unreachable), mux.phase("rollout", state=engine):  # the answer may come too late
            begun.set()
            assert leaving.wait(5.0)

    world.fate = fate
    mux = world.connect(job_data("a", staleness=1))
    with mux.phase("rollout"):
        pass
    with mux.phase("train", state=Slow()):
        pass
    crowd.start(roll)
    assert begun.wait(5.0)
    mux.close()
    crowd.join()
    assert here == [False]


def test_nobody_says_that_nodes_are_free_while_state_is_still_leaving_them() -> None:
    """It takes longer than the controller waits, so the lease is lost; its owner asks for the next one meanwhile."""
    world, engine, crowd, met = World(lease_s=5.0, drain_s=1.0), Lingering(1.5), Crowd(), list[bool]()

    def neighbour() -> None:
        with world.connect(job_data("b")) as other:
            with other.phase("rollout"):
                pass
            with other.phase("train"):
                met.append(engine.here)

    with world.connect(job_data("a")) as mux:
        for step in mux.steps(2):
            with mux.phase("rollout"):
                if step:
                    crowd.start(neighbour)
                    assert engine.leaving.wait(5.0)
                    sleep(1.1)
            with mux.phase("train", state=engine):
                assert engine.here
    crowd.join()
    assert met == [False]
    assert [world.ended(name) for name in "ab"] == ["finished"] * 2


def test_a_job_that_was_cut_off_moves_its_state_off_before_it_says_that_it_is_done() -> None:
    """It could stay when the phase began; by now somebody else waits, and the lease has run out."""
    world, engine, crowd, met = World(lease_s=1.5, drain_s=10.0), Lingering(0.5), Crowd(), list[bool]()

    def neighbour() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            met.append(engine.here)

    with world.connect(job_data("a")) as mux:
        assert mux._link is not None
        life = mux._link.instance
        with suppress(LeaseLost), mux.phase("rollout", state=engine):
            world.fate = lambda verb, message: "lost" if getattr(message, "instance", "") == life else ""
            crowd.start(neighbour)
            sleep(2.5)
            world.fate = lambda verb, message: ""
        assert engine.moves == ["load", "offload"]
    crowd.join()
    assert met == [False]


def test_a_word_that_came_too_late_frees_nothing_while_another_thread_moves_the_state_off() -> None:
    """The lease runs out while FINISHED is on its way: both threads hear of it, and one of them has the state."""
    world, engine, crowd, met = World(lease_s=1.0, drain_s=10.0), Lingering(1.5), Crowd(), list[bool]()

    def neighbour() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            met.append(engine.here)

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Report) and message.said is Said.FINISHED and not message.left:
            sleep(1.6)
        return ""

    with world.connect(job_data("a")) as mux:
        world.fate = fate
        with suppress(LeaseLost), mux.phase("rollout", state=engine):
            crowd.start(neighbour)
            sleep(0.3)
    crowd.join()
    assert engine.moves == ["load", "offload"]
    assert met == [False]


class Stuck(Engine):
    """State that does not leave."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def offload(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error", [RollmuxError("others hold 5 GB"), RuntimeError("out of memory")], ids=["ours", "its"]
)
@pytest.mark.parametrize("when", ["the work raises", "the work is done", "somebody comes"])
def test_nodes_that_state_could_not_leave_are_given_to_nobody_before_its_job_is_over(
    when: str, error: Exception
) -> None:
    """The lease runs out, the job is told to end, and only then does the next one begin."""
    world, engine, crowd, begun = World(lease_s=1.0, drain_s=1.0), Stuck(error), Crowd(), list[float]()

    def neighbour(other: Mux) -> None:
        with other, other.phase("rollout"):
            begun.append(world.now)

    with world.connect(job_data("a")) as mux:
        if when == "somebody comes":
            with mux.phase("rollout", state=engine):
                pass
            other = world.connect(job_data("b"))
            crowd.start(lambda: neighbour(other))
        else:
            other = world.connect(job_data("b"))
            with pytest.raises(type(error)), mux.phase("rollout", state=engine):  # noqa: PT012
                crowd.start(lambda: neighbour(other))
                sleep(0.1)
                if when == "the work raises":
                    raise ValueError("a bad prompt")
        left = world.now
        with pytest.raises(Stopped):  # noqa: PT012  it tries to go on
            if when == "somebody comes":
                with mux.phase("train"):
                    pass
            while True:
                with suppress(LeaseLost), mux.phase("rollout"):
                    pass
        assert engine.here
        assert not begun or begun[0] - left > 0.8
    crowd.join()
    assert begun
    assert world.said("a", Said.FAILED) == world.said("a", Said.OFFLOADED) == []


def test_a_body_that_raises_gives_its_nodes_back_and_the_job_may_try_again() -> None:
    world, engine = World(), Engine()
    with world.connect(job_data("a")) as mux:

        @mux.phase("rollout", state=engine)
        def rollout(good: bool) -> str:
            if not good:
                raise ValueError("a bad prompt")
            return "responses"

        with pytest.raises(ValueError, match="a bad prompt"):
            rollout(False)
        assert [report.reason for report in world.said("a", Said.FAILED)] == ["ValueError: a bad prompt"]
        assert not engine.here
        assert rollout(True) == "responses"
        assert world.record("a").progress.rolled == 1


@pytest.mark.parametrize("message", ["Missing key(s): " + "x" * 70_000, "no file caf\udce9"], ids=["long", "no text"])
def test_whatever_a_body_has_failed_with_others_get_its_nodes_and_it_is_what_the_job_hears(message: str) -> None:
    world = World()
    with world.connect(job_data("a")) as mux, world.connect(job_data("b")) as other:
        with pytest.raises(ValueError) as heard, mux.phase("rollout"):  # noqa: PT011  it is looked at below
            raise ValueError(message)
        assert str(heard.value) == message
        with other.phase("rollout"):
            pass
        assert len(world.said("a", Said.FAILED)[0].reason) <= 1000
        mux.close(message)
    assert "a" not in world.machine.state.jobs or world.record("a").attempt == 2


def test_a_job_that_can_not_say_that_it_has_begun_leaves_its_nodes_to_others() -> None:
    world, engine = World(lease_s=0.5, drain_s=0.5), Engine()
    with world.connect(job_data("a"), patience_s=0.2) as mux, world.connect(job_data("b")) as other:
        world.fate = lambda verb, message: "503" if verb == "report" and message.said is Said.STARTED else ""
        with pytest.raises(Unreachable), mux.phase("rollout", state=engine):
            pass
        world.fate = lambda verb, message: ""
        assert not engine.here
        with other.phase("rollout"):
            pass
        with mux.phase("rollout", state=engine):
            assert engine.here


def test_a_lease_time_that_has_changed_is_told_and_heeded() -> None:
    world = World(lease_s=4.0)
    with world.connect(job_data("a")) as mux, mux.phase("rollout"):
        link = mux._link
        assert link is not None
        world.machine.state.rules = replace(world.machine.state.rules, timing=Timing(0.5, 2.0))
        world.restart(0.0)
        listens = len(world.heard)
        soon(lambda: link.lease_s == 0.5)
        soon(lambda: len(world.heard) > listens + 3, 1.5)
    assert world.record("a").attempt == 1 if "a" in world.machine.state.jobs else world.ended("a") == "finished"


def test_the_owner_is_told_once_for_whom_the_job_waits(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    caplog.set_level("INFO", "rollmux")
    holding, crowd = Event(), Crowd()
    with world.connect(job_data("b"), wait_s=0.02) as other, world.connect(job_data("a"), wait_s=0.02) as mux:

        def hold() -> None:
            with other.phase("rollout"):
                holding.set()
                sleep(0.2)

        crowd.start(hold)
        assert holding.wait(3.0)
        with mux.phase("rollout"):
            pass
        crowd.join()
    said = [record.getMessage() for record in caplog.records if "waiting for nodes" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("waiting for nodes: waits for rollout(0) of job b (about ")
