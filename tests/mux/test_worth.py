"""What work is worth, and what leavers free, is known after it was asked for once; other prices are other answers."""

from dataclasses import replace

import pytest

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster, Pool, elastic
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.moves import Movable, compaction
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, Placement
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.worth import WORTH, burden_usd_per_hour, most_worth_usd_per_hour, worth_by_phase, worth_usd


def dearer(pool: Pool) -> Pool:
    return replace(pool, node_type=replace(pool.node_type, usd_per_gpu_hour=2 * pool.node_type.usd_per_gpu_hour))


TWICE = Cluster(dearer(PAPER_CLUSTER.rollout), dearer(PAPER_CLUSTER.train))
ROLLOUT_USD, TRAIN_USD = (pool.node_type.usd_per_hour for pool in PAPER_CLUSTER.pools)


def job(name: str) -> JobSpec:
    """Works for a third of its time in rollout, on one node of each pool."""
    return JobSpec(name, PhaseSpec(50.0, 1), PhaseSpec(100.0, 1), 3.0)


def alone(name: str, number: int) -> Group:
    here = Placement((f"r{number}",), (f"t{number}",))
    return Group(f"group-{number}", (Member.of(job(name), here),), Order.URGENCY)


def test_work_is_worth_the_nodes_time_that_it_uses_at_the_prices_asked_for() -> None:
    spec = job("A")
    for factor, cluster in ((1, PAPER_CLUSTER), (2, TWICE), (1, PAPER_CLUSTER)):
        usd = worth_by_phase(spec, cluster)
        assert usd[ROLLOUT] == pytest.approx(factor * WORTH * ROLLOUT_USD / 3)
        assert usd[TRAIN] == pytest.approx(factor * WORTH * TRAIN_USD * 2 / 3)
        assert most_worth_usd_per_hour(spec, cluster) == usd[ROLLOUT] + usd[TRAIN]
        assert worth_usd(alone("A", 0), cluster, Forecaster()) == pytest.approx(usd[ROLLOUT] + usd[TRAIN])


def test_what_a_move_saves_follows_the_prices_asked_for() -> None:
    policy, groups = RollmuxPolicy(), {f"group-{i}": alone(name, i) for i, name in enumerate("AB")}
    movable = {"A": Movable(groups["group-0"].members[0].job, 36_000.0, 300.0)}

    def saved(cluster: Cluster) -> float:
        snapshot = Snapshot(cluster, groups, next_node=2, next_group=2)
        moves = compaction(groups["group-0"], snapshot, movable, policy, 3600.0)
        assert moves is not None
        (plan,) = moves.plans
        assert plan.group.members == (*groups["group-1"].members, plan.group.members[-1])
        # The same group by another way has the same burden.
        again = replace(plan, group=Group(plan.group.id, plan.group.members, plan.group.order))
        burden = burden_usd_per_hour(plan, snapshot, policy.forecaster)
        assert burden == burden_usd_per_hour(again, snapshot, Forecaster())
        return moves.saved_usd_per_hour

    once, again = saved(PAPER_CLUSTER), saved(elastic(PAPER_CLUSTER.rollout.node_type, PAPER_CLUSTER.train.node_type))
    assert saved(TWICE) == pytest.approx(2 * once) == pytest.approx(2 * again)
    assert saved(PAPER_CLUSTER) == once
