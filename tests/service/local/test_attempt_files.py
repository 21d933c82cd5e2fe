"""What attempts print and what is remembered of them: readable from the end, bounded, and in its own place."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.mux.validation import MAX_ID_LENGTH
from rollmux.service.local.attempt_files import KEPT_ATTEMPTS, KEPT_JOBS, AttemptFiles, Key, file_name
from rollmux.service.local.attempt_log import AttemptLog, tail
from rollmux.service.local.durable import write
from rollmux.service.local.kept import OPTIONS, ROOT
from tests.service.local.launching import launching, nothing_left, shell, until

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=MAX_ID_LENGTH)
ODD_NAMES = ["../../out", "..", ".", "a/b", "/etc", "%2E", "a b*[?]", "é" * MAX_ID_LENGTH, "𝄞" * MAX_ID_LENGTH]


@pytest.fixture(autouse=True, scope="module")  # once: hypothesis wants no fixture for each test
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


@given(st.lists(st.one_of(NAMES, st.sampled_from(ODD_NAMES)), unique=True))
def test_each_job_has_a_file_name_of_its_own_that_means_nothing_else(names: list[str]) -> None:
    found = [file_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(name.isascii() and not set(name) & set("./\0*?[ ") and 0 < len(name) <= 200 for name in found)


def test_jobs_with_odd_names_are_kept_apart_and_within_the_folder(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path / "home") as (launcher, exits):
            (tmp_path / "home/work").mkdir()
            for i, name in enumerate(ODD_NAMES):
                await launcher.start(shell(tmp_path / "home/work", f"echo {i}", name=name))
            await until(lambda: len(exits.heard) == len(ODD_NAMES))
            assert {heard[0] for heard in exits.heard} == set(ODD_NAMES)
            assert [await launcher.log(name, 9) for name in ODD_NAMES] == [[str(i)] for i in range(len(ODD_NAMES))]
        async with launching(tmp_path / "home") as (_, later):
            assert later.heard == []

    (tmp_path / "home").mkdir()
    asyncio.run(story())
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert len(list((tmp_path / "home/state/logs").iterdir())) == len(ODD_NAMES)


def test_however_much_is_printed_the_latest_is_kept_and_the_disk_is_spared(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path, log_bytes=2**20) as (launcher, exits):
            await launcher.start(shell(tmp_path, "yes 0123456789 | head -c 77000000; echo end", processes=2))
            most = 0
            while not exits.heard:
                await asyncio.sleep(0.02)
                with suppress(FileNotFoundError):  # the older half may be thrown away just now
                    most = max(most, sum(path.stat().st_size for path in (tmp_path / "state").rglob("*.log*")))
            assert 0 < most <= 2**20
            assert await launcher.log("a", 4) == ["[0] 0123456789", "[0] end", "[1] 0123456789", "[1] end"]
            assert len(await launcher.log("a", 10_000)) == 10_000

    asyncio.run(story())


def test_a_job_does_not_feel_that_its_log_cant_be_written(tmp_path: Path) -> None:
    class OnFullDisk(AttemptFiles):
        def prepare(self, key: Key) -> None:
            super().prepare(key)
            Path(f"{self.log(key)}.0.log").symlink_to("/dev/full")

    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            launcher.files = OnFullDisk(tmp_path / "state")
            await launcher.start(shell(tmp_path, "seq 100000 && exit 3"))
            assert await exits.next() == "rank 0 ended with exit code 3; its last line: 100000"

    asyncio.run(story())


@pytest.mark.parametrize("begun", [False, True])
def test_a_disk_that_had_no_room_for_a_file_for_a_moment_costs_what_was_printed_then(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*of: object) -> int:
        raise OSError(28, "No space left on device")

    def prints(text: bytes) -> None:
        os.write(log.end, text)
        log.read()

    with monkeypatch.context() as patch:
        if not begun:
            patch.setattr(os, "open", full)
        log = AttemptLog(f"{tmp_path}/1.0.log", 20)
        patch.setattr(os, "open", full)
        for _ in range(10):
            prints(b"early\n")
    prints(b"\nlate\n")
    said = tail(log.path, 9, 9999)
    assert (said[0], said[-1]) == ("early" if begun else "", "late")
    log.started()
    os.close(log.pipe)


def test_the_log_is_that_of_the_latest_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        async with launching(tmp_path) as (launcher, exits):
            assert await launcher.log("a", 10) == []
            for number in (9, 10):
                await launcher.start(shell(tmp_path, f"printf 'x\\n{number}\\ty\\033[2J\\nlast'", number=number))
                await exits.next()
            assert await launcher.log("a", 2) == ["10\ty [2J", "last"]
            assert await launcher.log("a", 0) == []
            after = "until [ $ROLLMUX_RANK = 0 ] || [ -e said$((ROLLMUX_RANK - 1)) ]; do sleep 0.05; done"
            script = f"cd {tmp_path}; {after}; echo me; sleep 0.05; touch said$ROLLMUX_RANK"
            await launcher.start(shell(tmp_path, script, number=11, processes=5))
            await exits.next()
            assert await launcher.log("a", 2) == ["[3] me", "[4] me"]

    asyncio.run(story())


def test_old_attempts_and_jobs_are_forgotten_but_none_that_runs(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    numbers = range(1, KEPT_ATTEMPTS + 3)
    for i in range(KEPT_JOBS + 3):
        for number in numbers if i < 2 else (1,):
            files.prepare((f"j{i}", number))
            for name in (files.log((f"j{i}", number)), files.record((f"j{i}", number))):
                Path(f"{name}.0.log").touch()
        os.utime(files.record((f"j{i}", 1)).parent, (i, i))
    files.prune({("j0", 2)})
    jobs = {f"j{i}" for i in (0, *range(3, KEPT_JOBS + 3))}
    for folder in (tmp_path / "logs", tmp_path / "attempts"):
        assert {path.name for path in folder.iterdir()} == jobs
        assert {path.name for path in (folder / "j0").iterdir()} == {f"{n}.0.log" for n in (2, *numbers[2:])}
        assert [path.name for path in (folder / "j3").iterdir()] == ["1.0.log"]


def test_of_an_older_job_of_that_name_nothing_is_left_but_records_of_what_may_still_run(tmp_path: Path) -> None:
    """A new journal beside an old folder counts attempts from 1 again."""
    files = AttemptFiles(tmp_path)
    for number in range(1, 6):
        files.prepare(("a", number))
        Path(f"{files.log(('a', number))}.0.log").write_text(f"older {number}\n")
        for what in ("started", "ended") if number < 5 else ("started",):
            write(f"{files.record(('a', number))}.{what}", {"failed": ""})
    files.prepare(("a", 2))
    assert files.tail("a", 9) == ["older 1"]
    assert {path.name for path in (tmp_path / "attempts/a").iterdir()} == {"1.started", "1.ended", "5.started"}
    Path(f"{files.log(('a', 2))}.0.log").write_text("newer\n")
    assert files.tail("a", 9) == ["newer"]


def test_what_somebody_has_put_beside_the_files_of_attempts_is_left_alone(tmp_path: Path) -> None:
    """Such as a log under another name. Else no attempt of the job could be started, nor its log be read."""
    files = AttemptFiles(tmp_path)
    files.prepare(("a", 1))
    Path(f"{files.log(('a', 1))}.0.log").write_text("mine\n")
    beside = {"1-old.log", "1.old.log", "notes"}
    for folder, name in itertools.product(("logs", "attempts"), beside):
        (tmp_path / folder / "a" / name).write_text("somebody's\n")
    assert files.tail("a", 9) == ["mine"]
    files.prune(())
    files.prepare(("a", 2))
    assert {path.name for path in (tmp_path / "logs/a").iterdir()} == {"1.0.log", *beside}


def test_nobody_else_puts_anything_among_what_is_remembered_of_attempts(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AttemptFiles(tmp_path).prepare(("a", 1))
    finally:
        os.umask(before)
    found = {str(each.relative_to(tmp_path)): each.stat().st_mode & 0o777 for each in tmp_path.rglob("*")}
    assert found == dict.fromkeys(("logs", "logs/a", "attempts", "attempts/a"), 0o700)


def test_a_log_that_all_have_closed_is_at_its_end(tmp_path: Path) -> None:
    """Else its keeper would look at it over and over again for as long as the rank goes on."""
    log = AttemptLog(f"{tmp_path}/1.0.log", 99)
    os.write(log.end, b"said")
    assert (log.read(), log.read()) == (True, False)
    log.started()
    assert log.read() is None
    os.close(log.pipe)


def test_a_record_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for content in ({"failed": "x" * 9999}, {"failed": ""}):
        write(str(tmp_path / "record"), content)
        assert AttemptFiles(tmp_path).ended(("a", 1)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_a_record_is_whole_though_a_write_before_it_broke_off(tmp_path: Path) -> None:
    record = tmp_path / "record"
    Path(f"{record}.tmp").write_bytes(b"x" * 9999)
    write(str(record), {"failed": ""})
    assert json.loads(record.read_bytes()) == {"failed": ""}


def test_a_keeper_loads_little() -> None:
    program = """
import sys
sys.path.append(sys.argv[1])
import rollmux.service.local.keeper
print(*sorted(name for name in sys.modules if name.startswith("rollmux")))
print(*sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
print(*sorted({"asyncio", "dataclasses", "pathlib", "inspect", "logging"} & set(sys.modules)))
"""
    command = [sys.executable, *OPTIONS, program, ROOT]
    ours, others, heavy = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    parts = ["attempt_log", "by_proc", "durable", "keeper", "kinship", "memory", "process", "process_tree", "rank"]
    packages = ["rollmux", "rollmux.plain", "rollmux.service", "rollmux.service.local"]
    assert ours.split() == [*packages, *(f"rollmux.service.local.{part}" for part in parts), "rollmux.system"]
    assert set(others.split()) <= {"__main__", "rollmux"}
    assert heavy == ""
