"""What the latest phases took, and the pace that one job's view tells from it."""

from collections.abc import Sequence
from random import Random

import pytest
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli import jobs as commands
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.forecast import Taken
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.protocol.job_file import Submission
from rollmux.protocol.views import JobView
from rollmux.service.controller import Controller
from rollmux.service.history.lately import LEAST, MOST, taken_lately
from rollmux.service.history.spans import Span
from rollmux.service.views import job_view, one_job_view
from rollmux.sim.cast import Cast, Takes, as_planned


def span(
    job: str, kind: str, iteration: int, ended: float, lasted: float, how: str = "finished", attempt: int = 1
) -> Span:
    began = ended - lasted
    return Span(1, job, "g", kind, iteration, attempt, (), 0.0, began, began, ended, False, False, how, False)


def iterations(job: str, count: int) -> list[Span]:
    """From the first on: rollouts that take as long as their number says, and then some."""
    return [
        span(job, kind, number, number * 100.0 + at, lasted)
        for number in range(count)
        for at, (kind, lasted) in enumerate((("rollout", 10.0 + number), ("train", 5.0), ("sync", 1.0)))
    ]


def lately(spans: Sequence[Span], *jobs: str) -> list[list[float]] | None:
    """The rollouts of each job."""
    found = taken_lately(reversed(spans), jobs)
    return None if found is None else [[each.rollout_s for each in found[job]] for job in jobs]


def test_the_latest_iterations_count_and_no_more_than_so_many() -> None:
    assert lately(iterations("a", 100), "a") == [[10.0 + number for number in range(99, 99 - MOST, -1)]]
    assert taken_lately(reversed(iterations("a", 9)), ["a"])["a"][0] == Taken(18.0, 5.0, 1.0)  # type: ignore[index]


def test_a_jobs_first_iteration_does_not_count() -> None:
    assert lately(iterations("a", LEAST + 1), "a") == [[10.0 + number for number in range(LEAST, 0, -1)]]
    assert lately(iterations("a", LEAST), "a") is None


def test_nothing_is_told_before_all_have_made_enough() -> None:
    assert lately(iterations("a", 50) + iterations("b", LEAST), "a", "b") is None
    assert lately(iterations("a", 50), "a", "b") is None


def test_an_iteration_under_way_does_not_count_and_neither_does_what_was_lost() -> None:
    spans = iterations("a", 8)
    spans += [span("a", "rollout", 8, 900.0, 50.0, "fenced"), span("a", "rollout", 8, 1000.0, 60.0)]
    assert lately(spans, "a") == lately(iterations("a", 8), "a")


def test_a_phase_that_has_paused_takes_all_of_its_parts() -> None:
    spans = iterations("a", 8)
    spans += [span("a", "rollout", 8, 801.0, 4.0, "paused"), span("a", "rollout", 8, 830.0, 9.0)]
    spans += [span("a", "train", 8, 850.0, 5.0), span("a", "sync", 8, 851.0, 1.0)]
    assert lately(spans, "a") == [[13.0, *(10.0 + number for number in range(7, 0, -1))]]


def test_what_an_attempt_that_is_over_did_of_an_iteration_is_no_part_of_it() -> None:
    """A rollout that was done, lost with its attempt and done anew counted twice, and paces were told by that."""
    spans = iterations("a", 8)
    spans += [span("a", kind, 8, 810.0 + at, 10.0) for at, kind in enumerate(("rollout", "train"))]
    spans += [span("a", kind, 8, 850.0 + at, 18.0, attempt=2) for at, kind in enumerate(("rollout", "train", "sync"))]
    found = taken_lately(reversed(spans), ["a"])
    assert found is not None
    assert found["a"][0] == Taken(18.0, 18.0, 18.0)
    assert len(found["a"]) == 8


# -- in a view -----------------------------------------------------------------------------------------------------

NODE = NodeType("node", 1, 1.0, 80 * GB, 1000 * GB)
PAIR = Cluster(Pool("rollout", NODE, max_nodes=1), Pool("train", NODE, max_nodes=1))


def job(name: str, rollout_s: float, train_s: float) -> JobSpec:
    return JobSpec(name, PhaseSpec(rollout_s, nodes=1), PhaseSpec(train_s, nodes=1), 2.0)


def lived_through(jobs: Sequence[JobSpec], takes: Takes, until_s: float) -> tuple[Controller, Cast]:
    """A controller that has heard all that the cast has told a machine."""
    cast = Cast(ClusterMachine(PAIR, RollmuxPolicy()), takes=takes)
    cast.keep_history = True
    for each in jobs:
        cast.submit(0.0, each)
    cast.run(until_s)
    controller = Controller(ClusterMachine(PAIR, RollmuxPolicy()), [("team", Submission(each)) for each in jobs])
    for at, event, _ in cast.history:
        controller.tell(at, event)
    return controller, cast


def test_where_phases_are_constant_the_likely_pace_is_the_forecast() -> None:
    controller, _ = lived_through([job("a", 60.0, 40.0), job("b", 50.0, 30.0)], as_planned, 3000.0)
    for name in "ab":
        view = one_job_view(controller, 3000.0, name, None)
        assert view.likely_s == pytest.approx(view.iteration_s, rel=0.02)
        assert job_view(controller, 3000.0, name, None, {}).likely_s is None  # it is dear, and a cluster has many jobs


def test_where_phases_vary_the_likely_pace_is_that_at_which_jobs_go_on() -> None:
    def takes(spec: JobSpec, kind: PhaseKind, iteration: int) -> float:
        if kind is PhaseKind.SYNC:
            return spec.sync_s
        draw = Random(f"{spec.id}/{kind.value}/{iteration}")
        return round(spec.phase(kind).duration_s * draw.choice((0.2, 0.6, 1.0)), 3)

    jobs = [job("a", 60.0, 40.0), job("b", 50.0, 30.0)]
    controller, _ = lived_through(jobs, takes, 3000.0)
    _, later = lived_through(jobs, takes, 30_000.0)
    for name in "ab":
        view = one_job_view(controller, 3000.0, name, None)
        assert view.likely_s == pytest.approx(later.iteration_s(name), rel=0.1)
        assert view.iteration_s is not None
        assert view.iteration_s > 1.4 * later.iteration_s(name)  # by bounds


def test_of_a_job_that_has_just_begun_or_has_ended_nothing_is_likely() -> None:
    begun, _ = lived_through([job("a", 60.0, 40.0)], as_planned, 250.0)
    assert one_job_view(begun, 250.0, "a", None).likely_s is None
    controller, _ = lived_through([job("a", 60.0, 40.0)], as_planned, 3000.0)
    assert one_job_view(controller, 3000.0, "a", None).likely_s == pytest.approx(100.0)
    controller.tell(3000.0, ev.JobFinished("a", 1))
    assert one_job_view(controller, 3000.0, "a", None).likely_s is None


def test_the_status_of_one_job_says_its_likely_pace_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, _ = lived_through([job("a", 60.0, 40.0)], as_planned, 3000.0)

    class There:
        def get(self, kind: type[JobView], path: str) -> JobView:
            assert path == "/v1/jobs/a"
            return one_job_view(controller, 3000.0, "a", None)

    monkeypatch.setattr(commands, "remote", lambda *where: There())
    assert "an iteration will take 100.0 s in the mean" in CliRunner().invoke(app, ["status", "a"]).stdout
    controller, _ = lived_through([job("a", 60.0, 40.0)], as_planned, 250.0)
    assert "in the mean" not in CliRunner().invoke(app, ["status", "a"]).stdout
