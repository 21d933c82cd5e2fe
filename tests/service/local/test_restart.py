"""Attempts outlive the controller that has started them, and the next one finds out what became of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollmux.service.launcher import LaunchFailed
from rollmux.service.local import kept, memory, process_tree
from rollmux.service.local import launcher as launchers
from rollmux.service.local.kept import ask, spawn, wait_ended
from rollmux.service.local.launcher import LOG_BYTES, VANISHED
from rollmux.service.local.plans import plan_for
from rollmux.service.local.process_tree import Process, boot_id, everything, look
from rollmux.system import Watched
from tests.service.local.launching import (
    STUBBORN_DAEMON,
    Those,
    be_init,
    launching,
    nothing_left,
    number_in,
    shell,
    until,
    written,
)

ROOT = Path(__file__).parents[3]
COUNTING = "i=0; while [ ! -e enough ]; do i=$((i + 1)); echo $i; echo $i > .new; mv .new count; sleep 0.01; done"
CONTROLLER = f"""
import asyncio, sys
from pathlib import Path
from tests.service.local.launching import launching, shell

async def story(folder):
    async with launching(folder) as (launcher, exits):
        print("begun", flush=True)
        await launcher.start(shell(folder, {COUNTING!r}))
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(story(Path(sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def older() -> Iterator[Those]:
    """What was there before."""
    with nothing_left() as found:
        yield found


def controller(folder: Path) -> "subprocess.Popen[str]":
    """A process that starts an attempt which counts until there is a file `enough`."""
    program = [sys.executable, "-c", CONTROLLER, str(folder)]
    return subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def word(of: "subprocess.Popen[str]") -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def count(folder: Path) -> int:
    return number_in(folder / "count") or 0


def started(folder: Path) -> Path:
    return folder / "state" / "attempts" / "a" / "1.started"


def keeper_of(folder: Path) -> int:
    return int(json.loads(started(folder).read_text())["keeper"][0])


def lives(pid: int) -> bool:
    found = look(pid)
    return found is not None and found.alive


def kill_keeper(folder: Path) -> None:
    keeper = keeper_of(folder)
    os.kill(keeper, signal.SIGKILL)
    while lives(keeper):
        time.sleep(0.001)


def test_a_job_goes_on_without_its_controller_and_is_adopted_by_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            assert exits.running == {("a", 1)}
            await launcher.start(shell(tmp_path, "exit 1"))
            (tmp_path / "enough").touch()
            assert await exits.next() == ""
            assert await launcher.log("a", 1) == [str(count(tmp_path))]
        async with launching(tmp_path) as (_, later):
            assert (later.running, later.heard) == (set(), [])

    with controller(tmp_path) as first:
        assert (word(first), word(first)) == ("begun", "up")
        first.kill()
    reached = count(tmp_path)
    asyncio.run(until(lambda: count(tmp_path) > reached + 5))
    asyncio.run(story())


@pytest.mark.parametrize("after_s", [0.0, 0.06, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.03, 0.12))])
def test_a_controller_that_dies_while_it_starts_a_job_leaves_one_that_is_known_or_none(
    after_s: float, tmp_path: Path, older: Those
) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await asyncio.sleep(0.2)  # what is not known by now would be seen by its count
            assert ("a", 1) in exits.running or not count(tmp_path)
            await launcher.stop("a", 1, 5.0)

    with controller(tmp_path) as first:
        word(first)
        time.sleep(after_s)
        first.kill()
    asyncio.run(story())
    be_init(older)


def test_a_keeper_without_a_controller_starts_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            attempt = shell(tmp_path, "touch ran")
            launcher.files.prepare(attempt.key)
            plan = plan_for(attempt, {}, LOG_BYTES, launcher.files)._replace(controller=1)
            descriptor, heard = spawn(plan)
            await wait_ended(descriptor)
            os.close(heard)
            assert not started(tmp_path).exists()
            assert not (tmp_path / "ran").exists()

    asyncio.run(story())


def test_what_ended_while_no_controller_was_there_is_reported_once(tmp_path: Path, older: Those) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "while [ ! -e away ]; do sleep 0.01; done; echo bye; exit 5"))
            await launcher.start(shell(tmp_path, "sleep 60", name="b"))
        (tmp_path / "away").touch()
        await until(lambda: not lives(keeper_of(tmp_path)))
        async with launching(tmp_path) as (launcher, exits):
            assert exits.running == {("b", 1)}
            assert exits.heard == [("a", 1, "rank 0 ended with exit code 5; its last line: bye")]
            await launcher.stop("b", 1, 5.0)
        async with launching(tmp_path) as (_, exits):
            assert (exits.running, exits.heard) == (set(), [])

    asyncio.run(story())
    be_init(older)


