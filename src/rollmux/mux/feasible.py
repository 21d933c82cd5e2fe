"""Whether a policy has a place for a job at all: it is asked as if every node that there can be were there and free.

A place that exists only because of another job does not count: a job that lost it would wait in line for ever.
"""

from dataclasses import replace

from rollmux.errors import Problem
from rollmux.mux.explain import why_nowhere
from rollmux.mux.hardware import Cluster, Pool
from rollmux.mux.job import JobSpec
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot


def place_problems(job: JobSpec, cluster: Cluster, policy: Policy) -> tuple[Problem, ...]:
    """Why a job that has no `job_problems` would wait in vain on this cluster; empty if it would not."""
    if all(pool.max_nodes is None for pool in cluster.pools):
        return ()  # each of its phases can have nodes of its own, and there the job meets its SLO
    empty = Snapshot(Cluster(_rented(cluster.rollout), _rented(cluster.train)))
    decision = policy.place(job.resolve(cluster), empty)
    if decision.plan is not None:
        return ()
    limit = f"a job for which policy {policy.name} has a place in the empty cluster ({why_nowhere(decision)})"
    remedy = "ask for fewer nodes, less state or a higher slo, or for a larger pool"
    return (Problem("job", job.id, limit, remedy),)


def _rented(pool: Pool) -> Pool:
    """The same pool, whose nodes are there as soon as a plan asks for them."""
    return replace(pool, on_demand=True)
