"""Replays a workload under a policy: the same machine as in life, driven through virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.mux.job import PhaseKind
from rollmux.sim.abilities import PAUSE_S, SPARES, able
from rollmux.sim.alone import steady_s
from rollmux.sim.baselines import on_training_nodes, training_only
from rollmux.sim.books import Books, PoolBook
from rollmux.sim.cast import Cast, Delays, Takes, as_planned
from rollmux.sim.compiled import hasten
from rollmux.sim.faults import MOST_ATTEMPTS, Faults, strike
from rollmux.sim.limits import fluid_usd, whole_node_usd
from rollmux.sim.outcome import JobOutcome, Outcome, PoolHours
from rollmux.sim.paced import PacedCast
from rollmux.sim.packed import Packing
from rollmux.sim.policies import CONTENDERS
from rollmux.sim.workload import HOUR_S, Arrival, Workload

Told = Callable[[int, int], None]


class Accounting(Enum):
    """What ends a job: all its iterations are done, or the time is over that it would run alone (as in the paper)."""

    WORK = "work"
    LIFETIME = "lifetime"


class Fidelity(Enum):
    """How exactly jobs are played: every phase through the machine, or at the pace that is forecast for their group."""

    PHASE = "phase"
    PACE = "pace"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is replayed. `provision_s`, `launch_s` and `move_s` are the times of nodes, starts and moves.

    `pause_s` is the cost of a pause for phases without their own; below 0 they can't pause. `spares` are the spare
    nodes of rollouts that name none.
    """

    cluster: Cluster = PAPER_CLUSTER
    accounting: Accounting = Accounting.WORK
    fidelity: Fidelity = Fidelity.PHASE
    max_group: int = 0  # 0: as many as the policy itself sets
    seed: int = 0
    provision_s: float = 0.0
    launch_s: float = 0.0
    move_s: float = 300.0
    pause_s: float = PAUSE_S
    spares: int = SPARES
    takes: Takes = as_planned
    packing: Packing | None = None  # in place of `takes`, phase by phase
    faults: Faults | None = None
    history: bool = False


def replay(workload: Workload, policy: str, settings: Settings | None = None, told: Told | None = None) -> Outcome:
    """The outcome of the workload under this policy. `told` hears how many jobs have arrived, of how many."""
    settings = settings or Settings()
    in_nodes = tuple(replace(each, job=each.job.resolve(settings.cluster)) for each in workload.arrivals)
    workload = replace(workload, arrivals=in_nodes)
    contender = CONTENDERS[policy]
    cluster, arrivals = settings.cluster, workload.arrivals
    if contender.colocated:
        cluster = training_only(cluster)
        arrivals = tuple(replace(a, job=on_training_nodes(a.job, settings.cluster)) for a in arrivals)
    rules = Rules(
        compaction=contender.compaction,
        checks=Checks.NONE,
        move_s=settings.move_s,
        log_limit=1,
        max_queued=len(arrivals) + 1,
        ended_limit=len(arrivals) + 1,
    )
    machine = ClusterMachine(cluster, contender.make(settings.max_group or contender.max_group, settings.seed), rules)
    books = Books(machine, settings.history)
    paced = settings.fidelity is Fidelity.PACE or contender.paced_only
    delays = Delays(settings.provision_s, settings.launch_s, settings.move_s)
    takes = settings.takes if settings.packing is None else settings.packing.takes(machine)
    cast = PacedCast(machine, delays, books) if paced else Cast(machine, delays, takes, books)
    if not paced:
        hasten(cast, books)
    _join_machines(cast)
    for number, (arrival, original) in enumerate(zip(arrivals, workload.arrivals, strict=True), 1):
        packing = None if paced else settings.packing
        told_job = arrival.job if packing is None else packing.told(arrival.job, original.iterations)
        _submit(cast, replace(arrival, job=told_job), original.iterations, settings)
        if told is not None:
            cast.at(arrival.at_s, partial(told, number, len(arrivals)))
    if settings.faults is not None:
        strike(cast, settings.faults, settings.seed)
    cast.run()
    return _outcome(policy, workload, arrivals, cast, books, settings, paced)


def _submit(cast: Cast, arrival: Arrival, iterations: int, settings: Settings) -> None:
    """Submits the job with its work, which is the same wherever and however fast it is done."""
    work = iterations if settings.accounting is Accounting.WORK else None
    attempts = arrival.job.max_attempts if settings.faults is None else MOST_ATTEMPTS
    job = replace(arrival.job, iterations=work, max_attempts=attempts)
    cast.submit(arrival.at_s, able(job, settings.pause_s, settings.spares))
    if settings.accounting is Accounting.LIFETIME:
        cast.dismiss(arrival.at_s + arrival.duration_s, arrival.job.id)


