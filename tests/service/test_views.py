"""What owners are told of the cluster, held against what is so."""

from collections.abc import Iterable

import pytest

from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.job import JobSpec
from rollmux.protocol.job_file import Submission
from rollmux.service import views
from rollmux.service.controller import Controller
from tests.mux.test_backlog import cast_on, job, played
from tests.mux.test_moves import Hand, waits_for_its_new_nodes


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
