"""Why a cluster can't be changed into another one while its jobs go on: every reason at once."""

from collections.abc import Iterator
from dataclasses import replace

from rollmux.mux.cluster_state import ClusterState
from rollmux.mux.feasible import place_problems
from rollmux.mux.hardware import Cluster
from rollmux.mux.plan import memory_problem
from rollmux.mux.validation import cluster_problems, job_problems


def why_not_become(state: ClusterState, cluster: Cluster, gone: tuple[str, ...]) -> tuple[str, ...]:
    """Why the cluster must not be changed in this way: the change is impossible, or it leaves a job no possible place.

    As with a new job, places are asked about only before the change: a change that was made is replayed as it was.
    """
    problems = change_problems(state, cluster, gone)
    return problems if _of_itself(state, cluster) else (*problems, *_of_places(state, cluster))


def change_problems(state: ClusterState, cluster: Cluster, gone: tuple[str, ...]) -> tuple[str, ...]:
    """Why this state can't go on in that cluster, without the nodes that are gone."""
    if problems := _of_itself(state, cluster):
        return problems
    return (*_of_nodes(state, cluster, gone), *_of_jobs(state, cluster), *_of_memory(state, cluster))


def _of_itself(state: ClusterState, cluster: Cluster) -> tuple[str, ...]:
    return (*map(str, cluster_problems(cluster)), *_of_pools(state.cluster, cluster))


def _of_pools(before: Cluster, after: Cluster) -> Iterator[str]:
    """What can't change about pools: groups, and the whole nodes that jobs want, were made from it."""
    names, others = [pool.name for pool in before.pools], [pool.name for pool in after.pools]
    if names != others:
        yield f"its pools were {', '.join(names)} and are {', '.join(others)}"
        return
    for pool, other in zip(before.pools, after.pools, strict=True):
        if pool.on_demand != other.on_demand:
            was, now = str(pool.on_demand).lower(), str(other.on_demand).lower()  # as in the file
            yield f"on_demand of pool {pool.name} was {was} and is {now}"
        if pool.node_type.gpus != other.node_type.gpus:
            yield f"gpus of a node of pool {pool.name} were {pool.node_type.gpus} and are {other.node_type.gpus}"


def _of_nodes(state: ClusterState, cluster: Cluster, gone: tuple[str, ...]) -> Iterator[str]:
    nodes = state.book.nodes
    for node in gone:
        group = state.groups.get(nodes[node].group_id or "") if node in nodes else None
        if group is not None:
            jobs = ", ".join(dict.fromkeys(member.job.id for member in group.members))
            yield f"node {node}, which it is to be without, is shared by {jobs}: drain it, until they have ended"
    for pool in cluster.pools:
        left = state.book.rented[pool.name] - len([n for n in gone if n in nodes and nodes[n].pool == pool.name])
        if pool.max_nodes is not None and left > pool.max_nodes:
            yield f"pool {pool.name} has {left} nodes and may have {pool.max_nodes}: wait until jobs have ended"


def _of_jobs(state: ClusterState, cluster: Cluster) -> Iterator[str]:
    for record in state.jobs.values():
        for problem in job_problems(record.job, cluster):
            yield f"job {record.job.id}: {problem}"


def _of_places(state: ClusterState, cluster: Cluster) -> Iterator[str]:
    """The jobs that could have a place in the cluster as it is, but none in the changed one."""
    for record in state.jobs.values():
        problems = () if job_problems(record.job, cluster) else place_problems(record.job, cluster, state.policy)
        if problems and not place_problems(record.job, state.cluster, state.policy):
            yield from (f"job {record.job.id}: {problem}" for problem in problems)


def _of_memory(state: ClusterState, cluster: Cluster) -> Iterator[str]:
    snapshot = replace(state.snapshot(), cluster=cluster)
    for group in state.groups.values():
        if trouble := memory_problem(snapshot, group):
            node, needed, room = trouble
            yield f"jobs keep {needed} bytes in the host memory of node {node}, which is to have {room}"
