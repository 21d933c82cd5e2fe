"""What is too old goes, a little at a time; what a restart or a reader needs stays, and says where it begins."""

from contextlib import closing
from dataclasses import replace
from inspect import signature
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.cli.serve import serve
from rollmux.errors import RollmuxError
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Rules
from rollmux.mux.image import image, to_json
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.service.controller import FORGET_AT_ONCE, Controller
from rollmux.service.journal import KEEP_RECORDS, KEPT_IMAGES, Batch, Image, Journal, JournalDamaged, Owned
from rollmux.service.journal.history import PARTS, PORTION, history
from rollmux.service.journal.place import FILE, to_read
from rollmux.service.recovery import recover, replayed
from tests.service.journals import Place, batch, begun, durable, record
from tests.service.test_recovery import JOB
from tests.service.world import CLUSTERS, RULES

CLUSTER = CLUSTERS[0]


@given(st.integers(0, 500), st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_the_history_is_as_long_as_wanted_and_not_much_longer(keep: int, steps: list[int]) -> None:
    begins, images = 0, list[int]()
    for number, seq in enumerate(accumulate(steps), 1):
        before = begins
        begins, images = history([*images, seq], begins, keep)
        assert begins >= before
        assert begins == 0 or begins in images
        assert images == sorted(set(images))
        assert images[-1] == seq
        assert len(images) >= min(KEPT_IMAGES, number)
        assert begins == 0 or begins <= min(images[-KEPT_IMAGES], seq - keep)
        assert seq - begins <= keep + keep // PARTS + 3 * max(steps)
        assert len(images) <= PARTS + 2 + KEPT_IMAGES


def test_the_command_keeps_as_much_as_a_journal_does_by_itself() -> None:
    assert signature(serve).parameters["keep_records"].default == KEEP_RECORDS


def test_old_records_go_in_portions_and_the_rest_is_read_as_before(place: Place) -> None:
    total = 3 * PORTION
    with closing(begun(place, 100)) as journal:
        journal.begin({"cluster": 1})
        for first in range(1, total, 100):
            journal.append(batch(first, first + 99))
            journal.keep(Image(first + 99, 1.0, {"seq": first + 99}))
        assert journal.begins() == total - 100
        assert journal.trim()
    assert place.ask("SELECT count(*) FROM records") == [(total - PORTION,)]
    with closing(begun(place, 100)) as journal:  # as one that was killed amid it and starts again
        assert journal.trim()
        assert not journal.trim()
        assert not journal.trim()
        assert journal.head() == {"cluster": 1}
        assert journal.image() == Image(total, 1.0, {"seq": total})
        assert journal.image(total - 100) == Image(total - 100, 1.0, {"seq": total - 100})
        with pytest.raises(JournalDamaged, match=f"its history begins after record {total - 100}"):
            next(journal.records())
        journal.append(batch(total + 1, total + 1))
    assert place.ask("SELECT count(*) FROM records") == [(101,)]
    assert durable(place) == [record(seq) for seq in range(total - 99, total + 2)]


def test_nothing_goes_as_long_as_there_is_one_image_alone(place: Place) -> None:
    with closing(begun(place, 0)) as journal:
        journal.append(batch(1, 5))
        journal.keep(Image(5, 1.0, {}))
        assert (journal.begins(), journal.trim()) == (0, False)
        assert len(list(journal.records())) == 5


def test_submissions_of_forgotten_jobs_go_and_one_of_the_same_name_stays(place: Place) -> None:
    old, new, other = Owned("A", "team", {"v": 1}), Owned("A", "others", {"v": 2}), Owned("B", "team", {})
    with closing(begun(place)) as journal:
        journal.append(Batch((record(1),), (old, other)))
        journal.append(Batch((record(2),), (new,), ("A",)))
        assert {each.job_id: each for each in journal.owned()} == {"A": new, "B": other}
        journal.append(Batch((record(3),), (), ("A", "nobody")))
        assert list(journal.owned()) == [other]


def lived(journal: Journal, jobs: int, rules: Rules = RULES) -> Controller:
    """Jobs that come and go, each with an image at its end."""
    controller, now = recover(journal, CLUSTER, RollmuxPolicy(), rules)
    for number in range(jobs):
        job_id = f"job{number}"
        controller.submit(now + 1, "team", replace(JOB, job=replace(JOB.job, id=job_id)))
        for node, found in list(controller.machine.state.book.nodes.items()):
            if found.state.value == "coming":
                controller.tell(now + 2, ev.NodeJoined(node, found.pool))
        controller.tell(now + 3, ev.JobStarted(job_id, 1))
        controller.tell(now + 4, ev.JobFinished(job_id, 1))
        now += 4
        journal.append(controller.take()[0])
        state = controller.machine.state
        journal.keep(Image(state.ledger.seq, state.now, to_json(image(controller.machine))))
        while journal.trim():
            pass
    return controller


def test_a_controller_goes_on_from_what_is_left_and_its_history_is_proved(place: Place) -> None:
    with closing(begun(place, 8)) as journal:
        before = lived(journal, 12)
        assert journal.begins() > 0
    with closing(to_read(place.url, place.folder / FILE)) as journal:
        machine, entries = replayed(journal, lambda _: RollmuxPolicy())
        assert [entry.seq for entry in entries] == list(range(journal.begins() + 1, machine.state.ledger.seq + 1))
        assert not machine.log  # a million records, played again, are not to fill the memory
        assert image(machine) == image(before.machine)
    with closing(begun(place, 8)) as journal:
        after, _ = recover(journal, CLUSTER, RollmuxPolicy(), RULES)
        assert image(after.machine) == image(before.machine)
        assert after.jobs.keys() == before.jobs.keys()


def test_jobs_that_nobody_remembers_are_forgotten_in_the_journal_too(place: Place) -> None:
    with closing(begun(place)) as journal:
        controller = lived(journal, 9, replace(RULES, ended_limit=3))
        assert {each.job_id for each in journal.owned()} == controller.jobs.keys()
        assert len(controller.jobs) <= 4


@pytest.mark.parametrize("again", [False, True])
def test_submissions_that_were_left_over_go_unless_one_of_that_name_has_come_anew(place: Place, again: bool) -> None:
    with closing(begun(place)) as journal:
        lived(journal, 1)
        names = [*(f"left{number}" for number in range(FORGET_AT_ONCE)), "A"]  # more than go at once
        journal.append(Batch((), tuple(Owned(name, "team", {"left": "over"}) for name in names)))
        controller, now = recover(journal, CLUSTER, RollmuxPolicy(), RULES)
        controller.submit(now + 1, "team", replace(JOB, job=replace(JOB.job, id="A" if again else "B")))
        while (taken := controller.take()[0]) != Batch():
            journal.append(taken)
        assert {each.job_id for each in journal.owned()} == {"job0", "A" if again else "B"}


@pytest.mark.parametrize("what", ["substr(state, 2)", "''"])
def test_an_image_that_is_needed_and_damaged_is_named(place: Place, what: str) -> None:
    with closing(begun(place, 0)) as journal:
        before = lived(journal, 5)
        begins = journal.begins()
    place.ask(f"UPDATE images SET state = {what} WHERE seq = {begins}")
    with closing(begun(place, 0)) as journal:
        with pytest.raises(JournalDamaged, match=f"the image after record {begins}"):
            replayed(journal, lambda _: RollmuxPolicy())
        assert image(recover(journal, CLUSTER, RollmuxPolicy(), RULES)[0].machine) == image(before.machine)
    place.ask(f"UPDATE images SET state = {what}")
    with closing(begun(place, 0)) as journal, pytest.raises(JournalDamaged, match="its history begins after record"):
        recover(journal, CLUSTER, RollmuxPolicy(), RULES)


def test_an_image_of_another_version_is_refused_where_no_older_records_are_left(place: Place) -> None:
    with closing(begun(place, 0)) as journal:
        lived(journal, 5)
        latest = journal.image()
        assert latest is not None
        journal.keep(replace(latest, state=latest.state | {"version": 0}))
        with pytest.raises(RollmuxError, match="is of version 0, this program reads"):
            recover(journal, CLUSTER, RollmuxPolicy(), RULES)


def test_with_other_rules_a_new_history_begins_that_can_be_played(place: Place) -> None:
    longer = replace(RULES, timing=Timing(100.0, 10.0))
    with closing(begun(place)) as journal:
        before = lived(journal, 3)
        seq = before.machine.state.ledger.seq
        after, now = recover(journal, CLUSTER, RollmuxPolicy(), longer)
        assert journal.begins() == seq
        after.submit(now + 1, "team", JOB)
        journal.append(after.take()[0])
        machine, entries = replayed(journal, lambda _: RollmuxPolicy())
        assert [entry.seq for entry in entries] == list(range(seq + 1, after.machine.state.ledger.seq + 1))
        assert image(machine) == image(after.machine)
