"""The published placement, rule by rule: Algorithm 1 of the RollMux paper."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import events as ev
from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, PAPER_CLUSTER, PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool, finite
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Strategy, Verdict
from rollmux.mux.policies.paper import PaperPolicy
from rollmux.mux.snapshot import Snapshot
from tests.builders import ROLLOUT_USD, TRAIN_USD, group, job, pinned, snapshot, strict_jobs
from tests.mux.world import World
from tests.thorough import examples

FINITE = finite(PAPER_ROLLOUT, PAPER_TRAIN)


def type_a(name: str, slo: float = 1.2) -> JobSpec:
    """Of the testbed jobs: rollout and training in seconds."""
    return job(name, 131, 102, slo=slo)


def type_d(name: str, slo: float = 1.2) -> JobSpec:
    return job(name, 316, 120, slo=slo)


def type_e(name: str, slo: float = 1.2) -> JobSpec:
    return job(name, 756, 125, slo=slo)


@dataclass(frozen=True)
class Case:
    """What is there, who comes, and where it goes; `group` None: nowhere."""

    groups: tuple[Group, ...]
    job: JobSpec
    group: str | None
    strategy: Strategy | None = None
    usd: float = 0.0
    refused: dict[str, Verdict] = field(default_factory=dict)
    before: Snapshot | None = None
    max_group: int = 5


ALONE = ROLLOUT_USD + TRAIN_USD
A1 = group("g0", pinned(type_a("a1"), "r0", "t0"))
B1 = group("g1", pinned(type_a("b1"), "r1", "t1"))
TIGHT = group("g0", pinned(type_a("a1", slo=1.0), "r0", "t0"))
D2 = group("g0", pinned(type_d("d1"), "r0", "t0"), pinned(type_d("d2"), "r1", "t0"))
LONG = group(
    "g0", *(pinned(job(f"s{i}", 10, 10, slo=3.0), "r0", "t0") for i in range(4)), pinned(type_e("e"), "r1", "t0")
)
HEAVY = group("g0", pinned(job("h", 400, 50, slo=2.0, resident_gb=(800, 0)), "r0", "t0"))
GANG = group("g0", pinned(job("c", 100, 100, slo=2.0, nodes=(2, 2)), "r0 r1", "t0 t1"))

CASES = {
    "the first job has a group of its own": Case((), type_a("a1"), "group-0", Strategy.ISOLATED, ALONE),
    "two A jobs share their nodes": Case((A1,), type_a("a2"), "g0", Strategy.DIRECT),
    "two A jobs that tolerate nothing still share the training node": Case(
        (TIGHT,), type_a("a2", slo=1.0), "g0", Strategy.ROLLOUT_SCALING, ROLLOUT_USD, {"g0": Verdict.SLO}
    ),
    "a third A job finds the group saturated, however much it tolerates": Case(
        (A1.joined_by(pinned(type_a("a2"), "r0", "t0")),),
        type_a("a3", slo=2.5),
        "group-1",
        Strategy.ISOLATED,
        ALONE,
        {"g0": Verdict.SATURATED},
    ),
    "two D jobs share the training node": Case(
        (group("g0", pinned(type_d("d1"), "r0", "t0")),),
        type_d("d2"),
        "g0",
        Strategy.ROLLOUT_SCALING,
        ROLLOUT_USD,
        {"g0": Verdict.SLO},
    ),
    "an E job joins two D jobs with a rollout node of its own": Case(
        (D2,), type_e("e"), "g0", Strategy.ROLLOUT_SCALING, ROLLOUT_USD, {"g0": Verdict.SLO}
    ),
    "a group whose training node is full is no place at any price": Case(
        (group("g0", pinned(job("t1", 50, 200), "r0", "t0")),),
        job("t2", 50, 200),
        "group-1",
        Strategy.ISOLATED,
        ALONE,
        {"g0": Verdict.SLO},
    ),
    "of equals the first wins": Case((A1, B1), type_a("a2"), "g0", Strategy.DIRECT),
    "and the first is the first in the snapshot": Case((B1, A1), type_a("a2"), "g1", Strategy.DIRECT),
    "a later group that costs nothing beats an earlier one that has to grow": Case(
        (TIGHT, B1), type_a("a2"), "g1", Strategy.DIRECT, refused={"g0": Verdict.SLO}
    ),
    "a full group takes nobody": Case(
        (A1,), type_a("a2"), "group-1", Strategy.ISOLATED, ALONE, {"g0": Verdict.FULL}, max_group=1
    ),
    "five are enough": Case(
        (LONG,), job("s", 10, 10, slo=3.0), "group-1", Strategy.ISOLATED, ALONE, {"g0": Verdict.FULL}
    ),
    "a sixth is let in where six are allowed": Case(
        (LONG,), job("s", 10, 10, slo=3.0), "g0", Strategy.DIRECT, max_group=6
    ),
    "a frozen group takes nobody": Case(
        (),
        type_a("a2"),
        "group-1",
        Strategy.ISOLATED,
        ALONE,
        {"g0": Verdict.FROZEN},
        replace(snapshot(A1), frozen=frozenset({"g0"})),
    ),
    "a node without the memory is passed over": Case(
        (HEAVY,),
        job("m", 40, 50, slo=12.0, resident_gb=(300, 0)),
        "g0",
        Strategy.ROLLOUT_SCALING,
        ROLLOUT_USD,
        {"g0": Verdict.MEMORY},
    ),
    "a gang takes an old node and just enough new ones": Case(
        (A1,), job("w", 60, 60, slo=2.5, nodes=(3, 1)), "g0", Strategy.ROLLOUT_SCALING, 2 * ROLLOUT_USD
    ),
    "a job takes all the training nodes of its group": Case((GANG,), job("x", 50, 40, slo=3.0), "g0", Strategy.DIRECT),
    "machines that are there are used": Case(
        (),
        type_a("a"),
        "group-0",
        Strategy.ISOLATED,
        ALONE,
        before=snapshot(cluster=FINITE, idle={"rollout": ("m0",), "train": ("x0",)}),
    ),
    "without machines there is no plan": Case(
        (), type_a("a"), None, refused={"group-0": Verdict.NO_NODES}, before=snapshot(cluster=FINITE)
    ),
    "without machines a group is not widened": Case(
        (),
        type_a("a2", slo=1.0),
        None,
        refused={"g0": Verdict.SLO, "group-1": Verdict.NO_NODES},
        before=snapshot(TIGHT, cluster=FINITE),
    ),
    "without machines a job still shares those in use": Case(
        (), type_a("a2"), "g0", Strategy.DIRECT, before=snapshot(A1, cluster=FINITE)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_job_goes_and_why_not_elsewhere(name: str) -> None:
    case = CASES[name]
    before = case.before or snapshot(*case.groups)
    decision = PaperPolicy(max_group=case.max_group).place(case.job, before)
    plan = decision.plan
    if case.group is None:
        assert plan is None
    else:
        assert plan is not None
        assert (plan.group.id, plan.strategy) == (case.group, case.strategy)
        assert plan.added_usd_per_hour == pytest.approx(case.usd)
        assert decision.candidates[-1].verdict is Verdict.TAKEN
    tried = {(candidate.group_id, candidate.verdict) for candidate in decision.candidates}
    assert set(case.refused.items()) <= tried


def test_a_saturated_group_is_said_to_be_so_with_load_and_cycle() -> None:
    full = A1.joined_by(pinned(type_a("a2"), "r0", "t0"))
    candidate = PaperPolicy().place(type_a("a3"), snapshot(full)).candidates[0]
    assert (candidate.verdict, candidate.value, candidate.limit) == (Verdict.SATURATED, 262, 233)


def test_a_pool_without_nodes_is_named_with_how_many_it_has_and_how_many_are_needed() -> None:
    before = snapshot(cluster=FINITE, idle={"rollout": ("m0",), "train": ("x0",)})
    decision = PaperPolicy().place(job("a", nodes=(3, 2)), before)
    missing = [(c.subject, c.value, c.limit) for c in decision.candidates if c.verdict is Verdict.NO_NODES]
    assert missing == [("rollout", 3, 1), ("train", 2, 1)]


def test_a_new_group_is_compared_last_and_wins_only_if_it_costs_less() -> None:
    free_train = replace(PAPER_TRAIN, usd_per_gpu_hour=0.0)
    cluster = Cluster(PAPER_CLUSTER.rollout, Pool("train", free_train))
    decision = PaperPolicy().place(type_a("a2", slo=1.0), snapshot(TIGHT, cluster=cluster))
    assert decision.plan is not None
    assert decision.plan.strategy is Strategy.ROLLOUT_SCALING  # as dear as a new group


def test_an_equal_price_in_a_later_group_is_dearer_than_what_is_found() -> None:
    tight_too = group("g1", pinned(type_a("b1", slo=1.0), "r1", "t1"))
    decision = PaperPolicy().place(type_a("a2", slo=1.0), snapshot(TIGHT, tight_too))
    assert decision.plan is not None
    assert decision.plan.group.id == "g0"
    later = [c for c in decision.candidates if c.group_id == "g1"]
    assert [c.verdict for c in later] == [Verdict.SLO, Verdict.DEARER]


@pytest.mark.parametrize(
    ("wanted", "there", "stretch"), [(1, 1, 1.0), (2, 1, 2.0), (3, 2, 1.5), (1, 2, 1.0), (2, 3, 1.0)]
)
def test_training_on_fewer_nodes_takes_longer_and_holds_more_on_each_and_more_nodes_are_no_faster(
    wanted: int, there: int, stretch: float
) -> None:
    before = job("a", 100, 90, nodes=(1, wanted), resident_gb=(0, 100))
    before = replace(before, train=replace(before.train, transient_bytes=10 * GB))
    for spec in (before, before.measured(80, 60)):
        fitted = spec.at_width(there)
        assert fitted.train.nodes == there
        assert fitted.train.planned_s == pytest.approx(spec.train.planned_s * stretch)
        assert fitted.train.duration_s == pytest.approx(90 * stretch)
        assert fitted.train.resident_bytes == pytest.approx(100 * GB * stretch)
        assert fitted.train.transient_bytes == pytest.approx(10 * GB * stretch)
        assert fitted.rollout == spec.rollout


def test_a_narrower_training_does_not_loosen_what_the_job_was_promised() -> None:
    wide = job("w", 100, 60, slo=1.3, nodes=(1, 2))
    decision = PaperPolicy().place(wide, snapshot(group("g0", pinned(job("a", 100, 50, slo=3.0), "r0", "t0"))))
    assert decision.plan is not None
    # On one training node it would take 100 + 120 s, its SLO allows 1.3 times 160.
    assert decision.plan.strategy is Strategy.ISOLATED
    tolerant = replace(wide, slo=1.5)
    plan = PaperPolicy().place(tolerant, snapshot(group("g0", pinned(job("a", 100, 50, slo=3.0), "r0", "t0")))).plan
    assert plan is not None
    assert plan.group.id == "g0"
    assert plan.group.member("w").limit_s == tolerant.limit_s == pytest.approx(240)


def test_what_is_measured_on_fewer_training_nodes_is_what_the_job_takes_there() -> None:
    world = World(PAPER_CLUSTER, policy=PaperPolicy())
    world.run(job("a", 300, 50, slo=3.0), job("w", 50, 50, slo=3.0, nodes=(1, 2)))
    record = world.record("w")
    assert record.group_id == "group-0"
    planned = world.machine.state.groups["group-0"].member("w")
    world.tell(ev.JobProfiled("w", 1, 50.0, 100.0, 0.0))
    member = world.machine.state.groups["group-0"].member("w")
    assert member.job.train.planned_s == planned.job.train.planned_s == 100.0
    assert member.limit_s == planned.limit_s == 300.0
    assert record.job.train.planned_s == 50.0
    assert world.machine.state.seat(record).job == member.job


def test_the_order_that_groups_run_is_the_one_that_the_policy_was_given() -> None:
    plan = PaperPolicy(order=Order.ROUND_ROBIN).place(type_a("a"), snapshot()).plan
    assert plan is not None
    assert plan.group.order is Order.ROUND_ROBIN


# -- against Algorithm 1 written down once more ------------------------------------------------------------------


def by_the_paper(job: JobSpec, before: Snapshot, max_group: int) -> tuple[str | None, Strategy, float]:
    """Where, how, and for how much more an hour; rollouts on several nodes take neighbours among those of the group."""
    own_usd = job.rollout.nodes * ROLLOUT_USD + job.train.nodes * TRAIN_USD
    best: tuple[str | None, Strategy, float] = (None, Strategy.ISOLATED, own_usd)
    best_usd = best[2] + 1e-6  # a new group is compared last
    for name, old in before.groups.items():
        if old.saturated or len(old.members) >= max_group or name in before.frozen:
            continue
        fitted = job.at_width(len(old.train_nodes))
        for new in range(job.rollout.nodes + 1):
            strategy, usd = Strategy.ROLLOUT_SCALING if new else Strategy.DIRECT, new * ROLLOUT_USD
            for kept in neighbours(old.rollout_nodes, job.rollout.nodes - new):
                nodes = kept + tuple(f"new-{i}" for i in range(new))
                after = old.joined_by(Member(fitted, Placement(nodes, old.train_nodes), job.limit_s))
                roomy = all(use.host_bytes <= 1000 * GB for use in after.uses.values())
                if usd < best_usd and roomy and Forecaster().late(after) is None:
                    best, best_usd = (name, strategy, usd), usd
    return best


def neighbours(nodes: tuple[str, ...], count: int) -> list[tuple[str, ...]]:
    return [nodes[i : i + count] for i in range(len(nodes) - count + 1)] if count else [()]


@st.composite
def populations(draw: st.DrawFn) -> list[JobSpec]:
    count = draw(st.integers(2, 9))
    return [draw(strict_jobs(f"job-{i}", most_nodes=(3, 2), most_gb=400)) for i in range(count)]


@settings(max_examples=examples(150))
@given(jobs=populations(), max_group=st.integers(1, 5), leavers=st.lists(st.integers(0, 8), min_size=9, max_size=9))
def test_every_decision_is_that_of_the_published_algorithm(
    jobs: list[JobSpec], max_group: int, leavers: list[int]
) -> None:
    """Before each arrival one of those who are there may leave."""
    before, policy = snapshot(), PaperPolicy(max_group=max_group)
    for each, leaver in zip(jobs, leavers, strict=False):
        for group_id in [name for name, known in before.groups.items() if f"job-{leaver}" in names(known)]:
            before = before.without_job(group_id, f"job-{leaver}")
        where, strategy, usd = by_the_paper(each, before, max_group)
        plan = policy.place(each, before).plan
        assert plan is not None
        assert plan.strategy is strategy
        assert plan.added_usd_per_hour == pytest.approx(usd)
        assert plan.group.id == (where or f"group-{before.next_group}")
        if where is not None:
            old = before.groups[where]
            assert plan.group.train_nodes == old.train_nodes == plan.placement.train
            assert not old.saturated
        before = before.with_group(plan.group, plan.new_nodes)


def names(of: Group) -> list[str]:
    return [member.job.id for member in of.members]


@settings(max_examples=examples(50))
@given(jobs=populations())
def test_the_same_jobs_are_placed_the_same_way_byte_for_byte(jobs: list[JobSpec]) -> None:
    images = []
    for _ in range(2):
        before, policy, image = snapshot(), PaperPolicy(), []
        for each in jobs:
            decision = policy.place(each, before)
            image.append(repr(decision))
            if decision.plan is not None:
                before = before.with_group(decision.plan.group, decision.plan.new_nodes)
        images.append(image)
    assert images[0] == images[1]
