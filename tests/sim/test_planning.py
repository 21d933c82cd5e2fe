"""Plans for a set of jobs on an empty cluster."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux.errors import InvalidSpec
from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool, finite
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.sim.planning import dedicated_usd_per_hour, empty_snapshot, plan_jobs
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.production import production_jobs
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, any_jobs, job

FIXED = Cluster(
    replace(finite(PAPER_ROLLOUT, PAPER_TRAIN).rollout, max_nodes=3),
    replace(finite(PAPER_ROLLOUT, PAPER_TRAIN).train, max_nodes=2),
)
POLICIES = [name for name, contender in CONTENDERS.items() if not contender.colocated]


def test_two_jobs_that_fit_share_one_pair_of_nodes() -> None:
    planned = plan_jobs([job("a"), job("b")], RollmuxPolicy(), PAPER_CLUSTER)
    (group,) = planned.groups
    assert [j.job for j in group.jobs] == ["a", "b"]
    assert (group.rollout_nodes, group.train_nodes) == (("rollout-0",), ("train-0",))
    assert [(j.solo_s, j.iteration_s, j.slowdown) for j in group.jobs] == [(200.0, 200.0, 1.0)] * 2
    assert group.jobs[0].headroom == pytest.approx(1 - 1 / 1.2)
    assert planned.usd_per_hour == pytest.approx(ROLLOUT_USD + TRAIN_USD)
    assert planned.dedicated_usd_per_hour == pytest.approx(2 * planned.usd_per_hour)
    assert planned.saved == pytest.approx(0.5)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_places_the_production_jobs_within_their_slos(policy: str) -> None:
    planned = plan_jobs(production_jobs(1.5), CONTENDERS[policy].make(5, 0), PAPER_CLUSTER)
    assert sum(len(group.jobs) for group in planned.groups) == len(planned.explanations) == 10
    assert all(j.headroom > -1e-9 for group in planned.groups for j in group.jobs)
    assert planned.usd_per_hour <= planned.dedicated_usd_per_hour * (1 + 1e-9)
    assert planned.dedicated_usd_per_hour == pytest.approx(570.4)


def test_what_jobs_cost_and_take_alone_does_not_depend_on_what_a_policy_makes_of_them() -> None:
    """`paper` trains a job on all nodes of its group."""
    jobs = [
        job("wide", 300.0, 200.0, slo=2.0, nodes=(1, 2)),
        job("narrow", 100.0, 50.0, slo=2.0),
    ]
    plans = {name: plan_jobs(jobs, CONTENDERS[name].make(5, 0), PAPER_CLUSTER) for name in POLICIES}
    assert len({round(planned.dedicated_usd_per_hour, 6) for planned in plans.values()}) == 1
    for planned in plans.values():
        for each in (one for group in planned.groups for one in group.jobs):
            assert each.solo_s == {"wide": 500.0, "narrow": 150.0}[each.job]
            assert each.limit_s == pytest.approx(each.slo * each.solo_s)


@given(st.lists(any_jobs(most_nodes=(2, 2), most_gb=400), max_size=8), st.sampled_from(POLICIES), st.booleans())
def test_every_job_is_placed_or_said_to_be_not_and_nodes_are_those_there_are(
    drawn: list[JobSpec], policy: str, shared: bool
) -> None:
    jobs = [replace(each, id=f"j{i}") for i, each in enumerate(drawn)]
    cluster = replace(SHARED_CLUSTER, rollout=_FIVE, train=_FIVE) if shared else FIXED
    planned = plan_jobs(jobs, CONTENDERS[policy].make(5, 0), cluster)
    placed = [j for group in planned.groups for j in group.jobs]
    assert sorted([j.job for j in placed] + [j.job for j in planned.unplaced]) == sorted(planned.explanations)
    assert list(planned.explanations) == [each.id for each in jobs]
    assert all(j.headroom > -1e-6 for j in placed)
    used = [node for group in planned.groups for node in {*group.rollout_nodes, *group.train_nodes}]
    assert len(used) == len(set(used))
    assert set(used) <= {node for nodes in empty_snapshot(cluster).idle.values() for node in nodes}


_FIVE = Pool("gpu", PAPER_TRAIN, on_demand=False, max_nodes=5)


def test_a_job_without_a_place_is_left_out_with_the_reason() -> None:
    tight = [job(name, slo=1.0, nodes=(1, 1)) for name in "abc"]
    planned = plan_jobs(tight, CONTENDERS["solo"].make(1, 0), FIXED)
    assert [group.id for group in planned.groups] == ["group-0", "group-1"]
    (left,) = planned.unplaced
    assert left.job == "c"
    assert "0 of the 1 nodes it needs in pool train" in left.reason
    assert left.reason in planned.explanations["c"]
    assert planned.dedicated_usd_per_hour == pytest.approx(2 * (ROLLOUT_USD + TRAIN_USD))


def test_jobs_that_could_not_run_even_alone_are_refused_all_at_once() -> None:
    jobs = [job("a", nodes=(4, 1)), job("a"), job("b", slo=0.5)]
    with pytest.raises(InvalidSpec) as refused:
        plan_jobs(jobs, RollmuxPolicy(), FIXED)
    assert [problem.path for problem in refused.value.problems] == [
        "job 1, job.rollout.nodes",
        "job 2, job.id",
        "job 3, job.slo",
    ]


def test_wants_in_gpus_become_whole_nodes() -> None:
    wide = replace(job("a"), rollout=PhaseSpec(100.0, gpus=12))
    (group,) = plan_jobs([wide], RollmuxPolicy(), PAPER_CLUSTER).groups
    assert len(group.rollout_nodes) == 2


def test_alone_on_a_shared_pool_both_phases_use_the_same_nodes() -> None:
    assert dedicated_usd_per_hour(job(nodes=(2, 1)), SHARED_CLUSTER) == pytest.approx(2 * TRAIN_USD)


def test_the_plan_of_nothing_is_empty() -> None:
    planned = plan_jobs([], RollmuxPolicy(), PAPER_CLUSTER)
    assert (planned.groups, planned.unplaced, planned.usd_per_hour, planned.saved) == ((), (), 0, 0.0)