def _join_machines(cast: Cast) -> None:
    """The machines of fixed pools are there from the start."""
    for pool in cast.machine.state.cluster.pools:
        for node in pool.fixed_nodes:
            cast.tell(ev.NodeJoined(node, pool.name))


def _outcome(
    policy: str,
    workload: Workload,
    arrivals: tuple[Arrival, ...],
    cast: Cast,
    books: Books,
    settings: Settings,
    paced: bool,
) -> Outcome:
    jobs = tuple(_job_outcome(arrival, cast, books, paced) for arrival in arrivals)
    done, takes = {job.job: job.iterations for job in jobs}, as_planned if paced else settings.takes
    end_s = max(cast.ended.values(), default=0.0)
    for book in books.pools.values():
        book.close(end_s)
    if paced:
        for arrival, job in zip(arrivals, jobs, strict=True):
            for kind, pool in books.kinds.items():
                phase = arrival.job.phase(kind)
                books.pools[pool].busy_s += job.iterations * phase.planned_s * phase.nodes
        for book in books.pools.values():
            book.busy_s = min(book.busy_s, book.paid_s)  # forecasts count whole milliseconds
    rollout, train = (books.pools[books.kinds[kind]] for kind in (PhaseKind.ROLLOUT, PhaseKind.TRAIN))
    shared, pools = cast.machine.state.cluster.shared, cast.machine.state.cluster.pools
    return Outcome(
        policy=policy,
        usd_total=books.usd(),
        makespan_h=end_s / HOUR_S,
        fluid_usd=fluid_usd(workload, settings.cluster, done, takes),
        whole_node_usd=whole_node_usd(workload, settings.cluster, done) if takes is as_planned else 0.0,
        rollout=PoolHours(0.0, 0.0, 0.0, 0.0) if shared else _hours(rollout),
        train=_hours(train),
        peak_rollout=0 if shared else rollout.peak,
        peak_train=train.peak,
        moves=books.moves.total(),
        restarts=books.restarts.total(),
        jobs=jobs,
        decision_ms=tuple(books.decision_ms),
        levels=tuple(books.levels),
        admissions=tuple(books.first.values()) if settings.history else (),
        spans=tuple(books.spans),
        billed_from_h=workload.first_s / HOUR_S if all(pool.on_demand for pool in pools) else 0.0,
    )


def _job_outcome(arrival: Arrival, cast: Cast, books: Books, paced: bool) -> JobOutcome:
    name = arrival.job.id
    started_s = cast.started.get(name)
    ended_s = cast.ended.get(name, arrival.at_s)  # a job that is refused is over at once
    iterations, solo_s, ramp_s = cast.done(name), arrival.job.solo_s, 0.0
    if arrival.job.staleness and not paced:
        solo_s, ramp_s = steady_s(arrival.job, iterations, cast.takes)
    elif name in cast.active_s:
        solo_s = cast.active_s[name] / iterations
    iteration_s = cast.iteration_s(name) - ramp_s / iterations if iterations else None
    begin_s = arrival.at_s if started_s is None else started_s
    # The longest that one more iteration may take alone. Of the first one the ramp is taken off on both sides.
    next_s = arrival.job.rollout.duration_s + arrival.job.train.duration_s + arrival.job.sync_s
    next_s -= 0.0 if iterations else ramp_s
    first = books.first.get(name)
    return JobOutcome(
        job=name,
        arrival_h=arrival.at_s / HOUR_S,
        started_h=None if started_s is None else started_s / HOUR_S,
        ended_h=ended_s / HOUR_S,
        iterations=iterations,
        solo_s=solo_s,
        iteration_s=iteration_s,
        slowdown=None if iteration_s is None else iteration_s / solo_s,
        slo=arrival.job.slo,
        group=first.group if first else "",
        admission=first.strategy if first else "",
        moves=books.moves[name],
        restarts=books.restarts[name],
        failed=name in cast.failed,
        ramp_s=ramp_s,
        refused="; ".join(books.refused.get(name, ())),
        slowdown_at_least=(ended_s - begin_s - ramp_s) / (iterations * solo_s + next_s),
    )


def _hours(book: PoolBook) -> PoolHours:
    paid, busy, switch = book.paid_s / HOUR_S, book.busy_s / HOUR_S, book.switch_s / HOUR_S
    return PoolHours(paid, busy, switch, paid - busy - switch)
