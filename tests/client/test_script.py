"""A job's script: with and without a controller, from its connection to its end."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import starmap
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest

import rollmux
from rollmux.client import AlreadyCommitted, CallRefused, LeaseLost, Mux, Unreachable, aside
from rollmux.client.timings import Timing, Timings
from rollmux.client.wire import read
from rollmux.errors import InvalidSpec
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Attach, Attached, Held, Leave, Profile, Said, Turn
from tests.client.world import Engine, World, job_data, soon

ROLLOUT, TRAIN, SYNC = PhaseKind


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "JOB", "ATTEMPT", "RANK", "PROCESSES", "RANKS_PER_PROCESS"):
        monkeypatch.delenv(f"ROLLMUX_{name}", raising=False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)


def script(mux: Mux, iterations: int) -> list[str]:
    """What a researcher writes; returns what was done."""
    done: list[str] = []

    @mux.phase("rollout", state=Engine())
    def rollout(step: int) -> list[int]:
        mux.progress(1, 1)
        return [step]

    @mux.phase("train", state=[Engine(), object()])
    async def train(batch: list[int]) -> int:
        await asyncio.sleep(0)
        return batch[0]

    @mux.phase("sync")
    def sync() -> None:
        done.append("sync")

    @mux.runtime_hook("pause")
    def pause() -> None:
        raise AssertionError("nobody wants it to")

    for step in mux.steps(iterations):
        done.append(f"train {asyncio.run(train(rollout(step)))}")
        sync()
    return done


def test_the_same_script_runs_with_a_controller_and_straight_through_without() -> None:
    expected = ["train 0", "sync", "train 1", "sync"]
    with rollmux.connect() as alone:
        assert script(alone, 2) == expected
    world = World()
    with world.connect(job_data("a")) as mux:
        assert script(mux, 2) == expected
        assert world.record("a").progress.synced == 2
    assert world.ended("a") == "finished"


def test_a_job_knows_the_nodes_of_its_place_and_a_phase_those_that_it_holds() -> None:
    with rollmux.connect() as alone, alone.phase("rollout") as phase:
        assert alone.rollout_nodes == phase.nodes == ()
    world = World(rollout=2)
    wide = {"nodes": 2, "duration_s": 50.0}
    with world.connect(job_data("a", rollout=wide)) as mux, mux.phase("rollout") as phase:
        assert mux.rollout_nodes == phase.nodes == ("rollout-0", "rollout-1")


def test_straight_through_state_comes_once_and_stays_and_nothing_is_waited_for() -> None:
    engine, other = Engine(), Engine()
    with rollmux.connect() as mux:
        for state in (engine, [other, engine]):
            for _ in range(2):
                with mux.phase("rollout", state=state) as phase:
                    assert (phase.nodes, phase.lost, mux.stop_reason) == ((), "", "")
                    assert engine.here
    assert (engine.moves, other.moves) == (["load"], ["load"])


def test_planning_does_not_load_the_client() -> None:
    code = "import sys, rollmux; assert 'httpx' not in sys.modules; rollmux.connect; assert 'httpx' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        rollmux.conect  # type: ignore[attr-defined]  # noqa: B018


def test_a_launched_process_finds_all_it_needs_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with world.lock:
        world.submit(job_data("a", command=["python", "job.py"], processes=2))
    given = {"URL": "http://controller", "TOKEN": "secret", "JOB": "a", "ATTEMPT": "1", "RANK": "1", "PROCESSES": "2"}
    for name, value in given.items():
        monkeypatch.setenv(f"ROLLMUX_{name}", value)
    with rollmux.connect(job=job_data("other"), transport=httpx.MockTransport(world.handle)):
        (attach,) = [message for _, verb, message in world.heard if verb == "attach"]
        assert (attach.attempt, attach.rank, attach.processes) == (1, 1, 2)
    assert [verb for _, verb, _ in world.heard if verb in ("jobs", "leave")] == []  # its launcher speaks for it


def test_ranks_are_found_where_torchrun_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with world.connect(job_data("a")):
        (attach,) = [message for _, _, message in world.heard if isinstance(message, Attach)]
        assert (attach.rank, attach.processes) == (1, 4)
        assert world.controller.jobs["a"].submission.processes == 4
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InvalidSpec, match="RANK = 'first'"):
        rollmux.connect()


def told(monkeypatch: pytest.MonkeyPatch, **numbers: int | None) -> None:
    """What the controller's launcher and torchrun say, each under its name."""
    for name, number in numbers.items():
        if number is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, str(number))


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, 2),  # dealt out as torchrun likes
        ({"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}, 3),  # in a world of its own torchrun's
        ({"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, 3),  # with one GPU to see
        ({"LOCAL_RANK": 1}, 3),
    ],
)
def test_a_rank_below_a_process_of_the_controllers_is_one_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, int], rank: int
) -> None:
    world = World()
    with world.lock:
        world.submit(job_data("a", command=["torchrun", "job.py"], processes=2, ranks_per_process=2))
    told(monkeypatch, ROLLMUX_RANK=1, ROLLMUX_PROCESSES=2, ROLLMUX_RANKS_PER_PROCESS=2, **said)
    world.connect("a", attempt=1)._at_exit()
    (attach,) = [message for _, _, message in world.heard if isinstance(message, Attach)]
    assert (attach.rank, attach.processes) == (rank, 4)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4}, "ranks below this process = 4: must be 2, as the job says"),
        ({"LOCAL_RANK": 0, "LOCAL_SIZE": 1}, "ranks below this process = 1: must be 2, as the job says"),
        ({"LOCAL_RANK": 2}, "LOCAL_RANK = 2: must be from 0 to 1 where each process of the controller's starts 2"),
        ({}, "LOCAL_RANK = None: must be from 0 to 1"),
    ],
)
def test_as_many_ranks_as_the_job_says_are_below_each_process(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, int], why: str
) -> None:
    told(monkeypatch, ROLLMUX_RANK=1, ROLLMUX_PROCESSES=2, ROLLMUX_RANKS_PER_PROCESS=2, **said)
    with pytest.raises(InvalidSpec, match=why):
        rollmux.connect()
    with rollmux.connect(rank=3):  # it knows better
        pass