def test_what_was_being_stopped_is_not_reported_by_the_next_controller(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, 'trap "exit 1" TERM; echo 1 > up; while :; do sleep 0.02; done'))
            await written(tmp_path / "up")
            stopping = asyncio.create_task(launcher.stop("a", 1, 5.0))
            await asyncio.sleep(0)
            stopping.cancel()
        async with launching(tmp_path) as (_, exits):
            await until((tmp_path / "state/attempts/a/1.ended").exists)
            await asyncio.sleep(0.1)
            assert exits.heard == []

    asyncio.run(story())


@pytest.mark.parametrize("away", [False, True])
def test_if_a_keeper_is_killed_nothing_that_it_kept_goes_on(away: bool, tmp_path: Path, older: Those) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            told = "echo weights > $ROLLMUX_MEMORY/held; echo $ROLLMUX_MEMORY > memory"
            await launcher.start(shell(tmp_path, f"{told}; {STUBBORN_DAEMON}; sleep 60 & sleep 60"))
            daemon = await written(tmp_path / "daemon")
            if not away:
                kill_keeper(tmp_path)
                assert await exits.next() == VANISHED
        if away:
            kill_keeper(tmp_path)
            async with launching(tmp_path) as (_, exits):
                assert exits.heard == [("a", 1, VANISHED)]
        assert not lives(daemon)

    asyncio.run(story())
    assert not Path((tmp_path / "memory").read_text().strip()).exists()
    be_init(older)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_no_signal_ends_counts_as_running_until_it_is_gone_and_holds_up_no_controller(
    is_stopped: bool, tmp_path: Path, older: Those, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "sleep 60 & echo $! > pid; wait"))
            pid = await written(tmp_path / "pid")
        kill_keeper(tmp_path)
        with monkeypatch.context() as asleep:  # as in a driver: signals come later
            asleep.setattr(launchers, "BEGIN_S", 0.05)
            asleep.setattr(kept, "send", lambda process, number: None)
            async with launching(tmp_path) as (launcher, exits):
                assert exits.running == {("a", 1)}
                await launcher.start(shell(tmp_path, "touch again"))
                stopping = asyncio.create_task(launcher.stop("a", 1, 0.0)) if is_stopped else None
                await asyncio.sleep(0.05)
                assert stopping is None or not stopping.done()
            async with launching(tmp_path) as (launcher, exits):
                assert exits.running == {("a", 1)}
                asleep.undo()
                if is_stopped:
                    await launcher.stop("a", 1, 0.0)
                else:
                    assert await exits.next() == VANISHED
                assert not lives(pid)
        assert len(exits.heard) == (not is_stopped)
        assert not (tmp_path / "again").exists()

    asyncio.run(story())
    be_init(older)


def test_a_process_that_nobody_can_look_at_holds_up_no_controller_and_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read its memory waits for a driver: there even `ps` hangs."""

    async def story() -> None:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(launchers, "BEGIN_S", 0.05)
                async with asyncio.timeout(5), launching(tmp_path) as (_, exits):
                    assert exits.running == {("a", 1)}
        finally:
            awake.set()
        async with launching(tmp_path) as (_, exits):
            assert (exits.running, exits.heard) == (set(), [("a", 1, VANISHED)])

    def look_around() -> Iterator[Process]:
        awake.wait()
        return everything()

    awake = threading.Event()
    monkeypatch.setattr(process_tree, "everything", look_around)
    started(tmp_path).parent.mkdir(parents=True)
    keeper = [os.getpid(), -1, boot_id(), "ROLLMUX_KEEPER=nobody"]
    started(tmp_path).write_text(json.dumps({"job": "a", "attempt": 1, "keeper": keeper}))
    asyncio.run(story())


def test_what_vanished_is_looked_for_once_and_together_and_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts that were told by a version that recorded no end, beside one that nobody has heard of."""

    def look_around() -> Iterator[Process]:
        looks.append(None)
        return everything()

    async def story() -> None:
        async with launching(tmp_path) as (_, exits):
            assert (exits.running, exits.heard) == (set(), [("a", 1, VANISHED)])
        assert len(looks) == 1
        async with launching(tmp_path) as (_, exits):
            assert (exits.running, exits.heard) == (set(), [])
        assert len(looks) == 1

    looks: list[None] = []
    monkeypatch.setattr(process_tree, "everything", look_around)
    started(tmp_path).parent.mkdir(parents=True)
    for number in range(1, 21):
        keeper = [os.getpid(), -1, boot_id(), f"ROLLMUX_KEEPER={number:032x}"]
        record = started(tmp_path).with_name(f"{number}.started")
        record.write_text(json.dumps({"job": "a", "attempt": number, "keeper": keeper}))
        if number > 1:
            record.with_suffix(".told").touch()
    shared = Path(memory.path_of(f"ROLLMUX_KEEPER={1:032x}", os.getpid()))
    shared.mkdir()
    (shared / "weights").touch()
    asyncio.run(story())
    assert not shared.exists()


