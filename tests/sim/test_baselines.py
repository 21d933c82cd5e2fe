"""The policies to compare with: each keeps the rules that its name promises."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.group import Group
from rollmux.mux.hardware import GB, PAPER_CLUSTER, Cluster
from rollmux.mux.job import JobSpec, PhaseSpec, Tail
from rollmux.mux.plan import check_plan
from rollmux.mux.validation import job_problems
from rollmux.sim.baselines import (
    AnyPlace,
    SliceForecaster,
    Solo,
    gavel,
    most_idle,
    on_training_nodes,
    random_place,
    training_only,
)
from rollmux.sim.generate import GENERATORS
from rollmux.sim.outcome import Outcome
from rollmux.sim.production import production_jobs
from rollmux.sim.replay import Fidelity, Settings, replay
from rollmux.sim.workload import Workload
from tests.builders import SHARED_CLUSTER, TRAIN_USD, any_jobs, group, groups_of, job, pinned, snapshot, strict_jobs
from tests.sim.worlds import workload, workloads

RATIO = 4.0 / 3.35


def groups(outcome: Outcome) -> dict[str, str]:
    return {each.job: each.group for each in outcome.jobs}


# -- colocated --------------------------------------------------------------------------------------------------


@given(spec=any_jobs(most_nodes=(3, 3)))
def test_on_training_nodes_a_rollout_is_slower_as_bandwidth_is_less(spec: JobSpec) -> None:
    there = on_training_nodes(spec, PAPER_CLUSTER)
    ratio = RATIO * spec.rollout.nodes / spec.train.nodes
    assert there.rollout.planned_s == pytest.approx(spec.rollout.planned_s * ratio + spec.rollout.switch_s)
    assert there.train.planned_s == pytest.approx(spec.train.planned_s + spec.train.switch_s)
    assert there.rollout.nodes == there.train.nodes == spec.train.nodes
    assert there.rollout.switch_s == there.train.switch_s == there.staleness == 0
    assert not [p for p in job_problems(there, training_only(PAPER_CLUSTER)) if "duration" not in p.path]


@pytest.mark.parametrize("known", [(0.0, 3.35), (4.0, 0.0), (0.0, 0.0)])
def test_where_a_bandwidth_is_not_known_a_rollout_is_as_fast_on_training_nodes(known: tuple[float, float]) -> None:
    pools = [
        replace(pool, node_type=replace(pool.node_type, hbm_bytes_per_s=rate * 1e12))
        for pool, rate in zip((PAPER_CLUSTER.rollout, PAPER_CLUSTER.train), known, strict=True)
    ]
    assert on_training_nodes(job("a"), Cluster(*pools)).rollout.planned_s == 100.0


def test_a_job_that_wants_gpus_and_has_a_tail_can_roll_out_on_training_nodes() -> None:
    spec = JobSpec("a", PhaseSpec(100.0, gpus=8), PhaseSpec(50.0, gpus=16), 2.0, tail=Tail(100, 50, 90.0))
    there = on_training_nodes(spec, PAPER_CLUSTER)
    assert (there.rollout.nodes, there.train.nodes) == (2, 2)
    assert there.rollout.duration_s == pytest.approx(50 * RATIO)
    assert there.tail is not None
    assert there.tail.bulk_s == pytest.approx(45 * RATIO)
    assert job_problems(there, training_only(PAPER_CLUSTER)) == ()
    assert replay(workload(spec.resolve(PAPER_CLUSTER)), "colocated").jobs[0].iterations == 5


@pytest.mark.parametrize("spec", production_jobs(slo=1.5), ids=lambda spec: spec.id)
def test_a_job_alone_on_training_nodes_keeps_the_state_of_one_phase_at_a_time_in_the_host(spec: JobSpec) -> None:
    there = on_training_nodes(spec, PAPER_CLUSTER)
    kept = [spec.rollout.resident_bytes, spec.train.resident_bytes]
    assert there.rollout.resident_bytes + there.train.resident_bytes == max(kept)
    assert replay(workload(spec), "colocated").peak_train == 1


@pytest.mark.parametrize(("copy_gb", "placed"), [(200, True), (201, False)])
def test_a_job_with_a_phase_too_large_for_a_host_is_not_co_located_either(copy_gb: int, placed: bool) -> None:
    large = PhaseSpec(100.0, nodes=1, resident_bytes=800 * GB, transient_bytes=copy_gb * GB)
    for spec in (replace(job("a"), rollout=large), replace(job("a"), train=large)):
        assert bool(replay(workload(spec), "colocated").jobs[0].group) == placed


@given(jobs=workloads(most_nodes=(2, 2)))
def test_colocated_jobs_have_training_nodes_of_their_own_and_the_same_work(jobs: Workload) -> None:
    outcome = replay(jobs, "colocated", Settings(history=True))
    assert outcome.peak_rollout == outcome.rollout.paid == 0
    assert {level.rollout_nodes for level in outcome.levels} == {0}
    assert all(span.node.startswith("train-") for span in outcome.spans)
    assert len(set(groups(outcome).values())) == len(jobs.arrivals)
    usd = 0.0
    for each, arrival in zip(outcome.jobs, jobs.arrivals, strict=True):
        there = on_training_nodes(arrival.job, PAPER_CLUSTER)
        assert each.iterations == arrival.iterations
        assert each.iteration_s == pytest.approx(there.solo_s, rel=1e-3)
        assert each.slowdown == pytest.approx(1.0)
        usd += arrival.iterations * there.solo_s / 3600 * arrival.job.train.nodes * TRAIN_USD
    assert outcome.usd_total == pytest.approx(usd)


# -- gavel ------------------------------------------------------------------------------------------------------


@given(slos=st.lists(st.sampled_from((1.0, 1.5, 2.0, 3.0, 4.0, 6.0)), min_size=1, max_size=10), most=st.integers(1, 6))
def test_gavel_shares_only_where_the_shares_asked_for_fit(slos: list[float], most: int) -> None:
    jobs = workload(*[job(f"j{i}", 100.0 + i, 50.0, slo=slo) for i, slo in enumerate(slos)], iterations=20)
    outcome = replay(jobs, "gavel", Settings(max_group=most))
    shares = defaultdict(list)
    for each in outcome.jobs:
        shares[each.group].append(1 / each.slo)
        assert each.met
    for asked in shares.values():
        assert sum(asked) <= 1 + 1e-9
        assert len(asked) <= most


@given(drawn=groups_of(strict_jobs()))
def test_in_slices_each_has_the_part_that_its_slo_asks_for_and_all_of_it_is_given(drawn: Group) -> None:
    forecast = SliceForecaster().forecast(drawn)
    parts = [member.job.solo_s / s for member, s in zip(drawn.members, forecast.iteration_s, strict=True)]
    assert sum(parts) == pytest.approx(1.0)
    asked = [1 / member.job.slo for member in drawn.members]
    late = SliceForecaster().late(drawn)
    assert (late is not None) == (sum(asked) > 1 + 1e-9)
    if late is None:
        assert all(part >= wanted - 1e-9 for part, wanted in zip(parts, asked, strict=True))


@pytest.mark.parametrize(("slo", "nodes"), [(1.0, 2), (2.0, 1)])
def test_in_its_slices_no_job_does_two_phases_at_once_on_one_node(slo: float, nodes: int) -> None:
    """It cost less than its work, as its rollouts ran ahead on the node that was training."""
    ahead = replace(job("a", 100.0, 100.0, slo=slo), staleness=1)
    outcome = replay(workload(ahead, iterations=10), "gavel", Settings(cluster=SHARED_CLUSTER))
    assert outcome.peak_train == nodes
    assert outcome.jobs[0].slowdown == 2 / nodes
    assert outcome.usd_total == pytest.approx(outcome.fluid_usd)


def test_gavel_joins_the_fullest_group_that_has_the_part_left() -> None:
    full = group("full", pinned(job("a", slo=4.0), "r0", "t0"), pinned(job("b", slo=4.0), "r0", "t0"))
    fuller = group("fuller", pinned(job("c", slo=1.2), "r1", "t1"))
    empty = group("empty", pinned(job("d", slo=6.0), "r2", "t2"))
    plan = gavel().place(job("new", slo=3.0), snapshot(empty, fuller, full)).plan
    assert plan is not None
    assert plan.group.id == "full"


# -- random, most-idle, solo ------------------------------------------------------------------------------------


def test_random_differs_by_seed_and_not_by_run() -> None:
    jobs = GENERATORS["mixed"](0, 25, 5.0)
    found = [groups(replay(jobs, "random", Settings(seed=seed, fidelity=Fidelity.PACE))) for seed in (0, 0, 1, 2)]
    assert found[0] == found[1]
    assert found[0] not in found[2:]


def test_random_takes_any_place_that_works() -> None:
    places = [group(f"g{i}", pinned(job(f"j{i}", slo=9.0), f"r{i}", f"t{i}")) for i in range(4)]
    taken = set()
    for seed in range(40):
        plan = random_place(seed).place(job("new", slo=9.0), snapshot(*places)).plan
        assert plan is not None
        taken.add(plan.group.id)
    assert taken == {"g0", "g1", "g2", "g3"}


def test_most_idle_picks_the_emptiest_that_works() -> None:
    busy = group("busy", pinned(job("a", 100.0, 100.0, slo=2.0), "r0", "t0"))
    idle = group("idle", pinned(job("b", 20.0, 20.0, slo=9.0), "r1", "t1"))
    strict = group("strict", pinned(job("c", 1.0, 1.0, slo=1.0), "r2", "t2"))
    plan = most_idle().place(job("new", 100.0, 100.0, slo=2.0), snapshot(busy, strict, idle)).plan
    assert plan is not None
    assert plan.group.id == "idle"


@settings(max_examples=60)
@given(
    there=groups_of(any_jobs(), most=3),
    newcomer=any_jobs("new", most_nodes=(2, 2)),
    policy=st.sampled_from((Solo(), gavel(), random_place(3), most_idle())),
)
def test_what_is_planned_keeps_every_numbered_promise(there: Group, newcomer: JobSpec, policy: Solo | AnyPlace) -> None:
    now = snapshot(there)
    plan = policy.place(newcomer, now).plan
    assert plan is not None
    check_plan(plan, now, policy.forecaster)
    assert policy.place(newcomer, now).plan == plan
    if plan.group.id == "g":
        assert plan.new_nodes == ()


def test_groups_with_a_shunned_node_or_as_many_jobs_as_may_be_take_nobody() -> None:
    there = group("g", pinned(job("a", slo=9.0), "r0", "t0"))
    frozen = replace(snapshot(there), frozen=frozenset({"g"}))
    for policy in (random_place(), most_idle(), gavel()):
        plan = policy.place(job("new", slo=9.0), frozen).plan
        assert plan is not None
        assert plan.group.id != "g"
        plan = replace(policy, max_group=1).place(job("new", slo=9.0), snapshot(there)).plan
        assert plan is not None
        assert plan.group.id != "g"
