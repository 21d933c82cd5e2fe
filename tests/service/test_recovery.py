"""Starting again from a journal: only with what it was begun with, and only where it leads to what it led to before."""

from dataclasses import replace

import pytest

from rollmux.errors import IllegalEvent, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.image import image, to_json
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.weave import Timing
from rollmux.protocol.job_file import Submission
from rollmux.service.controller import Controller, Refused
from rollmux.service.history import seen
from rollmux.service.journal import Batch, Image, JournalDamaged
from rollmux.service.recovery import errands_after, recover, replayed
from tests.service.memory_journal import MemoryJournal
from tests.service.world import CLUSTERS, DEAR

CLUSTER, RULES = CLUSTERS[0], Rules(timing=Timing(15.0, 10.0))
JOB = Submission(JobSpec("A", PhaseSpec(20.0, 1), PhaseSpec(20.0, 1), 4.0, iterations=2), ("python", "a.py"))


def again(journal: MemoryJournal, rules: Rules = RULES) -> tuple[Controller, float]:
    return recover(journal, CLUSTER, RollmuxPolicy(), rules)


def write(journal: MemoryJournal, controller: Controller) -> None:
    batch, _, _ = controller.take()
    journal.append(batch)


def running(journal: MemoryJournal) -> Controller:
    """One job with a lease, all of it durable."""
    controller, _ = again(journal)
    controller.submit(1.0, "team", JOB)
    for node, record in list(controller.machine.state.book.nodes.items()):
        controller.tell(2.0, ev.NodeJoined(node, record.pool))
    controller.tell(3.0, ev.JobStarted("A", 1))
    controller.tell(4.0, ev.PhaseRequested("A", 1, PhaseKind.ROLLOUT, 0))
    write(journal, controller)
    return controller


def test_a_new_journal_begins_at_nothing_and_says_what_it_is_of() -> None:
    journal = MemoryJournal()
    controller, now = again(journal)
    assert (now, controller.jobs, errands_after(controller)) == (0.0, {}, [])
    assert journal.head().keys() == {"journal", "cluster", "policy", "rules"}


def test_time_state_and_submissions_go_on() -> None:
    journal = MemoryJournal()
    before = running(journal)
    after, now = again(journal)
    assert now == 4.0
    assert image(after.machine) == image(before.machine)
    assert after.live("A", "team").submission == JOB
    assert after.processes.orders("A").version >= before.processes.orders("A").version


def test_an_image_of_another_version_is_passed_over() -> None:
    journal = MemoryJournal()
    before = running(journal)
    journal.keep(Image(3, 2.0, {**to_json(image(before.machine)), "version": 0}))
    assert image(again(journal)[0].machine) == image(before.machine)


def test_an_image_of_version_4_is_gone_on_from_and_those_of_now_are_passed_over_by_programs_of_that_time() -> None:
    journal = MemoryJournal()
    before = running(journal)
    now = to_json(image(before.machine))
    assert now["version"] > 4  # which had no cluster, so that one with a cluster could not be read
    then = {name: value for name, value in now.items() if name != "cluster"} | {"version": 4}
    journal.keep(Image(now["seq"], 4.0, then))
    journal.begin(journal.head(), now["seq"])
    assert image(again(journal)[0].machine) == image(before.machine)


def test_another_policy_is_refused_by_name() -> None:
    journal = MemoryJournal()
    running(journal)
    with pytest.raises(RollmuxError, match=r"another policy \(it was rollmux and is paper\)"):
        recover(journal, CLUSTER, PaperPolicy(), RULES)


DEARER = replace(
    CLUSTER, train=replace(CLUSTER.train, max_nodes=9, node_type=replace(CLUSTER.train.node_type, usd_per_gpu_hour=9.0))
)


def test_a_cluster_that_has_become_another_is_one_record_and_the_next_start_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = MemoryJournal()
    before = running(journal)
    with caplog.at_level("INFO", "rollmux.service"):
        after, now = recover(journal, DEARER, RollmuxPolicy(), RULES)
    assert "cluster.train.max_nodes was None and is 9" in caplog.text
    assert "cluster.train.node_type.usd_per_gpu_hour was 5.28 and is 9.0" in caplog.text
    assert after.machine.state.cluster == DEARER
    assert (now, after.live("A", "team").submission) == (4.0, JOB)
    *_, last = journal.records(0)
    assert last.event == ev.ClusterChanged(DEARER)
    assert last.seq == after.machine.state.ledger.seq == before.machine.state.ledger.seq + 1
    assert not after.pending  # it is durable before anybody can hear of it
    again, _ = recover(journal, DEARER, RollmuxPolicy(), RULES)
    assert image(again.machine) == image(after.machine)
    machine, entries = replayed(journal, lambda _: RollmuxPolicy())
    assert [entry.event for entry in entries][-1] == last.event
    assert image(machine) == image(after.machine)


