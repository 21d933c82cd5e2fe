"""Faults on demand: nodes that are lost and jobs that fail, at seeded random times."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from rollmux.mux.transitions import Job
from rollmux.sim.cast import Cast
from rollmux.sim.workload import HOUR_S

# A job that fails, or loses a node, so often is given up: else a job that never gets through an iteration would go on
# for ever. It is the most that a spec may ask for.
MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Faults:
    """Mean hours between losses of one node and between failures of one running job; None for never.

    Machines of a fixed pool are back after `repair_h`. Rented machines are replaced by others.
    """

    node_mtbf_h: float | None = None
    job_mtbf_h: float | None = None
    repair_h: float = 1.0


def strike(cast: Cast, faults: Faults, seed: int) -> None:
    """Starts the faults; call it once all jobs are submitted. The rate of each kind is proportional to its victims."""
    book = cast.machine.state.book
    jobs = cast.machine.state.jobs
    specs = cast.specs.values()
    losses: Counter[str] = Counter()

    def running() -> list[str]:
        return [name for name, record in jobs.items() if record.state is Job.RUNNING]

    def lose_node(node: str) -> None:
        pool = next(pool for pool in cast.machine.state.cluster.pools if pool.name == book.nodes[node].pool)
        _lose(cast, node, None if pool.on_demand else faults.repair_h * HOUR_S, losses)

    def fail_job(job_id: str) -> None:
        cast.fail(job_id, "struck down by the simulator")

    # A job that moves has two places for a while.
    most_nodes = len(book.nodes) + 2 * sum(spec.rollout.nodes + spec.train.nodes for spec in specs)
    kinds: list[_Kind] = []
    if faults.node_mtbf_h is not None:
        kinds.append(
            _Kind(Random(f"{seed}/nodes"), faults.node_mtbf_h, lambda: list(book.nodes), most_nodes, lose_node)
        )
    if faults.job_mtbf_h is not None:
        kinds.append(_Kind(Random(f"{seed}/jobs"), faults.job_mtbf_h, running, len(specs), fail_job))
    going = len(kinds)

    def plan(kind: _Kind) -> None:
        rate = kind.most / (kind.mtbf_h * HOUR_S)
        cast.at(cast.now + kind.rng.expovariate(rate), partial(come, kind))

    def come(kind: _Kind) -> None:
        # Faults are drawn at the rate of the most victims, and happen with the probability of the part that is there.
        nonlocal going
        if cast.over or cast.to_come < going:
            going -= 1  # nothing but other faults is left to happen
            return
        victims = kind.victims()
        if kind.rng.random() * kind.most < len(victims):
            kind.happen(kind.rng.choice(sorted(victims)))
        plan(kind)

    for kind in kinds:
        if specs:
            plan(kind)


def _lose(cast: Cast, node: str, back_after_s: float | None, losses: Counter[str]) -> None:
    """The node is lost; a job that has lost nodes too often by now is given up.

    If no job has a place, the loss counts for all jobs that wait: there may never be as many nodes as they need.
    """
    jobs = cast.machine.state.jobs
    places = {name: record.placement.all_nodes for name, record in jobs.items() if record.placement}
    hit = [name for name, nodes in places.items() if node in nodes] if places else list(jobs)
    cast.lose(node, back_after_s)
    losses.update(hit)
    for name in hit:
        if losses[name] >= MOST_ATTEMPTS:
            cast.give_up(name)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of fault: a Poisson process with a rate proportional to the victims at each time, of which there are at
    most `most`."""

    rng: Random
    mtbf_h: float
    victims: Callable[[], list[str]]
    most: int
    happen: Callable[[str], None]
