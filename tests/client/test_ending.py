"""How a phase ends, and a script: nothing is on the nodes when they are said to be free, and each end is told once."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from threading import Event, Thread
from time import sleep
from typing import Any

import httpx
import pytest

import rollmux.client.stint
from rollmux.client import AlreadyCommitted, CallRefused, LeaseLost, Mux, Phase, Unreachable, attach
from rollmux.client.stint import Stint
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Ask, Attach, Leave, Report, Said
from tests.client.world import Crowd, Engine, World, job_data, soon


class Leaving(Engine):
    """State that leaves once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving, self.may_go = Event(), Event()

    def offload(self) -> None:
        self.leaving.set()
        assert self.may_go.wait(5.0)
        super().offload()

    def goes_soon(self) -> None:
        sleep(0.2)
        self.may_go.set()


async def given_up(work: Any, once: Callable[[], object]) -> None:
    """The task is cancelled as soon as this holds."""
    task = asyncio.create_task(work)
    while not once():
        await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_who_enters_a_phase_whose_end_was_given_up_waits_for_that_end() -> None:
    world, engine, bodies = World(), Leaving(), list[int]()

    async def work() -> None:
        async with mux.phase("rollout", state=engine) as phase:
            bodies.append(phase.epoch)

    async def try_again() -> None:
        await given_up(work(), engine.leaving.is_set)
        again = asyncio.create_task(work())
        await asyncio.sleep(0.1)
        engine.may_go.set()
        with pytest.raises(AlreadyCommitted):
            await again

    with world.connect(job_data("b")), world.connect(job_data("a")) as mux:  # a neighbour: no state stays
        asyncio.run(try_again())
        assert engine.moves == ["load", "offload"]
        assert len(bodies) == 1
        assert world.record("a").progress.rolled == 1


@pytest.mark.parametrize("later", [False, True], ids=["before it counts", "once it counts"])
def test_an_end_that_was_given_up_and_counts_is_heard_once_whenever_the_phase_is_entered_again(later: bool) -> None:
    world, saying, may_say = World(), Event(), Event()

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Report) and message.said is Said.FINISHED and message.epoch == 2:
            saying.set()
            assert may_say.wait(5.0)
        return ""

    async def work(kind: str) -> None:
        async with mux.phase(kind):
            pass

    async def try_again() -> None:
        await work("rollout")
        await given_up(work("train"), saying.is_set)
        if later:
            may_say.set()
            await asyncio.to_thread(soon, lambda: not link.stints)
        again = asyncio.create_task(work("train"))
        await asyncio.sleep(0.05)
        may_say.set()
        with pytest.raises(AlreadyCommitted, match=r"train\(0\) of job a is committed"):
            await again
        for _ in range(2):
            await work("rollout")
            await work("train")

    world.fate = fate
    with world.connect(job_data("a")) as mux:
        assert mux._link is not None
        link = mux._link
        asyncio.run(try_again())
    assert (world.ended("a"), mux.synced) == ("finished", 3)


def test_an_end_is_said_though_the_loop_ends_and_all_its_threads_are_busy() -> None:
    world, engine, begun = World(), Engine(), Event()

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            asyncio.get_running_loop().run_in_executor(None, sleep, 0.3)
            begun.set()

    async def fail() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        working = asyncio.create_task(work())
        while not begun.is_set():
            await asyncio.sleep(0.005)
        raise KeyError(working.get_name())

    with world.connect(job_data("b")), world.connect(job_data("a")) as mux:
        with pytest.raises(KeyError):
            asyncio.run(fail())
        soon(lambda: world.record("a").progress.rolled == 1)
        soon(lambda: not engine.here)


def test_a_lease_that_came_as_a_lost_phase_ended_goes_to_others_where_nobody_does_it_again() -> None:
    world, crowd, heals, begun = World(lease_s=0.3, drain_s=5.0), Crowd(), Event(), Event()

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Report) and message.said is Said.FINISHED:
            heals.set()
        return "" if heals.is_set() else "lost"

    def neighbour() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            begun.set()

    def work(mux: Mux) -> None:
        with mux.phase("rollout"):
            world.fate = fate
            sleep(0.5)

    with world.connect(job_data("a")) as mux:
        with pytest.raises(LeaseLost):
            work(mux)
        crowd.start(neighbour)
        soon(begun.is_set)
        crowd.join()
        assert world.record("a").attempt == 1
        with mux.phase("rollout"):
            pass