@pytest.mark.parametrize("is_heard", [False, True])
def test_the_end_of_what_vanished_is_on_record(
    is_heard: bool, tmp_path: Path, older: Those, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its start fails nobody else is told."""

    async def no_answer(heard: int, wait_s: float) -> None:
        await until(started(tmp_path).exists)
        os.close(heard)

    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            if is_heard:
                await launcher.start(shell(tmp_path, "sleep 60"))
                kill_keeper(tmp_path)
                assert await exits.next() == VANISHED
            else:
                monkeypatch.setattr(launchers, "answer", no_answer)
                with pytest.raises(LaunchFailed, match="its keeper has failed"):
                    await launcher.start(shell(tmp_path, "sleep 60"))
            await until(started(tmp_path).with_suffix(".told").exists)
            assert launcher.files.ended(("a", 1)) == VANISHED

    asyncio.run(story())
    be_init(older)


@pytest.mark.parametrize("change", [{"start": -1}, {"boot": "another"}])
def test_a_stranger_with_the_number_of_a_keeper_is_left_alone(change: dict[str, Any], tmp_path: Path) -> None:
    async def story(stranger: int) -> None:
        process = look(stranger)
        assert process is not None
        keeper = {"pid": stranger, "start": process.start, "boot": boot_id(), "marker": "ROLLMUX_KEEPER=0"} | change
        started(tmp_path).parent.mkdir(parents=True)
        record = {"job": "a", "attempt": 1, "keeper": list(keeper.values())}
        started(tmp_path).write_text(json.dumps(record))
        async with launching(tmp_path) as (launcher, exits):
            assert (exits.running, exits.heard) == (set(), [("a", 1, VANISHED)])
            await launcher.stop("a", 1, 0.0)

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        asyncio.run(story(stranger.pid))
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_that_ends_is_noticed_within_a_second(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "echo $$ > pid; sleep 60"))
            pid = await written(tmp_path / "pid")
        async with launching(tmp_path) as (_, exits):
            begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            assert "SIGKILL" in await exits.next()
            # The shell's sleep goes on at first, and is ended as well.
            assert time.monotonic() - begun < 1

    asyncio.run(story())


def test_a_halted_keeper_is_stopped_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "sleep 60"))
            os.kill(keeper_of(tmp_path), signal.SIGSTOP)
            await launcher.stop("a", 1, 5.0)

    asyncio.run(story())


def test_a_keeper_that_heeds_nothing_is_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: Those
) -> None:
    def unheeded(keeper: Watched, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            ask(keeper, number)

    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "sleep 60"))
            await launcher.stop("a", 1, 0.05)
            assert look(keeper_of(tmp_path)) is None

    monkeypatch.setattr(launchers, "KILL_S", 0.05)
    monkeypatch.setattr(launchers, "ask", unheeded)
    asyncio.run(story())
    be_init(older)


def test_a_keeper_that_is_told_to_end_from_outside_ends_the_attempt_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, "sleep 60"))
            os.kill(keeper_of(tmp_path), signal.SIGTERM)
            assert await exits.next() == "it was told to end from outside (SIGTERM)"
            for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal, say: not meant for it
                await launcher.start(shell(tmp_path, "sleep 60", number=2))
                keeper = Watched(int(json.loads(_second(tmp_path).read_text())["keeper"][0]))
                ask(keeper, number)
                keeper.close()
            await asyncio.sleep(0.1)
            assert len(exits.heard) == 1
            await launcher.stop("a", 2, 5.0)

    asyncio.run(story())


def _second(folder: Path) -> Path:
    return started(folder).with_name("2.started")
