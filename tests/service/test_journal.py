"""In a file and on a server: what a journal has promised is there, and nothing is made of what is damaged."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from math import inf
from typing import Any, get_args, get_type_hints

import psycopg
import pytest

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, finite
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
from rollmux.service.journal import KEPT_IMAGES, Batch, Image, Journal, JournalDamaged, Owned, checksum, written
from rollmux.service.journal.place import FILE
from tests.service.journals import Place, batch, begun, durable, record

TEXT = "a 'quoted' \"ü\" \\ \\u0000 \0 \n ? % %s %(a)s {}"
JOB = JobSpec(
    "job ü", PhaseSpec(50.5, 2, resident_bytes=10**15, pause_s=0.0), PhaseSpec(1e-3, gpus=8), 1.5, tail=Tail(10, 2, 1.0)
)
SAMPLES: dict[Any, Any] = {str: TEXT, int: 7, float: 0.1 + 0.2, JobSpec: JOB, PhaseKind: PhaseKind.SYNC}
SAMPLES |= {tuple[float, float] | None: (0.5, 1e-3), int | None: 10**13}
SAMPLES |= {
    Cluster: Cluster(PAPER_CLUSTER.rollout, finite(PAPER_ROLLOUT, PAPER_TRAIN).train),
    tuple[str, ...]: (TEXT, "b"),
}
SAMPLES[tuple[ev.Heartbeat, ...]] = (ev.Heartbeat("a", 3), ev.Heartbeat("b", 4))
EVENTS = [kind(*(SAMPLES[get_type_hints(kind)[f.name]] for f in fields(kind))) for kind in get_args(ev.Event)]


@pytest.fixture
def journal(place: Place) -> Iterator[Journal]:
    with closing(begun(place)) as opened:
        yield opened


def edit(place: Place, journal: Journal, statement: str) -> None:
    """Somebody else writes into it."""
    journal.close()
    place.ask(statement)


def test_every_event_comes_back_as_it_was(place: Place) -> None:
    assert all(is_dataclass(event) for event in EVENTS)
    written = [record(seq, event) for seq, event in enumerate(EVENTS, 1)]
    with closing(begun(place)) as journal:
        journal.append(Batch(tuple(written)))
    assert durable(place) == written


def test_records_are_read_from_any_one_on(journal: Journal) -> None:
    journal.append(batch(1, 3))
    journal.append(batch(4, 9))
    assert [each.seq for each in journal.records(5)] == [6, 7, 8, 9]
    assert list(journal.records(9)) == []


def test_a_new_journal_says_nothing_and_then_what_it_was_begun_with(place: Place) -> None:
    with closing(begun(place)) as journal:
        assert (journal.head(), journal.image(), list(journal.owned())) == ({}, None, [])
        journal.begin({"version": 1, "cluster": {"name": "ü"}})
    with closing(begun(place)) as journal:
        assert journal.head() == {"version": 1, "cluster": {"name": "ü"}}


def test_submissions_are_kept_beside_their_records(journal: Journal) -> None:
    first, second = Owned("B ü'\"\\?%s", "team", {"name": TEXT, "slo": 1.5}), Owned("A", "team", {"name": "A"})
    journal.append(Batch((record(1),), (first,)))
    journal.append(Batch((record(2),), (second,)))
    assert {each.job_id: each for each in journal.owned()} == {"A": second, first.job_id: first}
    came = replace(first, came=True)
    journal.append(Batch((), (came,)))
    assert {each.job_id: each for each in journal.owned()} == {"A": second, first.job_id: came}


def test_a_batch_is_there_as_a_whole_or_not_at_all(journal: Journal) -> None:
    journal.append(batch(1, 2))
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        journal.append(Batch((record(3), record(2)), (Owned("A", "team", {}),)))
    assert [each.seq for each in journal.records()] == [1, 2]
    assert list(journal.owned()) == []
    journal.append(batch(3, 3))


def test_the_latest_images_are_kept(place: Place, journal: Journal) -> None:
    for seq in (10, 20, 30):
        journal.keep(Image(seq, seq / 7, {"seq": seq}))
    assert journal.image() == Image(30, 30 / 7, {"seq": 30})
    edit(place, journal, "DELETE FROM images WHERE seq = 30")
    assert place.ask("SELECT count(*) FROM images") == [(KEPT_IMAGES - 1,)]


@pytest.mark.parametrize("damage", ["substr(state, 2)", "substr(state, 1, length(state) - 1)", "''", "'not bytes'"])
def test_a_damaged_image_is_passed_over_for_the_one_before(place: Place, journal: Journal, damage: str) -> None:
    journal.keep(Image(10, 1.0, {"seq": 10}))
    journal.keep(Image(20, 2.0, {"seq": 20}))
    edit(place, journal, f"UPDATE images SET state = {damage} WHERE seq = 20")
    with closing(begun(place)) as again:
        assert again.image() == Image(10, 1.0, {"seq": 10})


def test_an_image_of_another_time_is_passed_over(place: Place, journal: Journal) -> None:
    journal.keep(Image(10, 1.0, {"seq": 10}))
    journal.keep(Image(20, 2.0, {"seq": 20}))
    edit(place, journal, "UPDATE images SET at = 2.5, seq = 21 WHERE seq = 20")
    with closing(begun(place)) as again:
        assert again.image() == Image(10, 1.0, {"seq": 10})


def test_a_changed_submission_is_noticed(place: Place, journal: Journal) -> None:
    journal.append(Batch((record(1),), (Owned("A", "team", {"command": ["a"]}),)))
    edit(place, journal, "UPDATE owned SET tenant = 'other'")
    with closing(begun(place)) as again, pytest.raises(JournalDamaged, match="job 'A' is not as it was"):
        list(again.owned())


def test_a_damaged_head_is_noticed(place: Place, journal: Journal) -> None:
    journal.begin({"cluster": 1})
    edit(place, journal, "UPDATE head SET value = '{' WHERE name = 'cluster'")
    with pytest.raises(JournalDamaged, match="what it was begun with"), closing(begun(place)) as again:
        again.head()


@pytest.mark.parametrize(
    "text", ['{"type":"JobRenamed","job_id":"A"}', '{"type":"Tick","colour":3}', '{"type":"JobCancelled"}', "[]"]
)
def test_a_record_that_only_another_version_can_read_is_named(
    place: Place, journal: Journal, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "as_text", lambda _: text)
    journal.append(batch(1, 1))
    journal.close()
    with pytest.raises(JournalDamaged, match=r"record 1 can't be read .*another version of the program"):
        durable(place)


def test_a_missing_record_is_named(place: Place, journal: Journal) -> None:
    journal.append(batch(1, 5))
    edit(place, journal, "DELETE FROM records WHERE seq = 3")
    with pytest.raises(JournalDamaged, match="record 3 is missing, the next is 4"):
        durable(place)


@pytest.mark.parametrize(
    "change", ["at = at + 1e-9", "event = replace(event, 'A', 'B')", "told = told + 1", "event = 'not JSON'", "seq = 6"]
)
def test_a_changed_record_is_noticed(place: Place, journal: Journal, change: str) -> None:
    journal.append(batch(1, 5))
    edit(place, journal, f"UPDATE records SET {change} WHERE seq = 5")
    with pytest.raises(JournalDamaged, match=r"record 5 is (not as it was written|missing)"):
        durable(place)


WRITER = """
import sys
from pathlib import Path
from rollmux.service.journal.place import opened
from tests.service.journals import batch
journal, last = opened(sys.argv[1])(Path(sys.argv[2])), 0
while True:
    journal.append(batch(last + 1, last + 3))
    last += 3
    print(last, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 20, 150])
def test_a_killed_writer_loses_nothing_that_it_had_called_durable(place: Place, lines: int) -> None:
    command = [sys.executable, "-c", WRITER, place.url, str(place.folder / FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    found = durable(place)
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


def test_an_image_that_was_made_while_no_clock_went_is_passed_over(journal: Journal) -> None:
    """Controllers that ended before their first record have left such."""
    journal.keep(Image(0, -inf, {"now": "-inf"}))
    assert journal.image() is None
    journal.append(batch(1, 1))
    journal.keep(Image(1, 0.5, {"now": 0.5}))
    assert journal.image() == Image(1, 0.5, {"now": 0.5})