def test_several_below_one_process_of_a_job_that_says_nothing_of_them_are_not_taken_for_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with world.lock:
        world.submit(job_data("a", command=["torchrun", "job.py"], processes=2))
    told(monkeypatch, ROLLMUX_RANK=1, ROLLMUX_PROCESSES=2, RANK=4, WORLD_SIZE=8, LOCAL_RANK=0)
    world.connect("a", attempt=1)._at_exit()  # the first of its own
    why = r"LOCAL_RANK = 1: must be 0 where each of the 2 .*; say in the job's file .*`ranks_per_process`"
    small = {"ROLLMUX_RANK": 0, "RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for said in ({"LOCAL_RANK": 1}, {"LOCAL_RANK": 0, "RANK": 5, "LOCAL_WORLD_SIZE": 4}, small):
        told(monkeypatch, **said)
        with pytest.raises(InvalidSpec, match=why):
            world.connect("a", attempt=1)
    told(monkeypatch, ROLLMUX_RANK=1, LOCAL_RANK=1, LOCAL_WORLD_SIZE=None)  # said by who starts all, for torch
    world.connect("a", attempt=1)._at_exit()


def test_processes_of_a_job_may_have_a_world_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that train, say, which number themselves for torch."""
    world = World()
    with world.lock:
        world.submit(job_data("a", command=["python", "job.py"], processes=4))
    told(monkeypatch, ROLLMUX_RANK=3, ROLLMUX_PROCESSES=4, RANK=1, WORLD_SIZE=2, LOCAL_RANK=1)
    world.connect("a", attempt=1)._at_exit()
    (attach,) = [message for _, _, message in world.heard if isinstance(message, Attach)]
    assert (attach.rank, attach.processes) == (3, 4)


def test_a_job_of_a_file_is_submitted_without_what_a_launcher_would_start(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "job.yaml"
    path.write_text(
        "name: filed\nslo: 4\nrollout: {nodes: 1, duration_s: 5}\ntrain: {nodes: 1, duration_s: 5}\n"
        "command: [torchrun]\nprocesses: 2\nranks_per_process: 8\n"
    )
    with world.connect(str(path), processes=16):
        submission = world.controller.jobs["filed"].submission
        assert (submission.command, submission.ranks) == ((), 16)


def test_a_job_that_can_not_be_taken_is_refused_with_all_reasons() -> None:
    world = World()
    with pytest.raises(CallRefused, match=r"job\.slo = 0\.5") as raised:
        world.connect(job_data("a", slo=0.5, iterations=0))
    assert raised.value.status == 422
    assert len(raised.value.problems) == 2
    assert str(raised.value).split("\n  ") == [raised.value.error, *raised.value.problems]
    assert pickle.loads(pickle.dumps(raised.value)).problems == raised.value.problems
    with pytest.raises(CallRefused, match="there is no job 'nobody'"):
        world.connect("nobody")


def test_a_job_without_a_name_is_refused_with_all_that_is_wrong_and_what_is_nearest(tmp_path: Path) -> None:
    world, given = World(), job_data("a")
    given["nam"] = given.pop("name")
    path = tmp_path / "job.yaml"
    path.write_text("nam: a\n")
    for wrong in (given, str(path)):
        with pytest.raises(InvalidSpec, match=r"job\.nam = 'a': .*the nearest is name\n(.*\n)*.*must be with name"):
            world.connect(wrong)
    with pytest.raises(InvalidSpec, match="must be with name, rollout, train; add what is missing"):
        world.connect({"slo": 1.5})
    assert not world.heard


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), np.int64(20), {3, 4}])
def test_what_can_not_be_sent_of_a_job_is_named(odd: object) -> None:
    with pytest.raises(InvalidSpec, match=r"job\.rollout\.duration_s = .*: must be a number from"):
        World().connect({**job_data("a"), "rollout": {"nodes": 1, "duration_s": odd}})


def test_a_job_without_sync_phases_is_synced_by_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with world.connect(job_data("a")) as mux:
        for expected in range(3):
            with mux.phase("rollout"):
                assert world.record("a").progress.synced == expected
            with mux.phase("train"):
                pass
        monkeypatch.setattr(world, "fate", lambda verb, message: "unheard" if verb == "leave" else "")
        monkeypatch.setattr("rollmux.client.mux.LEAVE_PATIENCE_S", 0.05)
        assert mux.synced == 2
    assert world.ended("a") == "finished"


def test_a_script_that_is_started_again_goes_on_after_its_last_sync() -> None:
    world, steps = World(), list[int]()

    def run(fails_at: int) -> None:
        with world.connect(job_data("a")) as mux:
            for step in mux.steps(4):
                with mux.phase("rollout"):
                    steps.append(step)
                if step == fails_at:
                    raise OSError("the disk is full")
                with mux.phase("train"):
                    pass

    with pytest.raises(OSError, match="disk"):
        run(2)
    (leave,) = [message for _, _, message in world.heard if isinstance(message, Leave)]
    assert leave.failed == "OSError: the disk is full"
    run(9)
    assert steps == [0, 1, 2, 2, 3]
    assert world.ended("a") == "finished"


def test_an_iteration_of_the_past_can_not_be_done_again() -> None:
    world = World()
    with world.connect(job_data("a")) as mux:
        script(mux, 1)
        with pytest.raises(AlreadyCommitted, match=r"rollout\(0\)"), mux.phase("rollout", iteration=0):
            raise AssertionError("it has no lease")
        with pytest.raises(CallRefused, match="phases of an iteration go in order") as raised, mux.phase("train"):
            raise AssertionError("it has no lease")
        assert raised.value.status == 409


@pytest.mark.parametrize("zero", [np.int64(0), np.array(0)])
def test_an_iteration_may_be_a_number_of_numpy_s(zero: Any) -> None:
    world = World()
    with world.connect(job_data("a")) as mux:
        for kind in PhaseKind:
            with mux.phase(kind.value, iteration=zero):
                pass
    assert world.ended("a") == "finished"


def test_a_generator_is_no_phase() -> None:
    with rollmux.connect() as mux, pytest.raises(TypeError, match="it would run outside of its phase"):

        @mux.phase("rollout")
        def rollout() -> Any:
            yield 1


def test_a_callable_that_is_a_coroutine_runs_within_its_phase() -> None:
    class Rollout:
        async def __call__(self) -> bool:
            return engine.here

    world, engine = World(), Engine()
    with world.connect(job_data("a")) as mux:
        assert asyncio.run(mux.phase("rollout", state=engine)(Rollout())())
        assert world.record("a").progress.rolled == 1


async def run_later(_: object = None) -> None:
    raise AssertionError("it would run outside")


async def drawn_later() -> Any:
    await run_later()
    yield


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (run_later, "coroutine"),
        (drawn_later, "async_generator"),
        (lambda: (run_later(each) for each in "ab"), "generator"),
        (lambda: map(run_later, "ab"), "map"),
        (lambda: filter(run_later, "ab"), "filter"),
        (lambda: starmap(run_later, "ab"), "starmap"),
    ],
)
def test_what_a_phase_has_made_to_be_run_later_is_refused(made: Callable[[], Any], kind: str, is_async: bool) -> None:
    def plain() -> Any:
        return made()

    async def coroutine() -> Any:
        return made()

    world = World()
    with world.connect(job_data("a")) as mux:
        with pytest.raises(TypeError, match=f"has made a {kind}: it would run outside of its phase; finish it there"):
            asyncio.run(mux.phase("rollout")(coroutine)()) if is_async else mux.phase("rollout")(plain)()
        assert world.record("a").progress.rolled == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("made", [asyncio.gather, asyncio.ensure_future])
def test_what_a_phase_leaves_under_way_is_refused_and_given_up(made: Callable[[Any], Any], is_async: bool) -> None:
    def plain() -> Any:
        return made(run_later())

    async def coroutine() -> Any:
        return plain()

    async def main(mux: Mux) -> None:
        with pytest.raises(TypeError, match="it would run outside of its phase; finish it there"):
            _ = await mux.phase("rollout")(coroutine)() if is_async else mux.phase("rollout")(plain)()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        done = asyncio.get_running_loop().create_future()
        done.set_result("what was drawn")
        assert mux.phase("rollout")(lambda: done)() is done

    world = World()
    with world.connect(job_data("a")) as mux:
        asyncio.run(main(mux))
        assert world.record("a").progress.rolled == 1


@pytest.mark.parametrize("made", [partial(drawn_later), partial(lambda: (yield))])
def test_a_generator_whose_arguments_were_given_before_is_refused_as_one(made: Callable[[], Any]) -> None:
    with World().connect(job_data("a")) as mux, pytest.raises(TypeError, match="is a generator: it would run outside"):
        mux.phase("rollout")(made)


def test_a_phase_of_a_job_that_has_taken_its_leave_is_refused_as_that() -> None:
    with World().connect(job_data("a")) as mux:
        pass
    with pytest.raises(RuntimeError, match="job a has taken its leave: rollout can't be entered any more"):
        mux.phase("rollout").__enter__()


def test_hooks_and_phases_with_unknown_names_are_refused() -> None:
    with rollmux.connect() as mux:
        with pytest.raises(ValueError, match="there is no runtime hook 'paus'"):
            mux.runtime_hook("paus")
        with pytest.raises(ValueError, match="there is no phase 'evaluate': there are rollout, train, sync"):
            mux.phase("evaluate")


def test_phases_are_measured_and_the_longest_of_the_first_few_is_reported_once() -> None:
    world, engine = World(), Engine()
    engine.nbytes = 7 * 10**9
    with world.connect(job_data("a"), profile=2) as mux:
        for step in mux.steps(5):
            with mux.phase("rollout", state=engine):
                sleep(0.2 if step == 0 else 0.03 if step == 1 else 0.01)
            with mux.phase("train"):
                pass
        assert set(mux.timings.last) == set(PhaseKind)
        soon(lambda: world.profiles("a"))
        (profile,) = world.profiles("a")
        assert 0.03 <= profile.rollout_s < 0.2
        assert profile.rollout_switch_s is None  # alone on its nodes it moves nothing
        assert (profile.rollout_bytes, profile.train_bytes) == (7 * 10**9, None)
        assert 10**6 < (profile.process_bytes or 0) < 10**11
        assert world.record("a").job.rollout.measured_s == profile.rollout_s


def test_what_was_measured_while_the_controller_was_away_is_told_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside, "PATIENCE_S", 0.01)
    monkeypatch.setattr(aside, "INTERVAL_S", 0.01)
    world, unheard = World(), list[str]()

    def away(verb: str, message: object) -> str:
        unheard.extend([verb] * (verb == "profile"))
        return "lost" if verb == "profile" else ""

    world.fate = away
    with world.connect(job_data("a"), profile=1) as mux:
        for _ in mux.steps(3):
            for kind in ("rollout", "train"):
                with mux.phase(kind):
                    pass
        soon(lambda: len(unheard) > 2)
        assert world.record("a").job.rollout.measured_s is None
        world.fate = lambda verb, message: ""
        soon(lambda: world.record("a").job.rollout.measured_s)
        mux.measured()
    assert len(world.profiles("a")) == 1


@pytest.mark.parametrize("measured_s", [(3.0,), (2.0, 3.0)])
def test_a_profile_holds_the_longest_after_the_first_iteration(measured_s: tuple[float, ...]) -> None:
    timings = Timings(len(measured_s))
    for body_s in (9.0, *measured_s):
        assert timings.profile(1) is None
        for kind in PhaseKind:
            timings.add(kind, Timing(1.0, 0.0 if kind is TRAIN else body_s, 1.0))
    assert timings.profile(7) == Profile(7, 3.0, 0.001, 3.0)


def test_what_moving_state_takes_is_told_once_it_was_seen_often_enough() -> None:
    timings = Timings(2)
    for load_s in (9.0, 1.0, 3.0, 2.0):
        for kind in PhaseKind:
            timings.add(kind, Timing(load_s, 1.0, load_s / 2, 5, switched=kind is ROLLOUT))
    found = Profile(1, 1.0, 1.0, 1.0, (3.0, 1.5), None, 5, 5, 10**9)
    assert timings.profile(1, 10**9) == found


def test_a_controller_that_never_answers_is_unreachable_after_a_while() -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>a proxy</html>")

    with pytest.raises(Unreachable, match="is not an answer"):
        rollmux.connect("http://controller", job="a", patience_s=0.2, transport=httpx.MockTransport(nobody))


def test_what_a_newer_controller_says_beside_is_left_unread() -> None:
    data = {"lease": None, "done": True, "new": 1}
    assert read(Turn, data) == Turn(None, done=True)
    held = {
        "epoch": 1,
        "kind": "rollout",
        "iteration": 2,
        "state": "newly",
        "nodes": ["r"],
        "load": True,
        "keep": False,
    }
    lease = {**held, "resumed": False, "newer": {"a": 1}}
    assert read(Turn, {"lease": lease, "later": 2}).lease == Held(1, ROLLOUT, 2, "newly", ("r",), True, False, False)
    assert read(Attached, {"attempt": 1, "lease_s": "inf"}).lease_s == float("inf")


@pytest.mark.parametrize(
    ("code", "failed"), [(0, ""), (None, ""), (3, "it ended with exit code 3"), ("no data", "no data")]
)
def test_a_script_that_ends_by_exit_has_failed_where_its_code_says_so(code: Any, failed: str) -> None:
    world = World()
    with pytest.raises(SystemExit), world.connect(job_data("a")) as mux, mux.phase("rollout"):
        sys.exit(code)
    mux = world.connect(job_data("b"))
    with pytest.raises(SystemExit):
        sys.exit(code)
    mux._at_exit()
    assert [message.failed for _, _, message in world.heard if isinstance(message, Leave)] == [failed, failed]


def test_an_exit_that_somebody_has_caught_is_forgotten_with_the_next_phase() -> None:
    world, before = World(), sys.exit
    mux = world.connect(job_data("a"))
    with pytest.raises(SystemExit):
        sys.exit(3)
    with mux.phase("rollout"):
        pass
    mux._at_exit()
    assert [message.failed for _, _, message in world.heard if isinstance(message, Leave)] == [""]
    assert sys.exit is before


@pytest.mark.parametrize(("interactive", "last"), [(True, ""), (True, "no such file"), (False, "mended before train")])
def test_errors_that_a_notebook_has_outlived_are_not_its_job_s_end(
    interactive: bool, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    if interactive:
        monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    monkeypatch.setattr(sys, "last_value", OSError("before it was connected"), raising=False)
    mux = world.connect(job_data("a"))
    for kind in ("rollout", "train"):
        monkeypatch.setattr(sys, "last_value", OSError(f"mended before {kind}"))
        with mux.phase(kind):
            pass
    if interactive and last:
        monkeypatch.setattr(sys, "last_value", OSError(last))
    mux._at_exit()
    (failed,) = [message.failed for _, _, message in world.heard if isinstance(message, Leave)]
    assert failed == (f"OSError: {last}" if last else "")


def test_an_end_that_is_told_twice_is_told_once() -> None:
    world = World()
    mux = world.connect(job_data("a"))
    mux.close()
    mux.close()
    assert len([1 for _, verb, _ in world.heard if verb == "leave"]) == 1


def test_state_that_can_not_be_moved_in_gives_the_nodes_back() -> None:
    class Broken:
        def load(self) -> None:
            raise MemoryError("too large")

    world = World()
    with world.connect(job_data("a")) as mux:
        with pytest.raises(MemoryError), mux.phase("rollout", state=Broken()):
            raise AssertionError("it was not loaded")
        assert [report.reason for report in world.said("a", Said.FAILED)] == ["MemoryError: too large"]
        with mux.phase("rollout"):
            pass


def test_the_job_s_log_is_not_filled_with_signs_of_life(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "httpx")
    world = World()
    with world.connect(job_data("a")) as mux, mux.phase("rollout"):
        httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))).get("http://elsewhere/")
    shown = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert ["elsewhere" in message for message in shown] == [True]


@pytest.mark.parametrize("url", [None, "http://machine:8421"])
def test_fewer_than_no_iterations_are_not_measured(url: str | None) -> None:
    with pytest.raises(InvalidSpec, match="profile = -1: must be at least 0; give 0 to measure nothing"):
        rollmux.connect(url, job="a", profile=-1, patience_s=0)


@pytest.mark.parametrize(
    "url",
    [
        *("machine:8421", "machine", "ftp://machine", "http://", "http://machine:port", "http://[::1", "http://a b/"),
        *("http://machine:8421\n", "http://mach\tine"),
    ],
)
def test_an_address_that_can_never_answer_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidSpec, match=r"ROLLMUX_URL = .* must be like http://machine:8421"):
        rollmux.connect(url, job="a")


@pytest.mark.parametrize("content", ["", "no certificate"])
def test_a_file_that_says_whom_to_trust_and_can_t_be_read_is_named(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "authorities.pem"
    if content:
        trusted.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with pytest.raises(InvalidSpec, match=r"SSL_CERT_FILE = .* must be a file with certificates; mend it"):
        rollmux.connect("https://127.0.0.1:9", job="a")


def test_a_token_may_be_read_from_a_file_with_its_line_end_and_one_that_can_be_none_is_not_told() -> None:
    world = World()
    how: dict[str, Any] = {"job": job_data("a"), "profile": 0, "transport": httpx.MockTransport(world.handle)}
    rollmux.connect("http://controller/", "secret\n", **how).close()
    with pytest.raises(InvalidSpec, match=r"ROLLMUX_TOKEN = '\.\.\.': must be letters, digits and signs"):
        rollmux.connect("http://controller/", "secrét", **how)


def test_a_lease_is_kept_where_a_proxy_gives_up_each_sign_of_life_before_its_answer() -> None:
    world = World(lease_s=1.0)
    world.fate = lambda verb, message: "unheard" if verb == "listen" else ""
    with world.connect(job_data("a")) as mux:
        with mux.phase("rollout"):
            sleep(1.4)
        assert world.record("a").progress.rolled == 1


def test_a_step_whose_work_was_lost_comes_again() -> None:
    world, steps, cut = World(lease_s=0.3, drain_s=3.0), list[int](), Event()
    world.fate = lambda verb, message: "lost" if cut.is_set() and verb == "listen" else ""
    with world.connect(job_data("a", iterations=3), wait_s=0.2) as mux:
        for step in mux.steps(3):
            steps.append(step)
            with suppress(LeaseLost):
                with mux.phase("rollout"):
                    if steps == [0, 1]:
                        cut.set()
                        sleep(0.6)
                        cut.clear()
                with mux.phase("train"):
                    pass
    assert steps == [0, 1, 1, 2]
    assert world.record("a").progress.synced == 3 if not world.ended("a") else world.ended("a") == "finished"


def test_a_step_whose_training_was_lost_is_trained_with_what_its_rollout_gave() -> None:
    world, cut, done = World(lease_s=0.3, drain_s=3.0), Event(), list[int]()
    world.fate = lambda verb, message: "lost" if cut.is_set() and verb == "listen" else ""
    with world.connect(job_data("a", iterations=2), wait_s=0.2) as mux:
        for step in mux.steps(2):
            if not done:
                with mux.phase("rollout"):
                    pass
            elif done == [0]:
                with pytest.raises(CallRefused, match=r"rollout\(0\) counts, and its training is yet to come"):
                    mux.phase("rollout").__enter__()
            else:
                break
            done.append(step)
            with suppress(LeaseLost), mux.phase("train"):
                if done == [0]:
                    cut.set()
                    sleep(0.6)
                    cut.clear()
        assert done == [0, 0]
        assert mux.synced == 1


def test_steps_that_were_broken_off_go_on_with_the_next_iteration() -> None:
    world, done = World(), list[int]()
    with world.connect(job_data("a", iterations=3)) as mux:
        for last in (1, 2):
            for step in mux.steps(3):
                with mux.phase("rollout"):
                    pass
                with mux.phase("train"):
                    done.append(step)
                if step == last:
                    break
        assert list(mux.steps(3)) == []
    assert done == [0, 1, 2]
    assert world.ended("a") == "finished"


def test_a_script_without_a_log_shows_why_it_waits_and_one_with_a_log_says_it_there() -> None:
    plain = "from rollmux.client import wire; wire.QUIET_S = 0.1; import rollmux, logging; {}; "
    plain += "rollmux.connect('http://127.0.0.1:9', job='a', patience_s=1.0)"
    quiet, own = (
        subprocess.run([sys.executable, "-c", plain.format(setup)], capture_output=True, text=True, check=False).stderr
        for setup in ("pass", "logging.basicConfig(format='own: %(message)s')")
    )
    said = "no answer from the controller at http://127.0.0.1:9"
    assert quiet.startswith(f"rollmux: {said}")
    assert quiet.count(said) == 1
    assert own.startswith(f"own: {said}")
    assert own.count(said) == 1


def test_a_job_that_goes_on_for_long_remembers_the_latest_of_its_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmux.client.link.MOST_OVER", 6)
    world = World()
    with world.connect(job_data("A", iterations=10)) as mux:
        script(mux, 10)
        assert mux._link is not None
        given = [
            message.epoch for _, verb, message in world.heard if verb == "report" and message.said is Said.FINISHED
        ]
        over = mux._link.over
        assert len(over) <= 6
        assert over == set(sorted(given)[-len(over) :])
