"""The conditions that refuse a placement without a play never refuse one that could work."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec, Tail
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, ROUNDING, TRAIN, Member, NodeUse, Placement
from rollmux.mux.play import play
from tests.builders import any_jobs, group, groups_of, job, pinned, strict_jobs
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play

ORDERS = st.sampled_from(Order)
STRICT_GROUPS = groups_of(strict_jobs(most_nodes=(3, 2)))
ANY_GROUPS = groups_of(any_jobs(most_nodes=(3, 2)), orders=ORDERS)
# Where one pool serves both kinds of phase, rollouts and trainings meet on the same nodes.
COLOCATED_GROUPS = groups_of(any_jobs(most_nodes=(3, 2)), ("n0 n1 n2", "n0 n1"), orders=ORDERS)
LAST_BITS = 1e-9


def with_limits(group: Group, limits_s: Sequence[float]) -> Group:
    """The same group, its jobs tolerating exactly these iteration times."""
    members = (replace(m, limit_s=limit) for m, limit in zip(group.members, limits_s, strict=True))
    return replace(group, members=tuple(members))


def most_broken(group: Group) -> float:
    """By how much the worse of the two conditions is broken, on the worst node; 0 or less where both hold."""
    uses = group.uses.values()
    return max(max(use.share - 1, -min(tenant.spare for tenant in use.tenants)) for use in uses)


def refuses_last(group: Group) -> bool:
    """Whether any of its nodes would have refused the last member to join."""
    last = group.members[-1]
    before = group.left_by(last.job.id).uses
    return any(
        before.get(node, NodeUse()).spare_with(last.tenant(kind, group.order)) < 0
        for kind in (ROLLOUT, TRAIN)
        for node in last.placement.nodes(kind)
    )


def check_soundness(group: Group, slack: float) -> None:
    """No limits are tighter than the very times that one play keeps, so the conditions must hold for those."""
    kept_s = [0.0] * len(group.members)
    for part in group.parts:
        played = play(part.jobs, group.order)
        assume(played.exact)
        for i, iteration_s in zip(part.indexes, played.iteration_s, strict=True):
            kept_s[i] = slack * iteration_s
    kept = with_limits(group, kept_s)
    assert most_broken(kept) <= LAST_BITS
    assert not refuses_last(kept)


SLACKS = st.sampled_from((1.0, 1.0, 1.1, 2.0))


@settings(max_examples=examples(500))
@given(group=STRICT_GROUPS, slack=SLACKS)
def test_no_play_of_strict_jobs_keeps_limits_that_the_conditions_rule_out(group: Group, slack: float) -> None:
    check_soundness(group, slack)


@settings(max_examples=examples(800))
@given(group=ANY_GROUPS, slack=SLACKS)
def test_no_play_of_jobs_of_any_kind_keeps_limits_that_the_conditions_rule_out(group: Group, slack: float) -> None:
    check_soundness(group, slack)


@settings(max_examples=examples(600))
@given(group=COLOCATED_GROUPS, slack=SLACKS)
def test_no_play_on_shared_nodes_keeps_limits_that_the_conditions_rule_out(group: Group, slack: float) -> None:
    check_soundness(group, slack)


@settings(max_examples=examples(500))
@given(group=st.one_of(STRICT_GROUPS, ANY_GROUPS), slack=SLACKS)
def test_a_group_whose_forecast_meets_every_slo_would_have_let_its_last_job_in(group: Group, slack: float) -> None:
    forecast = Forecaster().forecast(group)
    assume(forecast.exact)
    promised = with_limits(group, [slack * iteration_s for iteration_s in forecast.iteration_s])
    assert most_broken(promised) <= LAST_BITS
    assert not refuses_last(promised)


@settings(max_examples=examples(300))
@given(group=STRICT_GROUPS)
def test_where_the_forecast_meets_the_slos_that_jobs_came_with_no_node_is_overbooked(group: Group) -> None:
    if Forecaster().late(group) is None:
        assert most_broken(group) <= LAST_BITS
        assert not refuses_last(group)


@settings(max_examples=examples(200))
@given(group=st.one_of(ANY_GROUPS, COLOCATED_GROUPS))
def test_a_node_refuses_exactly_those_with_whom_a_condition_would_break(group: Group) -> None:
    last = group.members[-1]
    before = group.left_by(last.job.id).uses
    for kind in (ROLLOUT, TRAIN):
        tenant = last.tenant(kind, Order.FIFO)
        for node in last.placement.nodes(kind):
            use = before.get(node, NodeUse())
            after = use.joined_by(tenant, last.job)
            least = min(t.spare for t in after.tenants)
            # A sum of many parts may differ in its last bits from the same sum made in another order.
            assume(abs(least) > 2 * ROUNDING and abs(after.share - 1) > 2 * ROUNDING)
            expected = least if least > 0 and after.share < 1 else -1.0
            assert use.spare_with(tenant) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=examples(200))
@given(group=st.one_of(ANY_GROUPS, COLOCATED_GROUPS), data=st.data())
def test_what_a_node_has_left_does_not_depend_on_who_came_first(group: Group, data: st.DataObject) -> None:
    shuffled = replace(group, members=tuple(data.draw(st.permutations(group.members))))
    for node, use in group.uses.items():
        other = shuffled.uses[node]
        assert (use.resident_bytes, use.transient_bytes) == (other.resident_bytes, other.transient_bytes)
        assert (use.share, use.busy_s) == pytest.approx((other.share, other.busy_s))
        spare = {(t.job_id, t.kind): t.spare for t in use.tenants}
        assert spare == pytest.approx({(t.job_id, t.kind): t.spare for t in other.tenants}, abs=1e-12)


@given(job=any_jobs(), colocated=st.booleans())
def test_alone_a_job_may_lose_all_that_its_slo_allows(job: JobSpec, colocated: bool) -> None:
    member = pinned(job, "n0", "n0" if colocated else "n1")
    for use in group("g", member).uses.values():
        assert [tenant.spare for tenant in use.tenants] == pytest.approx([1 - 1 / job.slo] * len(use.tenants))


def test_a_node_whose_time_is_exactly_used_up_is_full() -> None:
    members = [pinned(job(name, 100, 100, slo=1.5), "r0", f"t{name}") for name in "abc"]
    full = group("g", *members).uses["r0"]
    assert full.share == pytest.approx(1.0)
    assert full.spare_with(pinned(job("d", 1, 100), "r0", "td").tenant(ROLLOUT, Order.FIFO)) == -1.0
    assert group("g", *members[:2]).uses["r0"].spare_with(members[2].tenant(ROLLOUT, Order.FIFO)) >= 0


def test_a_short_job_that_tolerates_nothing_is_refused_beside_a_long_phase() -> None:
    long = group("g", pinned(job("long", 300, 600, slo=2.0), "r0", "t0"))
    short = pinned(job("short", 50, 100, slo=1.0), "r0", "t1")
    # Each of the long rollouts keeps it waiting for at least 300 - 100 seconds, and the node has time to spare.
    assert long.uses["r0"].share + 50 / 150 < 1
    assert long.uses["r0"].spare_with(short.tenant(ROLLOUT, Order.FIFO)) == -1.0


@pytest.mark.parametrize("first_is_long", [False, True])
@pytest.mark.parametrize(("iterations", "is_refused"), [(2, True), (3, False), (None, False)])
def test_a_job_that_one_wait_would_cost_more_than_its_life_has_to_lose_is_refused_beside_a_long_phase(
    iterations: int | None, is_refused: bool, first_is_long: bool
) -> None:
    """The wait takes 300 - 100 s. It may lose 150 s for each iteration but one, which is kept back."""
    long = pinned(job("long", 300, 600, slo=3.0), "r0", "t0")
    short = pinned(replace(job("short", 50, 100, slo=2.0), iterations=iterations), "r0", "t1")
    first, last = (long, short) if first_is_long else (short, long)
    spare = group("g", first).uses["r0"].spare_with(last.tenant(ROLLOUT, Order.FIFO))
    assert (spare < 0) is is_refused


def test_what_is_lost_to_a_neighbour_is_how_far_its_phase_outlasts_the_absence() -> None:
    use = group("g", pinned(job("long", 300, 600, slo=2.0), "r0", "t0")).uses["r0"]
    short = pinned(job("short", 50, 100, slo=2.0), "r0", "t1").tenant(ROLLOUT, Order.FIFO)
    # 200 s are lost to each long rollout, of which there is one in 1800 s; the long job loses nothing to 50 s.
    assert use.spare_with(short) == pytest.approx(1 - 1 / 2 - 200 / 1800)


@pytest.mark.parametrize(
    "change",
    [{"tail": Tail(100, 50, 50.0)}, {"elastic_rollout": True}],
    ids=["tail", "elastic"],
)
def test_a_gang_that_may_shrink_need_not_hold_a_rollout_node_for_any_time(change: dict[str, object]) -> None:
    gang = replace(job("a", nodes=(2, 1)), **change)  # type: ignore[arg-type]
    member = Member.of(gang, Placement(("r0", "r1"), ("t0",)))
    assert (member.tenant(ROLLOUT, Order.FIFO).phase_s, member.tenant(ROLLOUT, Order.FIFO).away_s) == (0.0, inf)
    assert (member.tenant(TRAIN, Order.FIFO).phase_s, member.tenant(TRAIN, Order.FIFO).away_s) == (100.0, 100.0)
    assert (member.share(ROLLOUT), member.share(TRAIN)) == (0.0, 100.0 / member.limit_s)


def test_a_rollout_that_roams_need_not_hold_any_of_its_nodes_for_any_time() -> None:
    roaming = replace(job("a"), rollout_spares=1)
    there, pinned_down = Member.of(roaming, Placement(("r0", "r1"), ("t0",))), pinned(roaming, "r0", "t0")
    assert (there.roams, pinned_down.roams) == (True, False)
    assert (there.tenant(ROLLOUT, Order.FIFO).phase_s, there.tenant(ROLLOUT, Order.FIFO).away_s) == (0.0, inf)
    assert there.tenant(TRAIN, Order.FIFO).phase_s == pinned_down.tenant(ROLLOUT, Order.FIFO).phase_s == 100.0
    assert there.share(ROLLOUT) == pinned_down.share(ROLLOUT) == 100.0 / there.limit_s


@pytest.mark.parametrize(
    "change",
    [{"tail": Tail(100, 50, 50.0)}, {"elastic_rollout": True}],
    ids=["tail", "elastic"],
)
def test_a_rollout_on_one_node_can_not_shrink(change: dict[str, object]) -> None:
    member = pinned(replace(job(), **change), "r0", "t0")  # type: ignore[arg-type]
    assert (member.tenant(ROLLOUT, Order.FIFO).phase_s, member.tenant(ROLLOUT, Order.FIFO).away_s) == (100.0, 100.0)


def test_a_job_that_may_lag_loses_nothing_for_sure_but_needs_its_time() -> None:
    lagging = pinned(replace(job("a", 100, 60), staleness=1), "r0", "t0")
    tenant = lagging.tenant(ROLLOUT, Order.FIFO)
    assert (tenant.phase_s, tenant.away_s) == (100.0, inf)
    assert NodeUse().joined_by(tenant, lagging.job).share == pytest.approx(1 / 1.2)


def test_measured_durations_take_the_place_of_the_worst_case() -> None:
    tenant = pinned(job("a", 100, 60, slo=2.0).measured(50, 30), "r0", "t0").tenant(ROLLOUT, Order.FIFO)
    assert (tenant.phase_s, tenant.away_s, tenant.limit_s) == (50, 30, 160)


@given(sizes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=4))
def test_host_memory_holds_every_resident_state_and_the_largest_copy(sizes: list[tuple[int, int]]) -> None:
    members = []
    for number, (resident, transient) in enumerate(sizes):
        spec = job(f"j{number}")
        phase = replace(spec.rollout, resident_bytes=resident, transient_bytes=transient)
        members.append(pinned(replace(spec, rollout=phase), "r0", "t0"))
    *before, last = members
    use = group("g", *before).uses.get("r0", NodeUse())
    wanted = sum(resident for resident, _ in sizes) + max(transient for _, transient in sizes)
    assert use.host_bytes_with(last.job.rollout) == group("g", *members).uses["r0"].host_bytes == wanted


def test_a_placement_names_each_node_once() -> None:
    placement = Placement(("n0", "n1"), ("n1", "n2"))
    assert placement.all_nodes == ("n0", "n1", "n2")
    assert (placement.nodes(ROLLOUT), placement.nodes(TRAIN)) == (("n0", "n1"), ("n1", "n2"))