def test_what_follows_from_a_change_is_carried_out_with_what_was_wanted_before() -> None:
    journal = MemoryJournal()
    one = replace(CLUSTER, rollout=replace(CLUSTER.rollout, max_nodes=1))
    controller, _ = recover(journal, one, RollmuxPolicy(), RULES)
    for name in "AB":
        controller.submit(1.0, "team", replace(JOB, job=replace(JOB.job, id=name, slo=1.0)))
    assert controller.machine.state.backlog == ["B"]
    write(journal, controller)
    after, _ = again(journal)
    assert not after.machine.state.backlog
    assert not after.errands  # they would be run before the launcher has said what there is, and once more
    nodes = [errand.node for errand in errands_after(after) if isinstance(errand, cmd.Provision)]
    assert nodes == list(after.machine.state.book.nodes)
    assert len(nodes) == 4


def test_a_change_that_can_t_be_is_told_whole_and_nothing_is_written() -> None:
    journal = MemoryJournal()
    running(journal)
    written = list(journal.records(0))
    told = "cluster can't become that now: gpus of a node of pool train were 8 and are 4"
    fewer = replace(CLUSTER, train=replace(CLUSTER.train, node_type=replace(CLUSTER.train.node_type, gpus=4)))
    with pytest.raises(RollmuxError, match=told + r"\. .*file as it was; .*journal of its own: another --folder"):
        recover(journal, fewer, RollmuxPolicy(), RULES)
    assert list(journal.records(0)) == written
    again(journal)


def test_what_was_taken_before_a_policy_knew_that_it_has_no_place_is_played_again() -> None:
    """A controller of before took such jobs, and such changes of its cluster, and may have been killed since."""
    six, seven = (Cluster(pool, pool) for pool in (Pool("gpu", DEAR, max_nodes=6), Pool("gpu", DEAR, max_nodes=7)))
    apart = replace(JOB.job, rollout=PhaseSpec(20.0, 3), train=PhaseSpec(20.0, 4), slo=1.2, staleness=1)
    journal = MemoryJournal()
    before, _ = recover(journal, seven, RollmuxPolicy(max_group=1), RULES)
    before.submit(1.0, "team", replace(JOB, job=replace(JOB.job, id="first")))
    before.submit(2.0, "team", replace(JOB, job=apart))
    before.tell(3.0, ev.ClusterChanged(six))
    before.tell(4.0, ev.JobSubmitted(replace(apart, id="B")))
    with pytest.raises(Refused, match="7 are needed"):
        before.submit(5.0, "team", replace(JOB, job=replace(apart, id="C")))
    write(journal, before)
    after, _ = recover(journal, six, RollmuxPolicy(max_group=1), RULES)
    assert after.machine.state.backlog == ["A", "B"]
    assert image(after.machine) == image(before.machine)


def test_a_change_goes_with_other_rules_and_lasts_with_an_image() -> None:
    journal = MemoryJournal()
    running(journal)
    longer = replace(RULES, timing=Timing(100.0, 10.0))
    after, now = recover(journal, DEARER, RollmuxPolicy(), longer)
    journal.keep(Image(after.machine.state.ledger.seq, now, after.image()))
    again, _ = recover(journal, DEARER, RollmuxPolicy(), longer)
    assert image(again.machine) == image(after.machine)
    assert again.history.saved() == after.history.saved()


def test_machines_that_the_file_names_no_more_are_no_nodes_any_more() -> None:
    three = CLUSTERS[2]
    journal = MemoryJournal()
    controller, _ = recover(journal, three, RollmuxPolicy(), RULES)
    for node, pool in three.fixed_nodes.items():
        controller.tell(1.0, ev.NodeJoined(node, pool))
    write(journal, controller)
    fewer = replace(three, rollout=replace(three.rollout, max_nodes=1))
    after, _ = recover(journal, fewer, RollmuxPolicy(), RULES)
    assert list(after.machine.state.book.nodes) == ["rollout-0", "train-0", "train-1"]
    assert after.history.books.pools["rollout"].nodes == 1


