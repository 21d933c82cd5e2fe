"""Every plan is checked against the numbered promises, and whatever the policies make passes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.errors import InvariantViolated
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool, finite
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import (
    TRAIL_LIMIT,
    Candidate,
    Plan,
    Strategy,
    Trail,
    Verdict,
    check_plan,
    memory_problem,
    own_groups,
    strategy_of,
)
from rollmux.mux.policies import Policy
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import NewNode, Snapshot
from rollmux.mux.validation import job_problems
from tests.builders import ROLLOUT_USD, SHARED_CLUSTER, TRAIN_USD, any_jobs, group, job, pinned, snapshot
from tests.thorough import examples

HOME = group("group-0", pinned(job("a", slo=3.0), "r0", "t0"))
NEIGHBOUR = group("group-1", pinned(job("n", slo=3.0), "r1", "t1"))
BEFORE = snapshot(HOME, NEIGHBOUR)


def plan_for(job: JobSpec, rollout: str, train: str, *new: NewNode, into: Group = HOME) -> Plan:
    usd = sum(ROLLOUT_USD if pool == "rollout" else TRAIN_USD for pool, _ in new)
    return Plan(job.id, Strategy.DIRECT, into.joined_by(pinned(job, rollout, train)), new, usd)


def refusal(plan: Plan, before: Snapshot = BEFORE) -> str:
    """The number of the promise that the plan would break."""
    image = repr(before)
    with pytest.raises(InvariantViolated) as broken:
        check_plan(plan, before, Forecaster())
    assert str(broken.value).startswith(f"{broken.value.number}: ")
    assert repr(before) == image
    return broken.value.number


NEW = job("b", slo=3.0)


def test_a_plan_on_its_group_s_own_nodes_and_new_ones_is_accepted() -> None:
    check_plan(plan_for(NEW, "r0", "t0"), BEFORE, Forecaster())
    check_plan(plan_for(NEW, "rollout-4", "t0", ("rollout", "rollout-4")), BEFORE, Forecaster())


@pytest.mark.parametrize(("rollout", "train"), [("r1", "t0"), ("r0", "t1"), ("r9", "t0")])
def test_i1_a_group_holds_no_node_that_it_does_not_own(rollout: str, train: str) -> None:
    assert refusal(plan_for(NEW, rollout, train)) == "I1"


def test_i1_a_new_group_owns_nothing_yet() -> None:
    assert refusal(plan_for(NEW, "r0", "t0", into=group("group-2"))) == "I1"


def test_i2_a_new_node_is_one_that_its_pool_can_give() -> None:
    taken = plan_for(NEW, "r1", "t0", ("rollout", "r1"))  # belongs to the neighbour
    unknown = plan_for(NEW, "rollout-77", "t0", ("rollout", "rollout-77"))
    assert refusal(taken) == refusal(unknown) == "I2"


def test_i2_a_pool_gives_no_more_nodes_than_it_may_have() -> None:
    limited = replace(BEFORE, cluster=Cluster(replace(PAPER_CLUSTER.rollout, max_nodes=2), PAPER_CLUSTER.train))
    assert refusal(plan_for(NEW, "rollout-4", "t0", ("rollout", "rollout-4")), limited) == "I2"


def test_i2_machines_that_stay_are_given_only_while_idle() -> None:
    cluster = finite(PAPER_ROLLOUT, PAPER_TRAIN)
    there = snapshot(HOME, cluster=cluster, idle={"rollout": ("m0",)})
    check_plan(plan_for(NEW, "m0", "t0", ("rollout", "m0")), there, Forecaster())
    assert refusal(plan_for(NEW, "m1", "t0", ("rollout", "m1")), there) == "I2"


def test_i2_no_node_comes_from_a_pool_that_does_not_exist() -> None:
    assert refusal(plan_for(NEW, "r1", "t0", ("nowhere", "r1"))) in ("I1", "I2")


def test_i2_a_node_of_one_pool_does_not_do_the_other_s_work() -> None:
    assert refusal(plan_for(NEW, "train-4", "t0", ("train", "train-4"))) in ("I1", "I2")
    assert refusal(plan_for(NEW, "t0", "t0")) in ("I1", "I2")


def test_i1_each_phase_has_as_many_distinct_nodes_as_it_wants() -> None:
    two = ("rollout", "rollout-4")
    wide = replace(NEW, rollout=replace(NEW.rollout, nodes=2))
    check_plan(plan_for(wide, "r0 rollout-4", "t0", two), BEFORE, Forecaster())
    narrow = Member(wide, Placement(("r0",), ("t0",)), wide.limit_s)
    twice = Member(wide, Placement(("r0", "r0"), ("t0",)), wide.limit_s)
    for member in (narrow, twice):
        assert refusal(Plan(wide.id, Strategy.DIRECT, HOME.joined_by(member), (), 0.0)) == "I1"


@pytest.mark.parametrize("names", [("rollout-4", "rollout-5"), ("rollout-4", "rollout-4")])
def test_i2_each_new_node_is_there_once_and_for_the_job(names: tuple[str, ...]) -> None:
    assert refusal(plan_for(NEW, "rollout-4", "t0", *(("rollout", name) for name in names))) == "I2"


def test_i2_a_plan_names_its_true_price() -> None:
    plan = plan_for(NEW, "rollout-4", "t0", ("rollout", "rollout-4"))
    assert refusal(replace(plan, added_usd_per_hour=0.0)) == "I2"


def test_i9_a_plan_is_for_the_job_that_joins() -> None:
    assert refusal(replace(plan_for(NEW, "r0", "t0"), job_id="a")) == "I9"


@pytest.mark.parametrize(("sizes_gb", "node"), [((600, 100), "r0"), ((100, 600), "t0")])
def test_i3_the_state_of_all_tenants_fits_every_node(sizes_gb: tuple[int, int], node: str) -> None:
    full = snapshot(group("group-0", pinned(job("a", slo=3.0, resident_gb=(500, 500)), "r0", "t0")))
    new = job("b", slo=3.0, resident_gb=sizes_gb)
    plan = plan_for(new, "r0", "t0", into=full.groups["group-0"])
    assert memory_problem(full, plan.group) == (node, 1100 * GB, 1000 * GB)
    assert refusal(plan, full) == "I3"


def test_i3_memory_that_is_just_filled_is_enough() -> None:
    full = snapshot(group("group-0", pinned(job("a", slo=3.0, resident_gb=(500, 500)), "r0", "t0")))
    plan = plan_for(job("b", slo=3.0, resident_gb=(500, 500)), "r0", "t0", into=full.groups["group-0"])
    check_plan(plan, full, Forecaster())


def test_i3_a_node_that_serves_both_phases_holds_the_state_of_both() -> None:
    empty = snapshot(cluster=SHARED_CLUSTER)
    alone = group("group-0").joined_by(pinned(job("a", resident_gb=(600, 600)), "gpu-0", "gpu-0"))
    assert refusal(Plan("a", Strategy.ISOLATED, alone, (("gpu", "gpu-0"),), TRAIN_USD), empty) == "I3"


def test_i9_the_new_job_meets_its_slo() -> None:
    assert refusal(plan_for(job("b", 100, 50, slo=1.1), "r0", "t0")) == "I9"


def test_i9_the_jobs_that_are_there_keep_theirs() -> None:
    strict = snapshot(group("group-0", pinned(job("a", 100, 50, slo=1.1), "r0", "t0")))
    plan = plan_for(NEW, "r0", "t0", into=strict.groups["group-0"])
    with pytest.raises(InvariantViolated, match="I9: a would take 200 s an iteration, its SLO allows 165 s"):
        check_plan(plan, strict, Forecaster())


def test_i9_nobody_is_pushed_out_of_a_group() -> None:
    only_new = group("group-0", pinned(NEW, "r0", "t0"))
    with pytest.raises(InvariantViolated):
        check_plan(Plan("b", Strategy.DIRECT, only_new, (), 0.0), BEFORE, Forecaster())


def test_i9_nobody_s_slo_is_loosened_to_let_another_in() -> None:
    strict = snapshot(group("group-0", pinned(job("a", 100, 50, slo=1.1), "r0", "t0")))
    loose = replace(strict.groups["group-0"].members[0], limit_s=1e6)
    with pytest.raises(InvariantViolated):
        check_plan(plan_for(NEW, "r0", "t0", into=group("group-0", loose)), strict, Forecaster())


def test_a_strategy_is_named_by_what_it_adds() -> None:
    assert strategy_of(0, 0) is Strategy.DIRECT
    assert strategy_of(2, 0) is Strategy.ROLLOUT_SCALING
    assert strategy_of(0, 1) is Strategy.TRAIN_SCALING
    assert strategy_of(1, 1) is Strategy.MIXED_SCALING


def test_a_group_of_its_own_has_the_nodes_that_the_job_wants() -> None:
    (plan,) = own_groups(job("a", nodes=(2, 1)), snapshot(), group("group-0"))
    assert plan.placement.rollout == ("rollout-0", "rollout-1")
    assert plan.placement.train == ("train-0",)
    assert plan.new_nodes == (("rollout", "rollout-0"), ("rollout", "rollout-1"), ("train", "train-0"))
    assert plan.added_usd_per_hour == pytest.approx(2 * ROLLOUT_USD + TRAIN_USD)


@pytest.mark.parametrize(("rollout", "train", "both", "apart"), [(2, 1, 2, 3), (1, 2, 2, 3), (2, 2, 2, 4)])
def test_on_a_shared_pool_a_job_may_have_the_same_nodes_for_both_phases_or_nodes_apart(
    rollout: int, train: int, both: int, apart: int
) -> None:
    plans = own_groups(job("a", nodes=(rollout, train)), snapshot(cluster=SHARED_CLUSTER), group("group-0"))
    names = tuple(f"gpu-{i}" for i in range(4))
    for plan, count in zip(plans, (both, apart), strict=True):
        assert plan.placement.rollout == names[:rollout]
        assert plan.placement.train == (names[:train] if count == both else names[rollout : rollout + train])
        assert plan.new_nodes == tuple(("gpu", name) for name in names[:count])
        assert plan.added_usd_per_hour == pytest.approx(count * TRAIN_USD)


def test_a_trail_keeps_the_first_and_counts_the_rest_with_the_nearest_miss() -> None:
    trail = Trail()
    for i in range(TRAIL_LIMIT + 30):
        trail.add(Candidate(f"g{i}", Strategy.DIRECT, 0.0, Verdict.SLO, "a", 500.0 - i, 100.0))
    trail.add(Candidate("last", Strategy.ISOLATED, 9.0, Verdict.TAKEN))
    assert [c.group_id for c in trail.candidates] == [f"g{i}" for i in range(TRAIL_LIMIT)] + ["last"]
    ((count, nearest),) = trail.more.values()
    assert (count, nearest.group_id) == (30, f"g{TRAIL_LIMIT + 29}")


# -- whole populations -------------------------------------------------------------------------------------------

LIMITED = Cluster(Pool("rollout", PAPER_ROLLOUT, max_nodes=6), Pool("train", PAPER_TRAIN, max_nodes=3))
FINITE = finite(PAPER_ROLLOUT, PAPER_TRAIN)
MACHINES = {"rollout": ("m0", "m1", "m2", "m3", "m4"), "train": ("x0", "x1", "x2")}
EMPTY = {
    "elastic": snapshot(),
    "limited": snapshot(cluster=LIMITED),
    "finite": snapshot(cluster=FINITE, idle=MACHINES),
    "shared": snapshot(cluster=SHARED_CLUSTER),
}


ROOMY = st.sampled_from((1.0, 1.3, 2.0, 3.0, 5.0))
COMING = st.one_of(
    st.builds(lambda job, slo: replace(job, slo=slo), any_jobs(most_nodes=(2, 2), most_gb=450), ROOMY),
    any_jobs(most_nodes=(3, 2)),
)


def populate(policy: Policy, before: Snapshot, steps: list[JobSpec | None]) -> None:
    """Lets jobs come and, at None, the one that has been there the longest go; every plan must keep every promise."""
    present: dict[str, str] = {}
    for number, step in enumerate(steps):
        if step is None:
            if present:
                leaver = next(iter(present))
                before = before.without_job(present.pop(leaver), leaver)
            continue
        job = replace(step, id=f"job-{number}")
        assert job_problems(job, before.cluster) == ()
        plan = policy.place(job, before).plan
        if plan is None:
            assert before.cluster not in (PAPER_CLUSTER, SHARED_CLUSTER)
            continue
        check_plan(plan, before, policy.forecaster)
        after = before.with_group(plan.group, plan.new_nodes)
        check_step(plan, before, after)
        before, present[job.id] = after, plan.group.id


def check_step(plan: Plan, before: Snapshot, after: Snapshot) -> None:
    cluster = after.cluster
    old = before.groups.get(plan.group.id, Group(plan.group.id, (), plan.group.order))
    assert plan.group.left_by(plan.job_id).members == old.members
    assert plan.group.order is old.order
    shares_nodes = not set(old.nodes).isdisjoint(plan.placement.all_nodes)
    assert shares_nodes == (plan.strategy is not Strategy.ISOLATED)
    price = plan.group.usd_per_hour(cluster) - (old.usd_per_hour(cluster) if old.members else 0.0)
    assert plan.added_usd_per_hour == pytest.approx(price)
    assert len(plan.group.members) <= 5
    assert memory_problem(after, plan.group) is None
    nodes = [node for group in after.groups.values() for node in group.nodes]
    assert len(set(nodes)) == len(nodes)  # groups share no node
    for pool in cluster.pools:
        added = sum(name == pool.name for name, _ in plan.new_nodes)
        room = before.room(pool)
        assert room is None or added <= room
    forecast = Forecaster().forecast(plan.group)
    if forecast.exact:
        for member, iteration_s in zip(plan.group.members, forecast.iteration_s, strict=True):
            assert iteration_s <= member.limit_s * (1 + 1e-6)


POLICIES: dict[str, Callable[[], Policy]] = {
    "paper": PaperPolicy,
    "rollmux": RollmuxPolicy,
    "round-robin": lambda: RollmuxPolicy(order=Order.ROUND_ROBIN),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("cluster", EMPTY)
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(100))
@given(steps=st.lists(COMING | st.none(), min_size=2, max_size=12))
def test_whoever_comes_and_goes_every_plan_keeps_every_promise(
    policy: str, cluster: str, steps: list[JobSpec | None]
) -> None:
    populate(POLICIES[policy](), EMPTY[cluster], steps)


@settings(max_examples=examples(150))
@given(job=any_jobs(most_nodes=(9, 5), most_gb=1000), cluster=st.sampled_from(["elastic", "shared"]))
def test_a_valid_job_always_has_a_place_in_an_empty_cluster_that_rents(job: JobSpec, cluster: str) -> None:
    empty = EMPTY[cluster]
    assert job_problems(job, empty.cluster) == ()
    policies: tuple[Policy, ...] = (PaperPolicy(), RollmuxPolicy())
    for policy in policies:
        plan = policy.place(job, empty).plan
        assert plan is not None
        assert plan.strategy is Strategy.ISOLATED
        check_plan(plan, empty, policy.forecaster)
