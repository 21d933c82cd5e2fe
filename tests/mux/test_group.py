"""Groups are values, their nodes are those their jobs are pinned to, and their price counts each node once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group, node_type_of
from rollmux.mux.hardware import PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN
from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, Placement
from tests.builders import (
    ROLLOUT_USD,
    SHARED_CLUSTER,
    TRAIN_USD,
    any_jobs,
    group,
    groups_of,
    job,
    pinned,
    strict_jobs,
)
from tests.thorough import examples

GROUPS = groups_of(any_jobs(most_nodes=(3, 2), most_gb=300), orders=st.sampled_from(Order))
SHARED_GROUPS = groups_of(any_jobs(most_nodes=(3, 2)), ("n0 n1 n2", "n1 n2 n3"))
# As the paper's policy makes them: all train on the same node, and each rolls out on one.
PAPER_GROUPS = groups_of(strict_jobs(), ("r0 r1 r2", "t0"))


@given(group=GROUPS, data=st.data())
def test_a_job_that_joins_and_leaves_again_changes_nothing(group: Group, data: st.DataObject) -> None:
    new = pinned(data.draw(any_jobs("new")), "r0", "t9")
    joined = group.joined_by(new)
    assert joined.member("new") is new
    assert joined.members[:-1] == group.members
    assert joined.left_by("new") == group


@settings(max_examples=examples(150))
@given(group=GROUPS, data=st.data())
def test_what_a_group_tells_the_forecast_does_not_depend_on_how_it_came_about(
    group: Group, data: st.DataObject
) -> None:
    new = pinned(
        data.draw(any_jobs("new")), data.draw(st.sampled_from(("r0", "r9"))), data.draw(st.sampled_from(("t0", "t9")))
    )
    assert group.parts  # known before the job joins
    grown = group.joined_by(new)
    assert grown.parts == Group(grown.id, grown.members, grown.order).parts


@settings(max_examples=examples(150))
@given(group=GROUPS, data=st.data())
def test_what_is_taken_of_each_node_does_not_depend_on_how_a_group_came_about(
    group: Group, data: st.DataObject
) -> None:
    rollout, train = data.draw(st.sampled_from(("r0", "r9"))), data.draw(st.sampled_from(("t0", "t9", "r0")))
    new = pinned(data.draw(any_jobs("new")), rollout, train)
    assert group.uses  # known before the job joins
    grown = group.joined_by(new)
    left = grown.left_by(group.members[0].job.id)
    assert list(grown.uses.items()) == list(Group(grown.id, grown.members, grown.order).uses.items())
    assert left.uses == Group(left.id, left.members, left.order).uses


@settings(max_examples=examples(150))
@given(group=GROUPS, data=st.data())
def test_other_limits_change_what_follows_from_limits_and_nothing_else(group: Group, data: st.DataObject) -> None:
    slower = {
        member.job.id: member.limit_s * data.draw(st.sampled_from((0.9, 1.0, 1.3)))
        for member in group.members
        if data.draw(st.booleans())
    }
    asked = ("uses", "parts", "nodes", "least_crowded", "sole_tenants", "roams", "load_s", "free_shares", "glance")
    for name in asked:
        if data.draw(st.booleans()):
            getattr(group, name)  # known before, or not
    changed = group.with_limits(slower)
    assert {m.job.id: m.limit_s for m in changed.members} == {m.job.id: m.limit_s for m in group.members} | slower
    for found in (changed, changed.left_by(group.members[0].job.id)):
        anew = Group(found.id, found.members, found.order)
        for name in asked if found.members else ():
            assert getattr(found, name) == getattr(anew, name), name


@given(group=GROUPS)
def test_a_job_that_leaves_and_joins_again_is_only_last_in_the_order(group: Group) -> None:
    first, *others = group.members
    assert group.uses  # known before
    again = group.left_by(first.job.id).joined_by(first)
    assert again.uses == Group(again.id, again.members, again.order).uses
    assert again.members == (*others, first)
    assert (again.id, again.order) == (group.id, group.order)


@given(group=GROUPS)
def test_a_group_has_exactly_the_nodes_that_its_jobs_are_pinned_to(group: Group) -> None:
    rollout = {node for m in group.members for node in m.placement.rollout}
    train = {node for m in group.members for node in m.placement.train}
    assert (set(group.rollout_nodes), set(group.train_nodes)) == (rollout, train)
    assert set(group.nodes) == set(group.uses) == rollout | train
    for nodes in (group.rollout_nodes, group.train_nodes, group.nodes):
        assert len(set(nodes)) == len(nodes)


@given(group=GROUPS)
def test_who_leaves_takes_along_the_nodes_that_nobody_else_is_pinned_to(group: Group) -> None:
    leaver = group.members[0]
    after = group.left_by(leaver.job.id)
    gone = set(group.nodes) - set(after.nodes)
    assert gone == {
        node for node in leaver.placement.all_nodes if len({t.job_id for t in group.uses[node].tenants}) == 1
    }


@given(group=GROUPS)
def test_two_pools_are_paid_by_the_node_each_at_its_own_price(group: Group) -> None:
    price = len(group.rollout_nodes) * ROLLOUT_USD + len(group.train_nodes) * TRAIN_USD
    assert group.usd_per_hour(PAPER_CLUSTER) == pytest.approx(price)


@given(group=SHARED_GROUPS)
def test_a_node_of_a_shared_pool_is_paid_once_though_both_kinds_of_phase_run_there(group: Group) -> None:
    assert group.usd_per_hour(SHARED_CLUSTER) == pytest.approx(len(set(group.nodes)) * TRAIN_USD)


@given(group=st.one_of(GROUPS, SHARED_GROUPS))
def test_a_node_s_work_is_that_of_every_phase_pinned_to_it(group: Group) -> None:
    for node, use in group.uses.items():
        phases = [m.job.phase(k) for m in group.members for k in (ROLLOUT, TRAIN) if node in m.placement.nodes(k)]
        assert use.busy_s == pytest.approx(sum(phase.planned_s for phase in phases))
        assert use.resident_bytes == sum(phase.resident_bytes for phase in phases)
        assert len(use.tenants) == len(phases)
    assert group.load_s == max(use.busy_s for use in group.uses.values())
    assert group.cycle_s == max(m.job.solo_s for m in group.members)


@given(group=PAPER_GROUPS)
def test_load_and_cycle_are_the_paper_s_on_one_training_node(group: Group) -> None:
    jobs = [m.job for m in group.members]
    per_node = [
        sum(m.job.rollout.duration_s for m in group.members if node in m.placement.rollout)
        for node in group.rollout_nodes
    ]
    load_s = max(sum(j.train.duration_s for j in jobs), *per_node)
    cycle_s = max(j.rollout.duration_s + j.train.duration_s for j in jobs)
    assert (group.load_s, group.cycle_s) == pytest.approx((load_s, cycle_s))
    assert group.saturated == (load_s >= cycle_s)


@given(group=st.one_of(GROUPS, SHARED_GROUPS))
def test_free_shares_are_what_no_slo_needs(group: Group) -> None:
    rollout, train = group.free_shares
    rollout += sum(m.share(ROLLOUT) * m.job.rollout.nodes for m in group.members if m.roams)
    assert rollout == pytest.approx(len(group.rollout_nodes) - sum(group.uses[n].share for n in group.rollout_nodes))
    assert train == pytest.approx(len(group.train_nodes) - sum(group.uses[n].share for n in group.train_nodes))


def test_who_roams_takes_its_time_from_all_rollout_nodes_together() -> None:
    still, roaming = (
        JobSpec("a", PhaseSpec(60, 1), PhaseSpec(40, 1), 1.5),
        JobSpec("b", PhaseSpec(90, 1), PhaseSpec(60, 1), 1.5, rollout_spares=2),
    )
    group = Group("g", (Member.of(still, Placement(("r0",), ("t0",))),))
    group = group.joined_by(Member.of(roaming, Placement(("r0", "r1", "r2"), ("t0",))))
    assert group.roams
    assert not group.left_by("b").roams
    assert group.free_shares == pytest.approx((3 - 60 / 150 - 90 / 225, 1 - 40 / 150 - 60 / 225))
    assert [group.uses[node].share for node in ("r0", "r1", "r2")] == pytest.approx([0.4, 0, 0])


@given(group=GROUPS)
def test_new_knowledge_of_a_job_changes_that_job_alone(group: Group) -> None:
    old = group.members[-1]
    job = old.job.measured(17.0, 19.0)
    after = group.with_job(job)
    assert after.members[:-1] == group.members[:-1]
    assert after.member(job.id).job == job
    assert after.member(job.id).placement == old.placement
    assert after.member(job.id).limit_s == pytest.approx(job.slo * job.solo_s)
    assert (after.id, after.order, after.nodes) == (group.id, group.order, group.nodes)


@pytest.mark.parametrize(
    ("rollouts_s", "trains_s", "saturated"),
    [
        ((131,), (102,), False),
        ((131, 131), (102, 102), True),  # 262 s of rollouts, 233 s alone
        ((100, 50), (50, 100), True),  # exactly as much as the longest job takes
        ((100, 49), (50, 99), False),
    ],
    ids=["alone", "two A", "just", "just not"],
)
def test_a_group_is_saturated_from_the_point_where_the_work_fills_the_cycle(
    rollouts_s: tuple[float, ...], trains_s: tuple[float, ...], saturated: bool
) -> None:
    pairs = enumerate(zip(rollouts_s, trains_s, strict=True))
    members = [pinned(job(f"j{i}", rollout_s, train_s), "r0", "t0") for i, (rollout_s, train_s) in pairs]
    assert group("g", *members).saturated is saturated


def test_a_node_has_the_type_of_its_pool() -> None:
    found = group("g", pinned(job(), "r0", "t0"))
    assert node_type_of(PAPER_CLUSTER, found, "r0") is PAPER_ROLLOUT
    assert node_type_of(PAPER_CLUSTER, found, "t0") is PAPER_TRAIN


def test_groups_with_the_same_members_are_equal() -> None:
    one = group("g", pinned(job(), "r0", "t0"))
    assert one == group("g", pinned(job(), "r0", "t0"))
    assert one != replace(one, order=Order.ROUND_ROBIN)


@settings(max_examples=examples(100))
@given(group=GROUPS, data=st.data())
def test_a_newcomer_that_says_something_else_of_its_slo_leaves_all_else_that_is_known(
    group: Group, data: st.DataObject
) -> None:
    spec, forecaster = data.draw(any_jobs("new")), Forecaster()
    first = pinned(replace(spec, slo=spec.slo + 1), "r0", "t0")
    known = group.joined_by(first)
    trial = forecaster.trial(known)
    assert known.uses
    again = known.with_newcomer_as(Member(spec, first.placement, first.limit_s))
    anew = Group(again.id, (*group.members, Member(spec, first.placement, first.limit_s)), again.order)
    assert again == anew
    assert (again.parts, again.uses) == (anew.parts, anew.uses)
    assert again.hermit == anew.hermit
    assert forecaster.trial(again) is trial
    assert trial.iteration_s == Forecaster().trial(anew).iteration_s


@given(group=GROUPS)
def test_a_group_knows_at_a_glance_what_holds_of_its_nodes_and_who_has_one_to_itself(group: Group) -> None:
    uses, glance = group.uses, group.glance
    assert (glance.members, glance.hermit, glance.free_shares) == (len(group.members), group.hermit, group.free_shares)
    for nodes, outline in ((group.rollout_nodes, glance.rollout), (group.train_nodes, glance.train)):
        each = [uses[node] for node in nodes]
        least = [min(use.share for use in each), min(use.spare for use in each)]
        times = [max(use.blocks_s for use in each), min(use.away_s for use in each)]
        assert outline == (len(nodes), *least, *times, max(use.host_bytes for use in each))
    for member in group.members:
        alone = [
            node for node in member.placement.all_nodes if [t.job_id for t in uses[node].tenants] == [member.job.id]
        ]
        assert (member.job.id in group.sole_tenants) == bool(alone)
