"""The journal on a real disk: what it has promised is there after anything, and nothing is made of what is damaged."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.service.journal import (
    KEPT_IMAGES,
    Batch,
    Image,
    JournalDamaged,
    Owned,
    Record,
    SqliteJournal,
    checksum,
)

JOB = JobSpec(
    "job ü", PhaseSpec(50.5, 2, resident_bytes=10**15, pause_s=0.0), PhaseSpec(1e-3, gpus=8), 1.5, tail=Tail(10, 2, 1.0)
)
SAMPLES: dict[Any, Any] = {str: "a 'quoted' ü\n", int: 7, float: 0.1 + 0.2, JobSpec: JOB, PhaseKind: PhaseKind.SYNC}
SAMPLES[tuple[ev.Heartbeat, ...]] = (ev.Heartbeat("a", 3), ev.Heartbeat("b", 4))
EVENTS = [kind(*(SAMPLES[get_type_hints(kind)[f.name]] for f in fields(kind))) for kind in get_args(ev.Event)]


def record(seq: int, event: ev.Event | None = None) -> Record:
    return Record(seq, seq / 3, event or ev.Heartbeat("A", seq), 2**32 - seq)


def batch(first: int, last: int) -> Batch:
    return Batch(tuple(record(seq) for seq in range(first, last + 1)))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(tmp_path / "journal.db")) as opened:
        yield opened


def edit(journal: SqliteJournal, statement: str) -> None:
    """Somebody else writes into the file."""
    journal.close()
    with closing(sqlite3.connect(journal.path)) as other:
        other.execute(statement)
        other.commit()


def durable(path: Path) -> list[Record]:
    with closing(SqliteJournal(path)) as again:
        return list(again.records())


def test_every_event_comes_back_as_it_was(tmp_path: Path) -> None:
    assert all(is_dataclass(event) for event in EVENTS)
    written = [record(seq, event) for seq, event in enumerate(EVENTS, 1)]
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(Batch(tuple(written)))
    assert durable(tmp_path / "journal.db") == written


def test_records_are_read_from_any_one_on(journal: SqliteJournal) -> None:
    journal.append(batch(1, 3))
    journal.append(batch(4, 9))
    assert [each.seq for each in journal.records(5)] == [6, 7, 8, 9]
    assert list(journal.records(9)) == []


def test_a_new_journal_says_nothing_and_then_what_it_was_begun_with(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert (journal.head(), journal.image(), list(journal.owned())) == ({}, None, [])
        journal.begin({"version": 1, "cluster": {"name": "ü"}})
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert journal.head() == {"version": 1, "cluster": {"name": "ü"}}


def test_submissions_are_kept_beside_their_records(journal: SqliteJournal) -> None:
    first, second = Owned("B", "team", {"name": "B", "slo": 1.5}), Owned("A", "team", {"name": "A"})
    journal.append(Batch((record(1),), (first,)))
    journal.append(Batch((record(2),), (second,)))
    assert {each.job_id: each for each in journal.owned()} == {"A": second, "B": first}


def test_a_batch_is_there_as_a_whole_or_not_at_all(journal: SqliteJournal) -> None:
    journal.append(batch(1, 2))
    with pytest.raises(sqlite3.IntegrityError):
        journal.append(Batch((record(3), record(2)), (Owned("A", "team", {}),)))
    assert [each.seq for each in journal.records()] == [1, 2]
    assert list(journal.owned()) == []
    journal.append(batch(3, 3))


def test_the_latest_images_are_kept(journal: SqliteJournal) -> None:
    for seq in (10, 20, 30):
        journal.keep(Image(seq, seq / 7, {"seq": seq}))
    assert journal.image() == Image(30, 30 / 7, {"seq": 30})
    edit(journal, "DELETE FROM images WHERE seq = 30")
    with closing(sqlite3.connect(journal.path)) as other:
        assert other.execute("SELECT count(*) FROM images").fetchone() == (KEPT_IMAGES - 1,)


@pytest.mark.parametrize("damage", ["x'00'", "substr(state, 1, length(state) - 1)", "''", "'not bytes'"])
def test_a_damaged_image_is_passed_over_for_the_one_before(journal: SqliteJournal, damage: str) -> None:
    journal.keep(Image(10, 1.0, {"seq": 10}))
    journal.keep(Image(20, 2.0, {"seq": 20}))
    edit(journal, f"UPDATE images SET state = {damage} WHERE seq = 20")
    with closing(SqliteJournal(journal.path)) as again:
        assert again.image() == Image(10, 1.0, {"seq": 10})


def test_an_image_of_another_time_is_passed_over(journal: SqliteJournal) -> None:
    journal.keep(Image(10, 1.0, {"seq": 10}))
    journal.keep(Image(20, 2.0, {"seq": 20}))
    edit(journal, "UPDATE images SET at = 2.5, seq = 21 WHERE seq = 20")
    with closing(SqliteJournal(journal.path)) as again:
        assert again.image() == Image(10, 1.0, {"seq": 10})


def test_a_changed_submission_is_noticed(journal: SqliteJournal) -> None:
    journal.append(Batch((record(1),), (Owned("A", "team", {"command": ["a"]}),)))
    edit(journal, "UPDATE owned SET tenant = 'other'")
    with closing(SqliteJournal(journal.path)) as again, pytest.raises(JournalDamaged, match="job 'A' is not as it was"):
        list(again.owned())


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


def test_a_missing_record_is_named(journal: SqliteJournal) -> None:
    journal.append(batch(1, 5))
    edit(journal, "DELETE FROM records WHERE seq = 3")
    with pytest.raises(JournalDamaged, match="record 3 is missing, the next is 4"):
        durable(journal.path)


@pytest.mark.parametrize(
    "change", ["at = at + 1e-9", "event = replace(event, 'A', 'B')", "told = told + 1", "event = 'not JSON'", "seq = 6"]
)
def test_a_changed_record_is_noticed(journal: SqliteJournal, change: str) -> None:
    journal.append(batch(1, 5))
    edit(journal, f"UPDATE records SET {change} WHERE seq = 5")
    with pytest.raises(JournalDamaged, match=r"record 5 is (not as it was written|missing)"):
        durable(journal.path)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("something else " * 1000)
    with pytest.raises(JournalDamaged, match="not a database"):
        SqliteJournal(tmp_path / "journal.db")


def test_a_second_opener_is_refused_and_the_first_goes_on(journal: SqliteJournal) -> None:
    with pytest.raises(JournalDamaged, match="is another controller using it"):
        SqliteJournal(journal.path)
    journal.append(batch(1, 1))


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


def test_a_full_disk_raises_and_what_was_durable_stays(journal: SqliteJournal) -> None:
    journal.append(batch(1, 5))
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        journal.append(batch(6, 2_000))
    assert [each.seq for each in journal.records()] == [1, 2, 3, 4, 5]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        journal.keep(Image(5, 1.0, list(range(100_000))))
    assert journal.image() is None
    journal._db.execute("PRAGMA max_page_count = 1000000")
    journal.append(batch(6, 2_000))
    assert len(list(journal.records())) == 2_000


LIMITED = """
import resource, signal, sqlite3, sys
from rollmux.service.journal import SqliteJournal
from tests.service.test_journal import batch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
journal, last = SqliteJournal(sys.argv[1]), 0
try:
    while True:
        journal.append(batch(last + 1, last + 10))
        last += 10
