"""The journal in a file on a real disk: what damage, power cuts and full disks leave of it."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest

from rollmux.service.journal import (
    Batch,
    Image,
    Journal,
    JournalAway,
    JournalDamaged,
    Record,
    SqliteJournal,
    sqlite,
    tables,
)
from rollmux.service.journal.place import to_read
from tests.service.journals import batch, record
from tests.service.test_disk import small_disk


def durable(path: Path) -> list[Record]:
    with closing(SqliteJournal(path)) as again:
        return list(again.records(again.begins()))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(tmp_path / "journal.db")) as opened:
        yield opened


def test_a_journal_is_its_owners_alone_in_a_folder_that_is_open_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
            journal.append(batch(1, 3))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"journal.db", "journal.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_an_append_is_on_the_disk_when_it_returns(journal: SqliteJournal) -> None:
    """What SQLite calls FULL: it syncs its log with each commit."""
    assert [list(journal._rows(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous")] == [[("wal",)], [(2,)]]


def test_a_copy_is_on_the_disk_once_it_has_its_name(
    journal: SqliteJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, copy = list[int](), tmp_path / "copy.db"

    def fsync(file: int) -> None:
        assert not copy.exists()
        synced.append(os.fstat(file).st_ino)

    journal.append(batch(1, 3))
    monkeypatch.setattr(os, "fsync", fsync)
    journal.copy(copy)
    assert synced == [copy.stat().st_ino]


def test_no_damage_of_the_file_gives_other_records(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(batch(1, 300))
    whole = (tmp_path / "journal.db").read_bytes()
    written, refused = [record(seq) for seq in range(1, 301)], 0
    for place in range(0, len(whole), len(whole) // 97):
        damaged = bytearray(whole)
        damaged[place : place + 40] = bytes(40)
        (tmp_path / "damaged.db").write_bytes(damaged)
        try:
            found = durable(tmp_path / "damaged.db")
            assert found == written[: len(found)]
        except JournalDamaged:
            refused += 1
    assert refused > 50


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("something else " * 1000)
    with pytest.raises(JournalDamaged, match=r"not a database$"):
        SqliteJournal(tmp_path / "journal.db")


@pytest.mark.parametrize(
    ("opener", "told"),
    [
        (SqliteJournal, "is another controller using it"),
        (partial(to_read, ""), "a controller is at work on it.*`rollmux journal backup`"),
    ],
    ids=["to write", "to read"],
)
def test_a_second_opener_is_refused_and_the_first_goes_on(
    journal: SqliteJournal, opener: Callable[[Path], Journal], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_S", 0.05)
    with pytest.raises(JournalDamaged, match=told):
        opener(journal.path)
    journal.append(batch(1, 1))


def test_a_journal_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    if not small_disk(disk):
        pytest.skip("file systems can't be mounted here")
    try:
        with closing(SqliteJournal(disk / "journal.db")) as journal:
            journal.append(batch(1, 3))
            shutil.copytree(disk, disk / "live")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with closing(to_read("", disk / "journal.db")) as found:
            assert [each.seq for each in found.records()] == [1, 2, 3]
        with pytest.raises(JournalDamaged, match="copy it, with what lies beside it, to where"):
            to_read("", disk / "live" / "journal.db")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_its_controller_left_beside_the_file_as_it_was_killed_is_read_too(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    journal.append(batch(1, 3))
    shutil.copytree(journal.path.parent, tmp_path / "killed")
    with closing(to_read("", tmp_path / "killed" / "journal.db")) as found:
        assert [each.seq for each in found.records()] == [1, 2, 3]


@pytest.mark.parametrize("trims", [False, True], ids=["grows", "shrinks"])
def test_a_journal_that_is_written_as_it_is_read_is_not_called_damaged(
    tmp_path: Path, trims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAGE", 10)
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(batch(1, 900))
    with closing(to_read("", journal.path)) as found:
        records = found.records()
        read = [next(records)]
        with closing(SqliteJournal(journal.path, keep_records=0)) as controller:
            if trims:
                controller.begin({}, after=890)
                controller.trim()
            controller.append(batch(901, 1800))
        with pytest.raises(JournalAway, match="was written as it was read; read it again"):
            read.extend(records)
        assert read == [record(seq) for seq in range(1, len(read) + 1)]
        with pytest.raises(JournalAway, match="read it again"):
            found.head()


def test_a_journal_that_cant_be_made_is_not_one_to_copy(tmp_path: Path) -> None:
    with pytest.raises(JournalDamaged, match=r"unable to open database file$"):
        SqliteJournal(tmp_path / "none" / "journal.db")


def test_reading_makes_no_journal_of_what_is_none(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
        other.execute("CREATE TABLE other (name TEXT)")
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(JournalAway, match="there is no journal in it"):
        to_read("", tmp_path / "journal.db")
    (tmp_path / "text.db").write_text("something else " * 1000)
    with pytest.raises(JournalDamaged, match=r"not a database$"):
        to_read("", tmp_path / "text.db")
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_torn_tail_loses_whole_batches_and_nothing_else(tmp_path: Path) -> None:
    """Copies of the files as a power cut may leave them: the log of writes cut at any byte."""
    sizes = [3, 1, 40, 2, 7]
    whole = {sum(sizes[:count]) for count in range(len(sizes) + 1)}
    (tmp_path / "live").mkdir()
    with closing(SqliteJournal(tmp_path / "live" / "journal.db")) as journal:
        for number, size in enumerate(sizes):
            journal.append(batch(sum(sizes[:number]) + 1, sum(sizes[:number]) + size))
        shutil.copytree(tmp_path / "live", tmp_path / "copy")
    log = (tmp_path / "copy" / "journal.db-wal").read_bytes()
    seen = set()
    for cut in [*range(0, len(log), max(1, len(log) // 60)), len(log) - 1, len(log)]:
        (tmp_path / "copy" / "journal.db-wal").write_bytes(log[:cut])
        torn = tmp_path / f"torn{cut}"
        shutil.copytree(tmp_path / "copy", torn)
        found = durable(torn / "journal.db")
        assert found == [record(seq) for seq in range(1, len(found) + 1)]
        assert len(found) in whole
        seen.add(len(found))
    assert max(whole) in seen
    assert len(seen) > 3


def test_flipped_bytes_in_the_log_lose_whole_batches_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with closing(SqliteJournal(tmp_path / "live" / "journal.db")) as journal:
        for seq in range(1, 9):
            journal.append(batch(seq, seq))
        shutil.copytree(tmp_path / "live", tmp_path / "copy")
    log = (tmp_path / "copy" / "journal.db-wal").read_bytes()
    for place in range(len(log) // 2, len(log), max(1, len(log) // 40)):
        damaged = bytearray(log)
        damaged[place] ^= 0xFF
        (tmp_path / "copy" / "journal.db-wal").write_bytes(damaged)
        torn = tmp_path / f"torn{place}"
        shutil.copytree(tmp_path / "copy", torn)
        found = durable(torn / "journal.db")
        assert found == [record(seq) for seq in range(1, len(found) + 1)]


def test_a_copy_that_is_made_amid_writes_is_one_state_and_no_write_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "COPIED_PAGES", 1)
    copy = tmp_path / "copy.db"
    with closing(SqliteJournal(tmp_path / "journal.db", keep_records=400)) as journal, ThreadPoolExecutor(1) as pool:
        journal.append(batch(1, 2000))
        last, copied = 2000, pool.submit(journal.copy, copy)
        while not copied.done():
            journal.append(batch(last + 1, last + 9))
            last += 9
            if last % 5 == 0:
                journal.keep(Image(last, 1.0, {"seq": last}))
                journal.trim()
        copied.result()
        journal.copy(tmp_path / "again.db")
    assert last > 2100
    with closing(SqliteJournal(copy)) as found:
        records, latest = list(found.records(found.begins())), found.image()
        assert records == [record(seq) for seq in range(found.begins() + 1, records[-1].seq + 1)]
        assert 2000 < records[-1].seq <= last
        assert latest is not None
        assert latest.seq <= records[-1].seq
    assert durable(tmp_path / "again.db") == durable(tmp_path / "journal.db")


def test_a_copy_has_nothing_of_a_write_that_comes_to_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    journal.append(batch(1, 20))
    with ThreadPoolExecutor(1) as pool:
        with suppress(RuntimeError), journal._writing() as writes:
            writes.execute("DELETE FROM records WHERE seq > 10")
            copied = pool.submit(journal.copy, tmp_path / "copy.db")
            time.sleep(0.1)
            raise RuntimeError
        copied.result(5.0)
    assert durable(tmp_path / "copy.db") == list(batch(1, 20).records)


def test_a_copy_that_cant_be_made_or_whose_controller_ends_leaves_nothing_behind(
    journal: SqliteJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(batch(1, 2000))
    with pytest.raises(JournalAway, match="can't be copied"):
        journal.copy(tmp_path / "none" / "copy.db")
    monkeypatch.setattr(sqlite, "COPIED_PAGES", 1)
    monkeypatch.setattr(sqlite, "COPY_PAUSE_S", 0.05)
    with ThreadPoolExecutor(1) as pool:
        copied = pool.submit(journal.copy, tmp_path / "copy.db")
        while not (tmp_path / "copy.db.part").exists():
            time.sleep(0.01)
        journal.close()
        with pytest.raises(JournalAway, match="closed database"):
            copied.result(5.0)
    assert not list(tmp_path.glob("copy*"))


def test_a_full_disk_raises_and_what_was_durable_stays(journal: SqliteJournal) -> None:
    journal.append(batch(1, 5))
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalAway, match="full"):
        journal.append(batch(6, 2_000))
    assert [each.seq for each in journal.records()] == [1, 2, 3, 4, 5]
    with pytest.raises(JournalAway, match="full"):
        journal.keep(Image(5, 1.0, list(range(100_000))))
    assert journal.image() is None
    journal._db.execute("PRAGMA max_page_count = 1000000")
    journal.append(batch(6, 2_000))
    assert len(list(journal.records())) == 2_000


LIMITED = """
import resource, signal, sys
from rollmux.service.journal import JournalAway, SqliteJournal
from tests.service.journals import batch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
journal, last = SqliteJournal(sys.argv[1]), 0
try:
    while True:
        journal.append(batch(last + 1, last + 10))
        last += 10
except JournalAway as error:
    print(last, len(list(journal.records())), error)
"""


def test_a_file_that_may_not_grow_raises_and_what_was_durable_is_found_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "journal.db")]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split(maxsplit=2)
    assert told[0] == told[1]
    assert int(told[0]) > 0
    assert durable(tmp_path / "journal.db") == [record(seq) for seq in range(1, int(told[0]) + 1)]


def test_records_that_were_written_while_no_clock_went_are_of_the_beginning(journal: SqliteJournal) -> None:
    journal.append(Batch((replace(record(1), at=-inf), record(2))))
    assert [each.at for each in journal.records()] == [0.0, record(2).at]
