"""What owners are told of the cluster, held against what is so."""

from collections.abc import Iterable

from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.protocol.job_file import Submission
from rollmux.service import views
from rollmux.service.controller import Controller
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
