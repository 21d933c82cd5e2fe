"""Who no longer waits for its turn, or for word of its end, and who asks again."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from threading import enumerate as threads
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

import rollmux
from rollmux.client import AlreadyCommitted, Mux
from rollmux.client.stint import Stint
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Ask, Report, Said
from tests.client.world import Crowd, Engine, World, job_data, soon


def entering() -> list[str]:
    return [thread.name for thread in threads() if thread.name == "rollmux-phase"]


@pytest.mark.parametrize("before", [False, True], ids=["the first time", "having been in"])
def test_a_task_that_is_cancelled_while_it_waits_gives_its_turn_to_others(before: bool) -> None:
    world, crowd, begun, over = World(), Crowd(), Event(), Event()
    with world.connect(job_data("b")) as other, world.connect(job_data("a"), wait_s=0.05) as mux:

        def hold() -> None:
            with other.phase("rollout"):
                begun.set()
                assert over.wait(5.0)

        async def work() -> None:
            async with rollout:
                pass

        async def wait() -> None:
            async with rollout:
                raise AssertionError("it was cancelled")

        async def give_up() -> None:
            if before:
                await work()
                with mux.phase("train"):
                    pass
            crowd.start(hold)
            assert begun.wait(3.0)
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        rollout = mux.phase("rollout")
        asyncio.run(give_up())
        over.set()
        crowd.join()
        asyncio.run(work())
        assert world.record("a").progress.rolled == 1 + before


def test_who_stops_waiting_for_its_turn_holds_up_nobody() -> None:
    """It is granted all the same, as nobody can tell in time."""
    world, engine, crowd, begun, over = World(lease_s=2.0, drain_s=2.0), Engine(), Crowd(), Event(), Event()
    patient = iter(range(5))

    def impatient(verb: str, message: Any) -> str:
        if verb == "ask" and current_thread() is main_thread() and next(patient, None) is None:
            raise KeyboardInterrupt
        return ""

    def hold(mux: Mux) -> None:
        with mux.phase("rollout"):
            begun.set()
            assert over.wait(5.0)

    with (
        world.connect(job_data("a"), wait_s=0.05) as mux,
        world.connect(job_data("b"), wait_s=0.05) as other,
        world.connect(job_data("c"), wait_s=0.05) as third,
    ):
        crowd.start(lambda: hold(other))
        assert begun.wait(3.0)
        world.fate = impatient
        interrupted(mux, engine)
        world.fate = lambda verb, message: ""
        over.set()
        with third.phase("rollout"):
            assert engine.moves == []
            (declined,) = world.said("a", Said.FAILED)
        assert declined.reason == "nobody waited for its turn any more"
        crowd.join()
        with mux.phase("rollout", state=engine):
            assert engine.here
        assert world.record("a").attempt == 1


def test_state_that_was_left_on_nodes_leaves_them_where_nobody_waits_for_their_lease_any_more() -> None:
    world, engine = World(lease_s=0.5, drain_s=0.5), Engine()
    broken = Event()

    def way(request: httpx.Request) -> httpx.Response:
        answer = world.handle(request)
        if broken.is_set() and b'"rollout"' in request.content:
            broken.clear()
            raise KeyboardInterrupt
        return answer

    with world.connect(job_data("a"), transport=httpx.MockTransport(way)) as mux:
        with mux.phase("rollout", state=engine):
            pass
        with mux.phase("train"):
            pass
        assert engine.here
        broken.set()
        interrupted(mux, engine)
        assert engine.here
        soon(lambda: not engine.here)
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            pass
        with mux.phase("rollout", state=engine):
            assert engine.here
        assert world.record("a").attempt == 1


def interrupted(mux: Mux, state: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        mux.phase("rollout", state=state).__enter__()


def test_who_asks_again_for_what_it_had_given_up_has_its_turn() -> None:
    world, patient = World(), iter(range(1))

    def impatient(verb: str, message: Any) -> str:
        if verb == "ask" and next(patient, None) is not None:
            raise KeyboardInterrupt
        return ""

    world.fate = impatient
    with world.connect(job_data("a")) as mux:
        interrupted(mux, Engine())
        for _ in mux.steps(3):
            with mux.phase("rollout"):
                sleep(0.05)
            with mux.phase("train"):
                pass
    assert world.said("a", Said.FAILED) == []


@contextmanager
def held(world: World, until: Event) -> Iterator[None]:
    """Another job is in its rollout until then."""
    crowd, begun = Crowd(), Event()

    def hold() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            begun.set()
            assert until.wait(5.0)

    crowd.start(hold)
    assert begun.wait(3.0)
    yield
    crowd.join()


@pytest.mark.parametrize("wait_s", [0.05, 5.0], ids=["between two calls", "while it was parked"])
def test_a_phase_that_is_tried_again_has_its_lease_for_itself(wait_s: float) -> None:
    """The thread that was given up hears of the turn, too, and says nothing, be it answered before or after."""
    world, engine, over, told = World(lease_s=0.5), Engine(), Event(), list[dict[str, Any]]()

    async def work() -> None:
        async with rollout as phase:
            for _ in range(10):
                await asyncio.sleep(0.03)
                assert engine.here
                assert phase.lost == ""

    async def try_again() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.1)
        again = asyncio.create_task(work())
        await asyncio.sleep(0.1)
        over.set()
        await again

    with world.connect(job_data("a"), wait_s=wait_s) as mux, held(world, over):
        rollout = mux.phase("rollout", state=engine)
        asyncio.run(try_again())
        gc.collect()
        assert world.said("a", Said.FAILED) == []
        assert engine.moves[:1] == ["load"]
        assert told == []


def test_who_tries_again_begins_once_what_was_given_up_is_off_the_nodes() -> None:
    world, there = World(), Event()

    class Slow(Engine):
        def load(self) -> None:
            super().load()
            assert there.wait(5.0)

    engine = Slow()

    def slow(verb: str, message: Any) -> str:
        if isinstance(message, Report) and message.said is Said.FAILED:
            sleep(0.2)
        return ""

    world.fate = slow

    async def work() -> None:
        async with mux.phase("rollout", state=engine) as phase:
            assert engine.here
            await asyncio.sleep(0.3)
            assert phase.lost == ""

    async def try_again() -> None:
        first = asyncio.create_task(work())
        while not engine.here:
            await asyncio.sleep(0.01)
        first.cancel()
        again = asyncio.create_task(work())
        await asyncio.sleep(0.1)
        there.set()
        await again

    with world.connect(job_data("a"), wait_s=0.05) as mux:
        asyncio.run(try_again())
        assert engine.moves[:3] == ["load", "offload", "load"]
        assert world.record("a").progress.rolled == 1


@pytest.mark.parametrize("when", ["at work", "in line"])
def test_a_thread_that_was_given_up_and_runs_late_takes_nothing_from_who_asked_again(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, late, first, begin = World(lease_s=0.6), Event(), iter(range(1)), Stint.begin

    def held_up(stint: Stint) -> None:
        if next(first, None) is not None:
            assert late.wait(5.0)
        begin(stint)

    def ask(verb: str, message: Any) -> str:
        if verb == "ask" and when == "in line":
            late.set()
            sleep(0.1)
        return ""

    async def work() -> None:
        async with mux.phase("rollout") as phase:
            late.set()
            await asyncio.sleep(0.5)  # signs of life pass, and with them word of what is not wanted
            assert phase.lost == ""

    async def try_again() -> None:
        given_up = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.wait({given_up})
        world.fate = ask
        await work()

    monkeypatch.setattr(Stint, "begin", held_up)
    with world.connect(job_data("a")) as mux:
        asyncio.run(try_again())
        assert world.said("a", Said.FAILED) == []
        assert world.record("a").progress.rolled == 1


def test_who_is_given_up_while_it_asks_for_the_lease_after_a_lost_one_holds_up_nobody() -> None:
    world, crowd, inside, over = World(lease_s=0.3, drain_s=5.0), Crowd(), Event(), Event()

    class Slow(Engine):
        def load(self) -> None:
            super().load()
            if len(self.moves) == 1:
                cut.set()
                sleep(0.6)
                cut.clear()

    def neighbour() -> None:
        with world.connect(job_data("b")) as other, other.phase("rollout"):
            inside.set()
            assert over.wait(5.0)

    async def work() -> None:
        async with mux.phase("rollout", state=engine):
            assert engine.here

    async def try_again() -> None:
        given_up = asyncio.create_task(work())
        await asyncio.to_thread(cut.wait, 5.0)
        crowd.start(neighbour)
        assert await asyncio.to_thread(inside.wait, 5.0)
        await asyncio.sleep(0.2)
        given_up.cancel()
        await asyncio.wait({given_up})
        await asyncio.sleep(0.2)
        over.set()
        await asyncio.wait_for(work(), 5.0)

    engine, cut = Slow(), Event()
    with world.connect(job_data("a"), wait_s=0.05) as mux:
        assert mux._link is not None
        life = mux._link.instance
        world.fate = lambda verb, message: "lost" if cut.is_set() and getattr(message, "instance", "") == life else ""
        asyncio.run(try_again())
        crowd.join()
        assert world.record("a").progress.rolled == 1


def test_a_phase_is_not_entered_while_its_body_is_at_work_in_another_thread() -> None:
    world, crowd, begun, over = World(), Crowd(), Event(), Event()

    def hold() -> None:
        with rollout:
            begun.set()
            assert over.wait(5.0)

    with world.connect(job_data("a")) as mux:
        rollout = mux.phase("rollout")
        crowd.start(hold)
        assert begun.wait(3.0)
        with pytest.raises(RuntimeError, match=r"rollout\(0\) of job a is under way"):
            mux.phase("rollout").__enter__()
        over.set()
        crowd.join()
        with mux.phase("train"):
            pass
        assert world.said("a", Said.FAILED) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_state_that_comes_knows_the_nodes_of_its_phase(is_async: bool) -> None:
    world, told = World(), list[tuple[object, ...]]()

    class Where:
        def load(self) -> None:
            told.append((phase.nodes, phase.epoch))

        def offload(self) -> None: ...

    async def entered() -> None:
        async with phase:
            told.append((phase.nodes, phase.epoch))

    with world.connect(job_data("a")) as mux:
        phase = mux.phase("rollout", state=Where())
        if is_async:
            asyncio.run(entered())
        else:
            with phase:
                told.append((phase.nodes, phase.epoch))
        assert phase.nodes == ()
    assert told[0] == told[1] != ((), 0)


def test_a_phase_that_ends_as_another_thread_would_enter_it_ends_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    world, crowd, begun, over, begin = World(), Crowd(), Event(), Event(), Stint.begin

    def hold() -> None:
        with rollout:
            begun.set()
            assert over.wait(5.0)

    def late(stint: Stint) -> None:
        if current_thread() is main_thread():
            over.set()
            crowd.join()
        begin(stint)

    monkeypatch.setattr(Stint, "begin", late)
    with world.connect(job_data("a")) as mux:
        rollout = mux.phase("rollout")
        crowd.start(hold)
        assert begun.wait(3.0)
        with pytest.raises(AlreadyCommitted):
            rollout.__enter__()
        assert world.record("a").progress.rolled == 1
        monkeypatch.undo()
        with mux.phase("train"):
            pass


def test_a_sync_that_a_rollout_began_with_that_was_given_up_is_asked_for_once() -> None:
    world, asks = World(), list[Ask]()

    def slow(verb: str, message: Any) -> str:
        if isinstance(message, Ask) and message.kind is PhaseKind.SYNC:
            asks.append(message)
            sleep(0.2)
        return ""

    async def work(kind: str) -> None:
        async with mux.phase(kind):
            pass

    async def try_again() -> None:
        await work("rollout")
        await work("train")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work("rollout"), 0.1)
        await asyncio.wait_for(work("rollout"), 5.0)

    world.fate = slow
    with world.connect(job_data("a")) as mux:
        asyncio.run(try_again())
        assert len(asks) == 1
        assert mux.synced == 1


def test_a_loop_that_ends_does_not_wait_for_who_waits_in_its_phases() -> None:
    world, hangs = World(), list[bool]()

    def away(verb: str, message: Any) -> str:
        if monotonic() > until:
            hangs.append(True)
        return "" if hangs else "503"

    async def work() -> None:
        async with mux.phase("rollout"):
            raise AssertionError("there was no answer")

    async def end() -> None:
        waiting = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        raise KeyError(waiting.get_name())

    with world.connect(job_data("a")) as mux:
        until = monotonic() + 3.0
        world.fate = away
        with pytest.raises(KeyError):
            asyncio.run(end())
        assert not hangs
        world.fate = lambda verb, message: ""


def test_who_was_given_up_while_the_controller_is_away_leaves_no_thread() -> None:
    world = World()

    async def work() -> None:
        async with mux.phase("rollout"):
            raise AssertionError("there was no answer")

    async def give_up() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work(), 0.1)

    with world.connect(job_data("a")) as mux:
        world.fate = lambda verb, message: "503" if verb == "ask" else ""
        asyncio.run(give_up())
        soon(lambda: not entering())
        world.fate = lambda verb, message: ""


def test_what_becomes_of_a_phase_that_was_given_up_is_no_news_but_for_what_its_state_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, told, go = World(), list[dict[str, Any]](), Event()

    class Broken(Engine):
        def load(self) -> None:
            super().load()
            assert go.wait(5.0)
            raise EOFError("no such weights")

    async def work(state: Engine | None) -> None:
        async with mux.phase("rollout", state=state):
            raise AssertionError("it was given up")

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(Broken()), 0.1)
        go.set()
        await asyncio.to_thread(soon, lambda: "no such weights" in caplog.text)
        world.fate = lambda verb, message: "503" if verb == "ask" else ""
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(None), 0.1)
        await asyncio.to_thread(soon, lambda: not entering())  # who asked has stopped

    with world.connect(job_data("a"), patience_s=2.0) as mux:
        asyncio.run(give_up())
        gc.collect()
        world.fate = lambda verb, message: ""
    assert told == []
    assert [record.getMessage() for record in caplog.records] == ["a phase that was given up: no such weights"]


def test_without_a_controller_state_comes_once_though_who_entered_first_was_given_up() -> None:
    go = Event()

    class Slow(Engine):
        def load(self) -> None:
            assert go.wait(5.0)
            super().load()

    async def work() -> None:
        async with mux.phase("train", state=engine):
            assert engine.here

    async def try_again() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.05)
        again = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        go.set()
        await again

    engine, mux = Slow(), rollmux.connect(url="")
    asyncio.run(try_again())
    assert engine.moves == ["load"]


@pytest.mark.parametrize("closed", ["before its turn came", "after its turn came"])
def test_a_task_whose_loop_has_gone_while_it_waited_keeps_no_nodes(closed: str) -> None:
    world, engine, over = World(), Engine(), Event()

    async def wait() -> None:
        async with mux.phase("rollout", state=engine):
            raise AssertionError("its loop has gone")

    with world.connect(job_data("a"), wait_s=0.05) as mux:
        loop = asyncio.new_event_loop()
        with held(world, over):
            task = loop.create_task(wait())
            loop.run_until_complete(asyncio.sleep(0.05))
            if closed == "before its turn came":
                loop.close()
            over.set()
        soon(lambda: not entering())
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if closed == "after its turn came":
            assert engine.here
            del task
            gc.collect()
        soon(lambda: engine.moves == ["load", "offload"])
        with mux.phase("rollout", state=engine):
            assert engine.here


def test_a_task_of_no_loop_of_asyncio_is_not_let_in() -> None:
    """Its library would not wait for what asyncio does."""
    with World().connect(job_data("a")) as mux:
        rollout = mux.phase("rollout")
        with pytest.raises(RuntimeError, match="no running event loop"):
            rollout.__aenter__().send(None)
        with rollout:
            pass


def test_state_that_was_to_stay_is_loaded_again_where_the_word_of_the_end_was_broken_off() -> None:
    world, engine, broken = World(), Engine(), Event()

    def impatient(verb: str, message: Any) -> str:
        if isinstance(message, Report) and message.said is Said.FINISHED and not broken.is_set():
            broken.set()
            raise KeyboardInterrupt
        return ""

    world.fate = impatient
    with world.connect(job_data("a")) as mux:
        with pytest.raises(KeyboardInterrupt), mux.phase("rollout", state=engine):
            assert engine.here
        assert engine.moves == ["load", "offload"]
        with mux.phase("rollout", state=engine):
            assert engine.moves == ["load", "offload", "load"]
        assert world.record("a").progress.rolled == 1


def test_who_has_not_heard_that_a_phase_counts_hears_it_once_and_goes_on() -> None:
    world, broken = World(), Event()

    def way(request: httpx.Request) -> httpx.Response:
        answer = world.handle(request)
        if broken.is_set() and b'"finished"' in request.content and request.url.path.endswith("/report"):
            broken.clear()
            raise KeyboardInterrupt
        return answer

    with world.connect(job_data("a"), transport=httpx.MockTransport(way)) as mux:
        with mux.phase("rollout"):
            pass
        broken.set()
        with pytest.raises(KeyboardInterrupt), mux.phase("train"):
            pass
        with pytest.raises(AlreadyCommitted, match=r"train\(0\) of job a is committed"):
            mux.phase("train").__enter__()
        with mux.phase("rollout"):
            pass
        assert mux.synced == 1
