"""The jobs of the weave benchmark: how their phases are drawn, how they pause, what their paces are."""

import time
from pathlib import Path
from statistics import fmean, median, pstdev
from threading import Thread

import pytest

from benchmarks import weave
from benchmarks.figures.timed_job import Work
from benchmarks.figures.woven_jobs import (
    LOAD_S,
    OFFLOAD_S,
    ROLLOUT,
    SYNC,
    SYNC_S,
    TRAIN,
    Plan,
    Shape,
    Virtual,
    paces_s,
    simulated,
)
from rollmux.cli.woven.figures import NotSideBySide
from rollmux.cli.woven.floor import CLUSTER
from rollmux.mux.forecast import Taken
from rollmux.protocol.cluster_file import read_cluster
from rollmux.protocol.job_file import read_job

SHAPE = Shape("a", 2.0, 1.0, 1, 2.0)


def test_varying_phases_are_skewed_around_their_means() -> None:
    plan = Plan.drawn(SHAPE, 20_000, 0.3, seed=1)
    for drawn, mean_s in ((plan.rollout_s, 2.0), (plan.train_s, 1.0)):
        assert fmean(drawn) == pytest.approx(mean_s, rel=0.02)
        assert pstdev(drawn) == pytest.approx(0.3 * mean_s, rel=0.05)
        assert median(drawn) < 0.97 * mean_s
    assert Plan.drawn(SHAPE, 20_000, 0.3, seed=1) == plan != Plan.drawn(SHAPE, 20_000, 0.3, seed=2)


def test_what_is_known_beforehand_is_the_beginning_of_what_happens() -> None:
    plan = Plan.drawn(SHAPE, 10, 0.3, seed=0)
    assert (plan.first(4).rollout_s, plan.first(4).train_s) == (plan.rollout_s[:4], plan.train_s[:4])
    assert Plan.drawn(SHAPE, 3, 0.0, seed=0).rollout_s == (2.0, 2.0, 2.0)


def test_paces_are_of_the_time_in_which_all_are_there() -> None:
    ends = {"a": [1.0, 3.0, 5.0, 8.0, 20.0], "b": [3.0, 4.0, 6.0, 8.0]}
    assert paces_s(ends) == {"a": 2.5, "b": pytest.approx(5 / 3)}
    with pytest.raises(NotSideBySide):
        paces_s({"a": [1.0, 2.0], "b": [3.0, 4.0]})


def test_work_takes_its_time_without_its_pauses() -> None:
    work, ended = Work(), []

    def worker() -> None:
        work.take(0.2)
        ended.append(time.monotonic())

    thread, began = Thread(target=worker), time.monotonic()
    thread.start()
    time.sleep(0.05)
    work.pause()
    time.sleep(0.4)
    assert not ended
    work.resume()
    thread.join(10.0)
    assert ended[0] - began >= 0.55


# -- in virtual time -----------------------------------------------------------------------------------------------


def played(tmp_path: Path, plans: list[Plan]) -> Virtual:
    """The shapes of the benchmark, whose owners know their means."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER.format(rollout=2, train=1))
    means = {plan.name: {ROLLOUT: plan.shape.rollout_s, TRAIN: plan.shape.train_s, SYNC: SYNC_S} for plan in plans}
    told = [plan.submission(tmp_path / plan.name, means[plan.name], plan.shape.slo) for plan in plans]
    return simulated(read_cluster(file), [read_job(each).job for each in told], plans)


def forecast_s(virtual: Virtual) -> dict[str, float]:
    return virtual.forecast_s(
        {shape.name: {ROLLOUT: shape.rollout_s, TRAIN: shape.train_s, SYNC: SYNC_S} for shape in weave.SHAPES}
    )


def test_the_shapes_share_one_group_and_keep_to_their_forecast_where_phases_are_constant(tmp_path: Path) -> None:
    virtual = played(tmp_path, [Plan.drawn(shape, 100, 0.0, 0) for shape in weave.SHAPES])
    assert len(virtual.group.members) == 3
    assert (len(virtual.group.rollout_nodes), len(virtual.group.train_nodes)) == (2, 1)
    assert virtual.paces_s == pytest.approx(forecast_s(virtual), rel=0.01)


def test_where_phases_vary_what_is_likely_holds_and_the_forecast_of_constant_ones_does_not(tmp_path: Path) -> None:
    virtual = played(tmp_path, [Plan.drawn(shape, 1000, weave.SPREAD, 0) for shape in weave.SHAPES])
    switch_s = LOAD_S + OFFLOAD_S
    seen = [Plan.drawn(shape, 200, weave.SPREAD, seed=1) for shape in weave.SHAPES]  # others of the same kind
    taken = {
        plan.name: [
            Taken(rollout_s + switch_s, train_s + switch_s, SYNC_S)
            for rollout_s, train_s in zip(plan.rollout_s, plan.train_s, strict=True)
        ]
        for plan in seen
    }
    assert virtual.paces_s == pytest.approx(virtual.likely_s(taken), rel=0.1)
    assert max(virtual.paces_s[job] / pace_s for job, pace_s in forecast_s(virtual).items()) > 1.15
