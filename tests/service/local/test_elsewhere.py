"""Attempts on a system that adopts no orphans, ends nobody with a parent and has no /proc: all that is kept is seen."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmux.service.local import by_proc, by_psutil, kept, process_tree
from rollmux.service.local.attempt_files import AttemptFiles, file_name
from rollmux.service.local.launcher import VANISHED
from rollmux.service.local.process import Process
from rollmux.service.local.rank import how_ended
from tests.service.local.launching import (
    PATIENCE_S,
    STUBBORN_DAEMON,
    Those,
    be_init,
    launching,
    nothing_left,
    shell,
    written,
)

ROOT = Path(__file__).parents[3]
KEEPER_ELSEWHERE = f"""
import sys
sys.path += [{kept.ROOT!r}, {str(ROOT)!r}]
from tests.elsewhere import be_elsewhere
be_elsewhere()
del sys.path[-2:]
"""


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch, elsewhere: None) -> Iterator[Those]:
    with nothing_left() as found, monkeypatch.context() as patched:
        for name in ("boot_id", "environ", "everything", "look", "ticks"):
            patched.setattr(process_tree, name, getattr(by_psutil, name))
        patched.setattr(kept, "FOLDERS", by_psutil.FOLDERS)
        patched.setattr(kept, "_PROGRAM", KEEPER_ELSEWHERE + kept._PROGRAM)
        yield found
        be_init(found)


def keeper_of(folder: Path) -> int:
    found = AttemptFiles(folder / "state").started(("a", 1))
    assert found is not None
    return found.keeper.pid


def test_both_ways_to_look_see_the_same() -> None:
    seen = [of.look(os.getpid()) for of in (by_proc, by_psutil)]
    assert [each and each._replace(start=0) for each in seen] == [
        Process(os.getpid(), os.getppid(), os.getsid(0), 0, True)
    ] * 2
    assert by_proc.look(2**22 + 1) is by_psutil.look(2**22 + 1) is None
    assert {each.pid for each in by_psutil.everything()} >= {os.getpid(), os.getppid()}
    assert by_proc.environ(os.getpid()).split(b"\0") == by_psutil.environ(os.getpid()).split(b"\0")
    assert by_psutil.environ(2**22 + 1) == b""


def test_a_start_is_before_what_comes_later_and_the_same_for_all_who_look() -> None:
    found = by_psutil.look(os.getpid())
    assert found is not None
    assert found.start <= by_psutil.ticks()
    program = f"from rollmux.service.local.by_psutil import look; print(look({os.getpid()}).start)"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(told) == found.start


def test_an_attempt_ends_with_what_its_ranks_say(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, "echo $ROLLMUX_RANK; exit 3", processes=2))
            failed = await exits.next()
            assert failed.partition(" ended")[2] in (f" with exit code 3; its last line: {rank}" for rank in (0, 1))

    asyncio.run(story())


@pytest.mark.parametrize("then", ["exit 0", "kill -9 $$"])
def test_what_a_rank_leaves_behind_in_a_session_of_its_own_is_ended(then: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, f"{STUBBORN_DAEMON}; {then}"))
            await exits.next()
            daemon = await written(tmp_path / "daemon")
            assert (found := by_proc.look(daemon)) is None or not found.alive

    asyncio.run(story())


def test_stop_returns_when_all_is_gone_even_what_hides_and_takes_no_hint(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, f"trap '' TERM; {STUBBORN_DAEMON}; sleep 60 & sleep 60; wait"))
            daemon = await written(tmp_path / "daemon")
            await launcher.stop("a", 1, 0.1)
            assert (found := by_proc.look(daemon)) is None or not found.alive
            assert exits.heard == []

    asyncio.run(story())


def test_what_ends_itself_in_a_session_of_its_own_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    stray = (
        """setsid sh -c 'trap "sleep 0.3; exit" TERM; echo $$ > stray; sleep 60 & wait' > /dev/null 2>&1 & sleep 60"""
    )

    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, stray))
            await written(tmp_path / "stray")
            async with asyncio.timeout(PATIENCE_S):
                await launcher.stop("a", 1, 60.0)

    asyncio.run(story())


def test_what_a_keeper_kept_that_was_killed_is_ended_before_that_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            await launcher.start(shell(tmp_path, f"echo $$ > rank; {STUBBORN_DAEMON}; sleep 60"))
            pids = [await written(tmp_path / name) for name in ("rank", "daemon")]
            os.kill(keeper_of(tmp_path), signal.SIGKILL)
            assert await exits.next() == VANISHED
            assert [found for pid in pids if (found := by_proc.look(pid)) is not None and found.alive] == []

    asyncio.run(story())


def test_the_next_controller_goes_on_with_what_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, _):
            await launcher.start(shell(tmp_path, "echo 1 > up; while [ ! -e enough ]; do sleep 0.01; done; exit 5"))
            await written(tmp_path / "up")
        async with launching(tmp_path) as (_, exits):
            assert exits.running == {("a", 1)}
            (tmp_path / "enough").touch()
            assert await exits.next() == "rank 0 ended with exit code 5; it printed nothing"

    asyncio.run(story())


def test_an_exit_code_of_a_shell_is_named_where_no_last_signal_is_known() -> None:
    assert how_ended(128 + signal.SIGTERM) == "ended with exit code 143 (SIGTERM of what it ran)"
    assert how_ended(255) == "ended with exit code 255"


def test_jobs_that_differ_in_large_letters_alone_have_files_of_their_own() -> None:
    names = {file_name(name).lower() for name in ("job", "Job", "jOb", "a.b", "a%2eb")}
    assert len(names) == 5
    assert "job" in names