except sqlite3.OperationalError as error:
    print(last, len(list(journal.records())), error)
"""

WRITER = """
import sys
from rollmux.service.journal import SqliteJournal
from tests.service.test_journal import batch
journal, last = SqliteJournal(sys.argv[1]), 0
while True:
    journal.append(batch(last + 1, last + 3))
    last += 3
    print(last, flush=True)
"""


def test_a_file_that_may_not_grow_raises_and_what_was_durable_is_found_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "journal.db")]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split(maxsplit=2)
    assert told[0] == told[1]
    assert int(told[0]) > 0
    assert durable(tmp_path / "journal.db") == [record(seq) for seq in range(1, int(told[0]) + 1)]


@pytest.mark.parametrize("lines", [1, 20, 150])
def test_a_killed_writer_loses_nothing_that_it_had_called_durable(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "journal.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    found = durable(tmp_path / "journal.db")
    assert found == [record(seq) for seq in range(1, len(found) + 1)]
    assert len(found) >= said[-1]
    assert len(found) % 3 == 0


def test_the_checksum_tells_any_two_outcomes_apart() -> None:
    outcomes: list[tuple[cmd.Command, ...]] = [
        (),
        (cmd.Pause("A", 1, ("n",)),),
        (cmd.Pause("A", 2, ("n",)),),
        (cmd.Offload("A", 1, ("n",)),),
        (cmd.Pause("A", 1, ("n",)), cmd.Pause("A", 1, ("n",))),
    ]
    assert len({checksum(outcome) for outcome in outcomes}) == len(outcomes)
