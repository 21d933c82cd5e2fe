"""Figures that tell for how long something has been so."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rollmux.mux import events as ev
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import PhaseKind
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.service.controller import Controller
from rollmux.service.host import Host
from rollmux.service.journal import Image
from rollmux.service.metrics import Metrics
from rollmux.service.recovery import recover
from rollmux.service.views import cluster_view
from tests.service.memory_journal import MemoryJournal
from tests.service.serving import PAIR, served
from tests.service.test_history import at_once
from tests.service.test_recovery import CLUSTER, JOB, RULES, write

STANDING = Cluster(replace(CLUSTER.rollout, on_demand=False), replace(CLUSTER.train, on_demand=False))


def oldest_s(controller: Controller, now: float) -> float:
    """Since when the first in line is there."""
    host: Any = type("Looked", (), {"controller": controller, "now": now, "parked": 0, "broken": ""})()
    text = Metrics(cast(Host, host)).text(at_once(cluster_view(controller, now, None))).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("rollmux_queue_oldest_seconds ")]
    return float(line.split()[1])


def test_a_job_that_has_lost_its_place_is_in_line_since_then() -> None:
    journal = MemoryJournal()
    controller, _ = recover(journal, STANDING, RollmuxPolicy(), RULES)
    for pool in ("rollout", "train"):
        controller.tell(1.0, ev.NodeJoined(f"{pool}-0", pool))
    controller.submit(2.0, "team", JOB)
    controller.tell(3.0, ev.JobStarted("A", 1))
    controller.tell(7000.0, ev.NodeLost("train-0"))
    controller.tell(7001.0, ev.JobStopped("A", 1))
    assert controller.machine.state.backlog == ["A"]
    assert oldest_s(controller, 7011.0) == 10.0
    write(journal, controller)
    journal.keep(Image(controller.machine.state.ledger.seq, 7001.0, controller.image()))
    assert oldest_s(recover(journal, STANDING, RollmuxPolicy(), RULES)[0], 7011.0) == 10.0


def one_waits() -> Controller:
    """A has the nodes for its rollout, and B is in line for them."""
    controller, _ = recover(MemoryJournal(), STANDING, RollmuxPolicy(), RULES)
    for pool in ("rollout", "train"):
        controller.tell(1.0, ev.NodeJoined(f"{pool}-0", pool))
    for name in "AB":
        controller.submit(1.0, "team", replace(JOB, job=replace(JOB.job, id=name, slo=5.0)))
        controller.tell(1.0, ev.JobStarted(name, 1))
        controller.tell(1.0, ev.PhaseRequested(name, 1, PhaseKind.ROLLOUT, 0))
    assert controller.history.spans.waits == {("B", "rollout"): 1.0}
    return controller


def test_of_a_job_that_is_gone_no_wait_is_remembered_though_nobody_has_looked() -> None:
    controller = one_waits()
    controller.cancel(5.0, "B")
    controller.tick(1000.0)  # nobody has said that its processes are gone
    assert list(controller.machine.state.ended) == ["B"]
    assert not controller.history.spans.waits


def test_whoever_failed_as_it_waited_waits_anew_when_it_is_there_again() -> None:
    controller, waited = one_waits(), list[float]()
    controller.history.waited = lambda kind, seconds: waited.append(seconds)
    controller.tell(50.0, ev.JobFailed("B", 1, "broke"))
    controller.cancel(60.0, "A")
    controller.tell(61.0, ev.JobStopped("A", 1))
    controller.tell(900.0, ev.JobStarted("B", 2))
    controller.tell(1000.0, ev.PhaseRequested("B", 2, PhaseKind.ROLLOUT, 0))
    assert waited == [0.0]


def test_a_cluster_that_is_another_than_before_the_start_is_counted(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        token = there.admin
    dearer = replace(PAIR.train, node_type=replace(PAIR.train.node_type, usd_per_gpu_hour=9.0))
    for cluster, count in ((Cluster(PAIR.rollout, dearer), 1.0), (Cluster(PAIR.rollout, dearer), 0.0)):
        with served(tmp_path, cluster) as there:
            lines = there.call("GET", "/metrics", token=token).text.splitlines()
            assert f'rollmux_events_total{{event="ClusterChanged"}} {count}' in lines


def test_what_a_start_finds_is_counted(tmp_path: Path) -> None:
    with served(tmp_path, PAIR) as there:
        lines = there.call("GET", "/metrics").text.splitlines()
        assert 'rollmux_events_total{event="NodeJoined"} 2.0' in lines
