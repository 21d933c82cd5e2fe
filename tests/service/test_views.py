"""What owners are told of the cluster, held against what is so."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import Ask
from rollmux.service import views
from rollmux.service.controller import Controller
from tests.mux.test_backlog import cast_on, job, played
from tests.mux.test_moves import Hand, waits_for_its_new_nodes
from tests.service.test_history import at_once


def controller_of(machine: ClusterMachine, others: Iterable[str] = ()) -> Controller:
    """One over this machine, whose jobs are a team's, but for those of others."""
    jobs = [record.submitted for record in machine.state.jobs.values()]
    return Controller(machine, [("others" if job.id in others else "team", Submission(job)) for job in jobs])


def test_a_moved_job_is_said_to_be_where_it_is_and_why_and_its_admission_to_be_that() -> None:
    hand = Hand()
    controller = controller_of(hand.machine)
    before = views.explained(controller, "B", None)
    assert "group-0 by direct packing" in before[0]
    waits_for_its_new_nodes(hand)
    moved, *admission = views.explained(controller, "B", None)
    assert hand.b.placement is not None
    assert (
        f"has moved since to group-1 on {', '.join(hand.b.placement.all_nodes)}: an SLO of its group is in danger."
        in moved
    )
    assert tuple(admission) == before


def line(*more: JobSpec, over: int = 4) -> Controller:
    """One node of each pool is free, and `big` waits for both; A goes on for so many iterations."""
    cast = played(cast_on(2, 2), (0.0, job("A", iterations=over)), (0.0, job("big", nodes=2)), until=0.0)
    return controller_of(played(cast, *((0.0, each) for each in more), until=0.0).machine, others=["big"])


def test_a_job_among_all_has_the_forecast_that_it_has_when_it_is_asked_for_alone() -> None:
    controller = line()
    paces = {view.job: view.iteration_s for view in at_once(views.cluster_view(controller, 0.0, None)).jobs}
    assert paces == {name: views.one_job_view(controller, 0.0, name, None).iteration_s for name in paces}
    assert (paces["A"] is None, paces["big"]) == (False, None)


@pytest.mark.parametrize("over", [4, 8])
def test_who_waits_for_a_place_is_told_how_long(over: int) -> None:
    controller = line(over=over)
    waiting, ahead = (views.one_job_view(controller, 0.0, name, None) for name in ("big", "A"))
    assert ahead.iteration_s is not None
    assert (waiting.expected_wait_s, ahead.expected_wait_s) == (over * ahead.iteration_s, None)


@pytest.mark.parametrize(
    ("asked", "admitted"),
    [
        (job("short"), True),
        (job("long", iterations=9), False),
        (job("urgent", iterations=9, priority=5), True),
        (job("wide", nodes=2, priority=5), False),
    ],
    ids=lambda part: part.id if isinstance(part, JobSpec) else None,
)
def test_a_quote_is_what_comes_of_the_job_once_it_is_submitted(asked: JobSpec, admitted: bool) -> None:
    controller = line()
    quote = views.quote(controller, 0.0, Submission(asked), "team", "team")
    controller.submit(0.0, "team", Submission(asked))
    record = controller.machine.state.jobs[asked.id]
    assert quote.admitted is admitted
    assert quote.group == record.group_id
    assert (quote.rollout_nodes, quote.train_nodes) == (
        (record.placement.rollout, record.placement.train) if record.placement else ((), ())
    )
    assert ("1 jobs are in line before it." in quote.lines) is (asked.id == "long")


def test_those_who_have_gone_are_in_line_before_nobody() -> None:
    controller = line(*(job(name, iterations=9) for name in "BCD"))
    assert controller.machine.state.backlog == ["big", "B", "C", "D"]
    for gone in "BC":
        controller.cancel(0.0, gone)
    view = views.job_view(controller, 0.0, "D", "team", {})
    assert view.reason == "1 jobs are in line before it"
    with pytest.raises(IllegalEvent, match="number 2 in line: 1 jobs are in line before it"):
        controller.processes.ask(0.0, "D", Ask(1, PhaseKind.ROLLOUT, 0))


@pytest.mark.parametrize(("tenant", "first"), [("team", "another tenant's job"), (None, "job big")])
def test_a_job_that_has_not_been_tried_waits_for_those_before_it(tenant: str | None, first: str) -> None:
    controller = line(job("behind", iterations=9))
    (said,) = views.explained(controller, "behind", tenant)
    assert said == f"Job behind is number 2 in line: 1 jobs are in line before it, the first of them {first}."


def test_a_job_that_has_fallen_behind_is_not_said_to_wait_for_what_it_lacked_when_it_was_first() -> None:
    controller = line()
    assert "no place now, a group of its own would find" in views.explained(controller, "big", None)[0]
    controller.submit(0.0, "team", Submission(job("urgent", nodes=2, priority=5)))
    (said,) = views.explained(controller, "big", None)
    assert said == "Job big is number 2 in line: 1 jobs are in line before it, the first of them job urgent."


def test_a_job_that_lost_its_place_and_has_others_before_it_is_not_said_to_have_it() -> None:
    wide = replace(job("wide", priority=6), train=PhaseSpec(40.0, 2))
    controller = line(job("B", iterations=9, priority=5), wide)
    assert "group-0" in views.explained(controller, "A", None)[0]
    for event in (ev.JobStarted("A", 1), ev.NodeLost("r0"), ev.JobStopped("A", 1)):
        controller.tell(0.0, event)
    (said,) = views.explained(controller, "A", None)
    assert said == "Job A is number 2 in line: 1 jobs are in line before it, the first of them job wide."


def test_what_a_job_in_line_lacks_is_known_without_its_decision() -> None:
    controller = line()
    controller.machine.state.decisions.clear()  # as after a restart
    (said,) = views.explained(controller, "big", None)
    assert said.startswith("Job big is number 1 in line: a group of its own would find 1 of the 2 nodes")


def test_what_is_lacking_is_named_where_it_is_there_but_drained() -> None:
    controller = line()
    assert "Drained" not in "".join(views.explained(controller, "big", None))
    controller.tell(0.0, ev.NodeCordoned("r1"))
    quote = views.quote(controller, 0.0, Submission(job("asks", priority=9)), "team", "team")
    assert not quote.admitted
    for said in (views.explained(controller, "big", None), quote.lines):
        assert said[-1] == "Drained, so that no job is put there: r1."
    controller.tell(0.0, ev.NodeLost("r1"))
    assert "Drained" not in "".join(views.explained(controller, "big", None))