@pytest.mark.parametrize("said", [Said.FAILED, Said.FINISHED])
def test_a_lease_whose_end_was_said_and_not_heard_is_not_taken_again(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word may arrive at any time, and would free the nodes amid the work."""
    world, late, away = World(lease_s=15.0), list[httpx.Request](), Event()
    monkeypatch.setattr(rollmux.client.stint, "FAIL_PATIENCE_S", 0.2)

    def way(request: httpx.Request) -> httpx.Response:
        if away.is_set():
            late.extend([request] if b"epoch" in request.content and b"said" in request.content else [])
            raise httpx.ReadTimeout("no answer")
        return world.handle(request)

    def work(mux: Mux) -> None:
        with mux.phase("rollout"):
            away.set()
            if said is Said.FAILED:
                raise KeyError("a bad prompt")

    with (
        world.connect(job_data("b")),
        world.connect(job_data("a"), patience_s=0.3, transport=httpx.MockTransport(way)) as mux,
    ):
        with pytest.raises(KeyError if said is Said.FAILED else Unreachable):
            work(mux)
        away.clear()
        with mux.phase("rollout") as phase:
            for request in late:
                world.handle(request)
            lane = world.machine.state.seat(world.record("a")).lanes[PhaseKind.ROLLOUT]
            assert (lane.epoch, lane.holding) == (phase.epoch, True)
        assert world.record("a").progress.rolled == 1


def test_a_phase_that_was_told_that_it_is_given_up_does_not_count_though_the_controller_starts_anew() -> None:
    world, crowd, told = World(lease_s=5.0), Crowd(), Event()
    works = list[bool]()

    def fail(mux: Mux) -> None:
        with mux.phase("rollout"):
            raise KeyError("it is mine")

    def other() -> None:
        with world.connect(job_data("a"), rank=1, processes=2) as mux:
            with pytest.raises(KeyError):
                fail(mux)
            assert told.wait(5.0)
            while True:
                with suppress(LeaseLost), mux.phase("rollout"):
                    break
            with suppress(LeaseLost), mux.phase("train"):
                pass

    crowd.start(other)
    with world.connect(job_data("b")), world.connect(job_data("a"), rank=0, processes=2) as mux:
        broke = Event()
        mux.runtime_hook("lost")(lambda reason: broke.set())
        for whole in (False, True):
            with suppress(LeaseLost), mux.phase("rollout"):
                if not whole:
                    assert broke.wait(5.0)
                    world.restart(0.02)
                    told.set()
                works.append(whole)
            assert world.record("a").progress.rolled == whole
        with suppress(LeaseLost), mux.phase("train"):
            pass
    crowd.join()
    assert works == [False, True]


def test_who_takes_its_leave_waits_for_state_that_another_thread_moves_off() -> None:
    world, engine, crowd, met = World(), Leaving(), Crowd(), list[bool]()

    def neighbour() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            met.append(engine.here)

    with world.connect(job_data("a")) as mux:
        with mux.phase("rollout", state=engine):
            pass
        with mux.phase("train"):
            pass
        crowd.start(neighbour)
        assert engine.leaving.wait(5.0)
        crowd.start(engine.goes_soon)
    assert not engine.here
    crowd.join()
    assert met == [False]


@pytest.mark.parametrize("when", ["moves in", "moves off"])
def test_who_takes_its_leave_waits_for_the_state_of_phases_that_were_given_up(when: str) -> None:
    world, coming, crowd, met = World(), Event(), Crowd(), list[bool]()

    class Coming(Leaving):
        def load(self) -> None:
            super().load()
            coming.set()
            assert when == "moves off" or self.may_go.wait(5.0)

        def break_off(self) -> None:
            self.may_go.set()

    def neighbour() -> None:
        with other.phase("rollout"):
            met.append(engine.here)

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            pass

    async def script() -> None:
        with mux:
            await given_up(work(), coming.is_set if when == "moves in" else engine.leaving.is_set)
            crowd.start(neighbour)
            if when == "moves off":
                crowd.start(engine.goes_soon)
        assert not engine.here

    engine = Coming()
    with world.connect(job_data("b")) as other:
        mux = world.connect(job_data("a"))
        asyncio.run(script())
        crowd.join()
    assert met == [False]


def test_who_can_not_tell_that_its_state_is_off_the_nodes_does_not_take_its_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, engine = World(drain_s=0.1), Leaving()

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            pass

    with world.connect(job_data("b")), caplog.at_level(logging.WARNING, "rollmux"):
        mux = world.connect(job_data("a"))
        asyncio.run(given_up(work(), engine.leaving.is_set))
        mux.close()
        assert "could not take its leave: its state is still on its nodes" in caplog.text
        assert "leave" not in [verb for job, verb, _ in world.heard if job == "a"]
        engine.may_go.set()


def test_state_that_waits_to_be_moved_off_at_the_end_is_on_its_nodes_until_it_is() -> None:
    world, crowd, met = World(), Crowd(), list[bool]()
    rolls, trains = Leaving(), Leaving()
    for engine in (rolls, trains):
        engine.may_go.set()
    mux = world.connect(job_data("a"))
    for kind, engine in (("rollout", rolls), ("train", trains), ("rollout", rolls)):
        with mux.phase(kind, state=engine):
            pass
    assert rolls.here
    assert trains.here
    for engine in (rolls, trains):
        engine.may_go.clear()
        engine.leaving.clear()

    def neighbour() -> None:
        soon(lambda: rolls.leaving.is_set() or trains.leaving.is_set())
        with world.connect(job_data("b")) as other:
            crowd.start(rolls.goes_soon)
            crowd.start(trains.goes_soon)
            with other.phase("rollout"):
                met.append(rolls.here)

    crowd.start(neighbour)
    mux.close()
    crowd.join()
    assert met == [False]


def test_who_could_not_move_its_state_off_does_not_say_that_it_leaves() -> None:
    class Stuck(Engine):
        def offload(self) -> None:
            raise ValueError("no device answers")

    world = World()
    mux = world.connect(job_data("a"))
    with pytest.raises(ValueError, match="no device"), mux.phase("rollout", state=Stuck()):
        raise KeyError("the body's own")
    mux.close()
    assert world.ended("a") != "finished"


@pytest.mark.parametrize("method", ["end", "fail"])
def test_a_phase_whose_end_is_interrupted_before_it_has_begun_gives_its_nodes_back(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, real, left = World(), getattr(Stint, method), ["once"]

    def interrupted(stint: Stint, *told: Any) -> None:
        if left:
            left.pop()
            raise KeyboardInterrupt
        real(stint, *told)

    monkeypatch.setattr(Stint, method, interrupted)
    with world.connect(job_data("a")) as mux:

        @mux.phase("rollout", state=Engine())
        def rollout(fails: bool = False) -> None:
            if fails:
                raise ValueError

        with pytest.raises(KeyboardInterrupt):
            rollout(fails=method == "fail")
        rollout()
        assert world.record("a").progress.rolled == 1


def test_who_is_refused_does_not_disturb_who_is_at_work() -> None:
    world = World()
    mux = world.connect(job_data("a"))
    with mux.phase("rollout") as phase:
        with pytest.raises(RuntimeError, match="twice at once"), phase:
            pass
        assert phase.nodes
    assert world.record("a").progress.rolled == 1
    mux.close()


def test_a_phase_for_whose_end_no_thread_can_be_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world, engine, start = World(), Engine(), Thread.start

    def scarce(thread: Thread) -> None:
        if thread.name == "rollmux-phase" and engine.here:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            assert engine.here

    monkeypatch.setattr(Thread, "start", scarce)
    with world.connect(job_data("a")) as mux:
        asyncio.run(work())
        assert world.record("a").progress.rolled == 1


def test_a_phase_whose_loop_has_gone_gives_its_nodes_back() -> None:
    world, engine = World(), Engine()
    mux, other = world.connect(job_data("a")), world.connect(job_data("b"))

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            loop.stop()
            await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    loop.run_forever()
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    soon(lambda: not engine.here)
    with other, other.phase("rollout"):
        pass
    mux.close()


def test_who_ends_the_job_in_a_handler_of_a_signal_amid_the_implied_sync_does_not_wait_for_that_sync() -> None:
    """The handler has the thread in which the sync is under way."""
    world, closed = World(), list[bool]()

    def end(verb: str, message: Any) -> str:
        if isinstance(message, Ask) and message.kind is PhaseKind.SYNC and not closed:
            closed.append(False)
            mux.close()
            closed[0] = True
        return ""

    mux = world.connect(job_data("a"))
    for kind in ("rollout", "train"):
        with mux.phase(kind):
            pass
    world.fate = end
    with pytest.raises(Exception, match="clos"), mux.phase("rollout"):
        pass
    assert closed == [True]


def test_an_asynchronous_phase_that_has_failed_keeps_no_state() -> None:
    """Large tensors do not wait for a collector."""

    class Broken(Engine):
        def load(self) -> None:
            super().load()
            raise EOFError("no such weights")

    async def fail() -> weakref.ref[Broken]:
        state = Broken()
        with suppress(EOFError):
            async with mux.phase("rollout", state=state):
                pass
        return weakref.ref(state)

    async def look() -> bool:
        kept = await fail()
        for _ in range(100):
            if kept() is None:
                return False
            await asyncio.sleep(0.01)  # its thread may be on its way out
        return True

    with World().connect(job_data("a")) as mux:
        gc.disable()
        try:
            assert not asyncio.run(look())
        finally:
            gc.enable()


@pytest.mark.parametrize("error", [None, SystemExit(0), ValueError("the child's own")])
def test_a_child_that_leaves_the_body_of_a_phase_leaves_it_to_its_parent(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork copies what it finds, and has another number."""
    world = World()

    async def leaves(child: Phase) -> None:
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            copy(child).__exit__(type(error) if error else None, error, None)
            await child.__aexit__(type(error) if error else None, error, None)

    async def work() -> None:
        async with mux.phase("rollout") as phase:
            await leaves(copy(phase))
        with mux.phase("train") as phase:
            await leaves(copy(phase))

    with world.connect(job_data("a")) as mux:
        asyncio.run(work())
        assert world.said("a", Said.FAILED) == []
        assert len(world.said("a", Said.FINISHED)) == 2


def test_a_child_can_not_enter_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be granted it, and its work would not count."""
    world = World()
    with world.connect(job_data("a")) as mux:
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            with pytest.raises(RuntimeError, match="can't be entered in a child"), mux.phase("rollout"):
                pass
        assert not any(isinstance(message, Ask) for _, _, message in world.heard)
        with mux.phase("rollout"):
            pass


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_a_script_that_is_ended_while_it_waits_for_a_place_says_so_and_ends_as_it_would(
    heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    monkeypatch.setattr(attach, "LEAVE_PATIENCE_S", 0.2)

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Attach) and message.wait_s > 0.1:
            raise KeyboardInterrupt
        return "lost" if isinstance(message, Leave) and not heard else ""

    with world.connect(job_data("busy", slo=1.0)):
        world.fate, before = fate, world.fate
        with pytest.raises(KeyboardInterrupt):
            world.connect(job_data("a", slo=1.0))
        world.fate = before
    assert world.ended("a") == ("its script ended while it waited for a place: KeyboardInterrupt" if heard else "")


@pytest.mark.parametrize("attempt", [None, 1])
def test_no_goodbye_is_said_by_who_was_refused_nor_by_who_is_launched(attempt: int | None) -> None:
    world = World()

    def fate(verb: str, message: Any) -> str:
        if isinstance(message, Attach) and attempt:
            raise KeyboardInterrupt
        return ""

    world.submit(job_data("a", command=["python"]) if attempt else job_data("a"))
    if not attempt:
        world.cancel("a")
    world.fate = fate
    with pytest.raises(KeyboardInterrupt if attempt else CallRefused):
        world.connect("a", attempt=attempt)
    assert "leave" not in [verb for _, verb, _ in world.heard]
