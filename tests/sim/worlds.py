"""Small workloads and clusters for the tests of the simulator, and strategies that draw them."""

from dataclasses import replace

from hypothesis import strategies as st

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Rules
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.mux.invariants import check_all
from rollmux.mux.job import JobSpec
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.workload import Arrival, Workload
from tests.builders import any_jobs, strict_jobs

# Policies that play every phase and move nobody to save money.
PHASED = ("paper", "solo", "random", "most-idle")


def workload(*jobs: JobSpec, at: tuple[float, ...] = (), iterations: int = 5) -> Workload:
    """These jobs, all at once or at these times, each with so many iterations to do."""
    times = at or (0.0,) * len(jobs)
    arrivals = [Arrival(t, iterations * job.solo_s, job) for t, job in zip(times, jobs, strict=True)]
    return Workload("small", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


def fixed(rollout: int, train: int) -> Cluster:
    """So many machines of the paper's types, there from the start."""
    return Cluster(
        replace(PAPER_CLUSTER.rollout, on_demand=False, max_nodes=rollout),
        replace(PAPER_CLUSTER.train, on_demand=False, max_nodes=train),
    )


@st.composite
def workloads(draw: st.DrawFn, *, plain: bool = False, most: int = 5, most_nodes: tuple[int, int] = (1, 1)) -> Workload:
    """A few jobs with a few iterations each; `plain` ones have no sync, switch, tail or staleness."""
    kind = strict_jobs if plain else any_jobs
    arrivals = []
    for i in range(draw(st.integers(1, most))):
        job = draw(kind(f"job-{i}", most_nodes, 100))
        at_s = float(draw(st.one_of(st.just(0), st.integers(0, 3000))))
        arrivals.append(Arrival(at_s, draw(st.integers(1, 12)) * job.solo_s, job))
    return Workload("drawn", tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)))


def machine(policy: str, cluster: Cluster = PAPER_CLUSTER) -> ClusterMachine:
    """A machine that tolerates any number of failures and moves nobody to save money."""
    return ClusterMachine(cluster, CONTENDERS[policy].make(5, 0), Rules(compaction=False))


class Inspector:
    """Checks every invariant after every event, and that no node works twice at a time."""

    def __init__(self, of: ClusterMachine) -> None:
        self.machine = of
        self.events: list[tuple[float, ev.Event]] = []
        self.free_at: dict[str, float] = {}

    def heard(self, now: float, event: ev.Event, commands: tuple[cmd.Command, ...], took_s: float) -> None:
        self.events.append((now, event))
        check_all(self.machine.state)

    def used(
        self, lease: cmd.Lease, nodes: tuple[str, ...], start_s: float, end_s: float, *, first: bool, last: bool
    ) -> None:
        for node in nodes:
            assert start_s >= self.free_at.get(node, 0.0) - 1e-6, f"{node} works twice at {start_s}: {lease}"
            self.free_at[node] = end_s