def test_other_rules_hold_from_the_restart_on() -> None:
    journal = MemoryJournal()
    before = running(journal)
    longer = replace(RULES, timing=Timing(100.0, 10.0))
    after, now = again(journal, longer)
    assert image(after.machine) == image(before.machine)
    after.tell(now + 1.0, ev.Heartbeat("A", 1))
    assert after.machine.next_wake() == now + 101.0
    write(journal, after)
    assert image(again(journal, longer)[0].machine) == image(after.machine)


@pytest.mark.parametrize("name", ["rules", "cluster"])
def test_a_journal_that_another_version_has_begun_is_refused_by_name(name: str) -> None:
    journal = MemoryJournal()
    running(journal)
    journal.begin({name: journal.head()[name] | {"colour": 3}})
    for read in (again, lambda it: replayed(it, lambda _: RollmuxPolicy())):
        with pytest.raises(RollmuxError, match=rf"another {name}|the {name} .*colour.*another version of the program"):
            read(journal)


@pytest.mark.parametrize(
    "other",
    [ev.Tick(), ev.JobStarted("B", 1), ev.PhaseRequested("A", 1, PhaseKind.TRAIN, 0), ev.NodeLost("rollout-0")],
)
def test_a_record_that_leads_elsewhere_is_named_and_not_gone_on_from(other: ev.Event) -> None:
    journal = MemoryJournal()
    before = running(journal)
    before.tell(5.0, ev.PhaseStarted("A", 1))
    record = before.take()[0].records[0]
    journal.append(Batch((replace(record, event=other),)))
    with pytest.raises(JournalDamaged, match=rf"record {record.seq} .*another version of the program"):
        again(journal)


def test_what_may_not_have_been_done_is_done_again() -> None:
    journal = MemoryJournal()
    controller, _ = again(journal)
    controller.submit(1.0, "team", JOB)
    write(journal, controller)
    nodes = controller.machine.state.book.nodes
    controller, _ = again(journal)
    assert errands_after(controller) == [cmd.Provision(node, record.pool) for node, record in nodes.items()]
    for node, record in list(nodes.items()):
        controller.tell(2.0, ev.NodeJoined(node, record.pool))
    placement = controller.machine.state.jobs["A"].placement
    assert placement is not None
    write(journal, controller)
    controller, _ = again(journal)
    assert errands_after(controller) == [cmd.Launch("A", 1, placement)]
    controller.cancel(3.0, "A")
    write(journal, controller)
    (errand,) = errands_after(again(journal)[0])
    assert isinstance(errand, cmd.Stop)
    assert (errand.job_id, errand.attempt) == ("A", 1)


def test_a_job_that_a_later_version_would_refuse_is_in_the_way_of_a_start_only_until_it_is_over() -> None:
    """Else an update could never be made, as those that are over are remembered for long."""
    journal = MemoryJournal()
    before = running(journal)
    journal.append(Batch(owned=tuple(replace(each, data=each.data | {"slo": 0.5}) for each in journal.owned())))
    with pytest.raises(
        JournalDamaged, match=r"job 'A' can't go on in this version \(job.slo = 0.5: .*\): another version"
    ):
        again(journal)
    before.tell(5.0, ev.JobFinished("A", 1))
    write(journal, before)
    controller, _ = again(journal)
    assert (controller.machine.state.ended, controller.jobs) == ({"A": "finished"}, {})
    with pytest.raises(IllegalEvent, match="there has been a job 'A'"):
        controller.submit(6.0, "team", JOB)
    assert seen.job_bill(controller, controller.history.books.accounts["A"], 6.0, ()).how == "finished"


def test_a_running_job_needs_nothing_again_and_one_that_ended_is_still_known() -> None:
    journal = MemoryJournal()
    controller = running(journal)
    assert errands_after(again(journal)[0]) == []
    controller.tell(5.0, ev.JobFinished("A", 1))
    write(journal, controller)
    after, _ = again(journal)
    assert errands_after(after) == []
    assert after.processes.orders("A").stop == "finished"
