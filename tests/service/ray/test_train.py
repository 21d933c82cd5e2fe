"""The reference job on a real Ray cluster: two of them woven, and nodes that lose their power in the middle."""

import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from tests.service.commanded import commanded
from tests.service.ray.real import RealRay
from tests.service.ray.test_serve import NODE, SPARE
from tests.trainer.jobs import left_behind, require_equal_but_for_rounding, tiny
from tests.trainer.killing import node_of
from tests.trainer.test_kills import BIGGER, NOISE, PLAYED_S, Job, played, require_accounted
from tests.trainer.test_ranks import steps_of
from tests.trainer.test_ranks import submission as spanning

STEPS = 200
# About what they take: whose first steps are measured as far quicker than submitted would not bear the other, of whom
# nothing is measured yet.
PHASE = {"nodes": 1, "duration_s": 0.1}
# Responses come beside other company than in one process: in doubles that is no matter.
SPANNING: dict[str, Any] = {
    **BIGGER,
    "steps": STEPS,
    "model": {**BIGGER["model"], "dtype": "float64"},
    "rollout": {"workers": 2},
}


def nodes_of(view: Any) -> tuple[str, str]:
    """The rollout and the training node of a job that has one of each."""
    (rollout,), (train,) = view["rollout_nodes"], view["train_nodes"]
    return rollout, train


@pytest.mark.slow
def test_two_jobs_train_what_they_train_alone_though_a_node_that_both_share_is_lost(
    cluster: RealRay, tmp_path: Path
) -> None:
    settings = {**BIGGER, "steps": STEPS}
    jobs = [Job(tiny(name=name, seed=number, **settings), tmp_path) for number, name in enumerate("ab")]
    options = ("--launcher", "ray", "--ray-address", cluster.url)
    with commanded(tmp_path / "controller", SPARE, *options) as there:
        for job in jobs:
            there.post("/v1/jobs", {**job.submission(attempts=3), "slo": 8.0, "rollout": PHASE, "train": PHASE})
        there.until(lambda: all(steps_of(job) >= 3 for job in jobs))
        before = {job.name: nodes_of(there.view(job.name)) for job in jobs}
        assert len(set(before.values())) == 1, "they share their nodes, as that is cheaper"
        lost = before["a"][0]
        node = cluster.nodes[lost]
        names = [name for name, each in cluster.nodes.items() if each == node]
        cluster.remove(node)
        try:
            after: dict[str, tuple[str, str]] = {}

            def both_are_elsewhere() -> bool:
                """Each at a moment of its own: one may be over before the other begins again."""
                for job in jobs:
                    view = there.view(job.name)
                    if view["attempt"] > 1 and view["rollout_nodes"] and view["train_nodes"]:
                        after[job.name] = nodes_of(view)
                return len(after) == len(jobs)

            there.until(both_are_elsewhere)
            assert all(lost not in nodes for nodes in after.values())
            assert {job.name: there.until_ended(job.name) for job in jobs} == {"a": "finished", "b": "finished"}
        finally:
            cluster.add(*names)
    for job in jobs:
        assert steps_of(job) == STEPS
        require_accounted(job)
        assert left_behind(job.out) == job.alone()


@pytest.mark.slow
@pytest.mark.parametrize(("trains", "lost"), [(1, "rollout-0"), (2, "train-0")])
def test_a_job_that_spans_nodes_trains_what_it_trains_in_one_process_though_one_of_them_is_lost(
    cluster: RealRay, tmp_path: Path, trains: int, lost: str
) -> None:
    """By two training nodes gradients are added up in another order, and no response is another."""
    job = Job(tiny(name="a", **SPANNING), tmp_path)
    options = ("--launcher", "ray", "--ray-address", cluster.url)
    with commanded(tmp_path / "controller", SPARE, *options) as there:
        there.post("/v1/jobs", spanning(job, 2, trains))
        there.until(lambda: steps_of(job) >= 3)
        places = [node_of(job.name, 1, rank) for rank in range(2 + trains)]
        assert sorted(places[:2]) == ["rollout-0", "rollout-1"]
        assert sorted(places[2:]) == sorted(there.view("a")["train_nodes"])
        assert lost in places
        cluster.remove(cluster.nodes[lost])
        try:
            there.until(lambda: not there.view("a")["rollout_nodes"])
        finally:
            cluster.add(lost)
        there.until(lambda: there.view("a")["attempt"] == 2)
        assert there.until_ended("a", patience_s=900.0) == "finished"
    assert steps_of(job) == STEPS
    require_accounted(job)
    if trains == 1:
        assert left_behind(job.out) == job.alone()
    else:
        require_equal_but_for_rounding(job.alone(), left_behind(job.out))


