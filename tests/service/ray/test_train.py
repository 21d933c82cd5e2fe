"""The reference job on a real Ray cluster: two of them woven, and a node that loses its power in the middle."""

from pathlib import Path
from typing import Any

import pytest

from rollmux.trainer.metrics import METRICS
from tests.service.commanded import commanded
from tests.service.ray.real import RealRay
from tests.service.ray.test_serve import SPARE
from tests.trainer.jobs import left_behind, tiny
from tests.trainer.test_kills import BIGGER, Job, require_accounted

STEPS = 200
# About what they take: whose first steps are measured as far quicker than submitted would not bear the other, of whom
# nothing is measured yet.
PHASE = {"nodes": 1, "duration_s": 0.1}


def steps_of(job: Job) -> int:
    metrics = job.out / METRICS
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


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
