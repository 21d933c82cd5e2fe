"""What no place can ever be found for is refused at once, with what it wants and what there can be; nothing else is."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.hardware import PAPER_ROLLOUT, PAPER_TRAIN, Cluster, Pool
from rollmux.mux.job import JobSpec
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.validation import job_problems
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.replay import Settings, replay
from rollmux.sim.workload import Arrival, Workload
from tests.builders import any_jobs, job
from tests.mux.world import World
from tests.thorough import examples


def shared(nodes: int, **more: bool) -> Cluster:
    pool = Pool("gpu", PAPER_TRAIN, max_nodes=nodes, **more)
    return Cluster(pool, pool)


# Its phases overlap, so that it keeps its SLO on nodes apart alone.
OVERLAPS = replace(job(nodes=(3, 4)), staleness=1)
FULL = replace(job(nodes=(2, 2), resident_gb=(600, 600)), slo=9.0)


def refusal(cluster: Cluster, spec: JobSpec, policy: str = "rollmux") -> str:
    (reason,) = ClusterMachine(cluster, CONTENDERS[policy].make(5, 0)).why_not(spec)
    return reason


@pytest.mark.parametrize("on_demand", [True, False], ids=["rented", "fixed"])
@pytest.mark.parametrize("policy", ["paper", "rollmux", "solo"])
def test_phases_that_want_more_nodes_apart_than_there_can_be_are_refused_with_both_numbers(
    policy: str, on_demand: bool
) -> None:
    said = refusal(shared(6, on_demand=on_demand), OVERLAPS, policy)
    assert said == (
        f"job = 'a': must be a job for which policy {policy} has a place in the empty cluster "
        "(job a would take 200.0 s an iteration, its SLO allows 120.0 s; pool gpu has 6 free nodes, 7 are needed); "
        "ask for fewer nodes, less state or a higher slo, or for a larger pool"
    )


def test_state_of_both_phases_that_no_node_has_room_for_is_refused_where_they_cant_be_apart() -> None:
    said = refusal(shared(3), FULL)
    assert "would keep 1200 GB of state, it has room for 1000 GB; pool gpu has 3 free nodes, 4 are needed" in said


@pytest.mark.parametrize("spec", [OVERLAPS, FULL], ids=["time", "memory"])
def test_with_as_many_nodes_as_it_takes_it_waits_for_those_in_use(spec: JobSpec) -> None:
    world = World(shared(7), policy=RollmuxPolicy(max_group=1))
    world.tell(ev.JobSubmitted(job("first", nodes=(4, 4))))
    world.tell(ev.JobSubmitted(spec))
    assert world.machine.state.backlog == ["a"]


def test_whoever_was_taken_before_may_say_so_again() -> None:
    """A script that is started again submits its job again, which may have been taken by other rules."""
    world = World(shared(7))
    world.tell(ev.JobSubmitted(OVERLAPS))
    world.machine.state.cluster = shared(6)
    assert world.machine.why_not(replace(OVERLAPS, id="b"))
    assert world.machine.why_not(OVERLAPS) == ()


def test_a_simulated_job_without_a_place_is_refused_too_and_holds_nobody_up() -> None:
    jobs = Workload("two", (Arrival(0.0, 600.0, OVERLAPS), Arrival(1.0, 600.0, job("b"))))
    outcome = replay(jobs, "paper", Settings(cluster=shared(6)))
    never, done = outcome.jobs
    assert (never.group, done.iterations) == ("", 3)
    assert "pool gpu has 6 free nodes, 7 are needed" in never.refused
    assert not done.refused


LIMITS = st.none() | st.integers(1, 6)
CLUSTERS = st.one_of(
    st.builds(lambda most, rents: shared(most, on_demand=rents), st.integers(2, 5), st.booleans()),
    st.builds(
        lambda most, other: Cluster(
            Pool("rollout", PAPER_ROLLOUT, max_nodes=most), Pool("train", PAPER_TRAIN, max_nodes=other)
        ),
        LIMITS,
        LIMITS,
    ),
)

# Where they overlap, phases that share nodes miss their SLO as often as not.
JOBS = st.builds(
    lambda spec, staleness: replace(spec, staleness=staleness),
    any_jobs(most_nodes=(3, 3), most_gb=700),
    st.integers(0, 1),
)


def there(cluster: Cluster) -> Snapshot:
    """All of its nodes, and nobody on them."""
    fixed = {pool.name: pool.fixed_nodes for pool in cluster.pools}
    return Snapshot(cluster, idle=fixed, rented={name: len(nodes) for name, nodes in fixed.items()})


@pytest.mark.parametrize("policy", CONTENDERS)
@settings(max_examples=examples(60))
@given(cluster=CLUSTERS, spec=JOBS)
def test_on_an_empty_cluster_a_job_is_refused_if_and_only_if_the_policy_places_it_nowhere(
    policy: str, cluster: Cluster, spec: JobSpec
) -> None:
    if job_problems(spec, cluster):
        return
    plan = CONTENDERS[policy].make(5, 0).place(spec.resolve(cluster), there(cluster)).plan
    machine = ClusterMachine(cluster, CONTENDERS[policy].make(5, 0))
    for node, pool in cluster.fixed_nodes.items():
        machine.handle(0.0, ev.NodeJoined(node, pool))
    assert bool(machine.why_not(spec)) == (plan is None)
    out = machine.handle(0.0, ev.JobSubmitted(spec))
    assert any(isinstance(each, cmd.Admit) for each in out) == (plan is not None)