ROOMY = f"""
rollout: {{on_demand: false, max_nodes: 3, node: {NODE}}}
train: {{on_demand: false, max_nodes: 3, node: {NODE}}}
"""
LOST = 20
# A job whose training node alone is lost goes on for the ten seconds after which Ray knows of it: it must not end then.
SLOWER: dict[str, Any] = {**BIGGER, "steps": 560, "batching": {"prompts": 48}, "task": {"prompts": 400}}
HICCUP_S = 2.0  # of a neighbour's step, where raylets and jobs come and go on the same two cores


@pytest.mark.slow
def test_a_job_whose_nodes_are_lost_twenty_times_trains_what_it_would_have_and_its_neighbour_goes_on(
    cluster: RealRay, tmp_path: Path
) -> None:
    random, job = Random(0), Job(tiny(name="a", **SLOWER), tmp_path)
    options, more = ("--launcher", "ray", "--ray-address", cluster.url), [["rollout-2"], ["train-2"]]
    for names in more:
        cluster.add(*names)
    try:
        with commanded(tmp_path / "controller", ROOMY, *options) as there:
            whole = {"nodes": 1, "duration_s": PLAYED_S, "resident_gb": 99}  # of a node's memory: it shares with nobody
            there.post("/v1/jobs", {**played("neighbour", tmp_path, attempts=1), "rollout": whole, "train": whole})
            there.until(lambda: bool(there.view("neighbour")["rollout_nodes"]))
            mine = nodes_of(there.view("neighbour"))
            phases = {kind: {**PHASE, "resident_gb": 2} for kind in ("rollout", "train")}
            there.post("/v1/jobs", {**job.submission(attempts=LOST + 2), "slo": 8.0, **phases})
            calm: float | None = None
            for _ in range(LOST):
                seen = steps_of(job)
                there.until(lambda: steps_of(job) > seen and bool(there.view("a")["rollout_nodes"]))  # noqa: B023
                calm = calm or time.monotonic()
                time.sleep(random.uniform(0.0, 1.0))
                view = there.view("a")
                node = cluster.nodes[random.choice(nodes_of(view))]
                names = [name for name, each in cluster.nodes.items() if each == node]
                assert not {*names, *nodes_of(view)} & {*mine}, "the neighbour has its nodes for itself"
                cluster.remove(node)
                there.until(lambda: there.view("a")["attempt"] > view["attempt"])  # noqa: B023
                cluster.add(*names)
            assert there.until_ended("a", patience_s=1200.0) == "finished"
            (tmp_path / "neighbour" / "enough").touch()
            assert there.until_ended("neighbour") == "finished"  # in its one attempt
    finally:
        for (name,) in more:
            if name in cluster.nodes:
                cluster.remove(cluster.nodes[name])
    assert calm is not None
    lines = (tmp_path / "neighbour" / "steps").read_text().splitlines()
    steps = [(float(began), float(ended) - float(began)) for began, ended in map(str.split, lines)]
    before_s, after_s = (median(took for began, took in steps if (began > calm) == later) for later in (False, True))
    assert after_s <= NOISE * before_s + 0.02
    assert max(took for _, took in steps) <= before_s + HICCUP_S
    require_accounted(job)
    assert left_behind(job.out) == job.alone()
