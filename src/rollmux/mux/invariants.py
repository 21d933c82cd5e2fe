"""The promises of docs/design/weave.md, by their numbers, as checks of the state; they raise on the first breach.

`check_seat` looks at one running job and is cheap enough for production; `check_all` looks at everything, forecasts
included. I10 has no state to check: tests replay histories for it.
"""

from collections import Counter
from itertools import pairwise
from math import inf

from rollmux.errors import InvariantViolated
from rollmux.mux.cluster_state import ClusterState
from rollmux.mux.job import PhaseKind
from rollmux.mux.node_book import NodeState
from rollmux.mux.order import StrictTurns, UrgentTurns, urgency
from rollmux.mux.plan import memory_problem
from rollmux.mux.seat import Lane, Seat
from rollmux.mux.totals import total
from rollmux.mux.transitions import HOLDING, Job, Phase
from rollmux.mux.weave import Weave

_EXCHANGING = frozenset({Job.RUNNING, Job.STOPPING, Job.PROVISIONING})
_ACTIVE = HOLDING - {Phase.PARKED, Phase.OFFLOADING, Phase.FENCED}


def check_all(state: ClusterState) -> None:
    """Every invariant, everywhere."""
    for weave in state.weaves.values():
        check_weave(weave)
    _nodes_add_up(state)
    _groups_are_apart(state)
    _seats_match_groups(state)
    _exchange_comes_to_an_end(state)
    for group in state.groups.values():
        trouble = memory_problem(state.snapshot(), group)
        _hold(trouble is None, "I3", f"group {group.id} overfills host memory: {trouble}")
        late = None if group.id in state.strained else state.policy.forecaster.late(group)
        _hold(late is None, "I9", f"group {group.id} was made or joined so that a job misses its SLO: {late}")
    _sizes_are_bounded(state)


def check_weave(weave: Weave) -> None:
    """What must hold inside one running group."""
    for seat in weave.seats.values():
        check_seat(weave, seat)
    holding = total(lane.holding for seat in weave.seats.values() for lane in seat.lanes.values())
    _hold(holding == len(weave.leases), "I7", f"{holding} phases hold {len(weave.leases)} leases")
    for node, holder in weave.turns.holders.items():
        knows = holder is None or (node in holder.held and weave.seats.get(holder.seat.job.id) is holder.seat)
        _hold(knows, "I1", f"node {node} is held by {holder}, who does not know")


def check_seat(weave: Weave, seat: Seat) -> None:
    """What must hold for one running job: cheap enough for production, after each of its events."""
    progress, staleness = seat.progress, seat.job.staleness
    in_order = (
        progress.synced <= progress.trained <= min(progress.rolled, progress.synced + 1)
        and progress.rolled <= progress.synced + staleness + 1
    )
    if not in_order:
        raise InvariantViolated("I5", f"job {seat.job.id} has done {progress}")
    for lane in seat.lanes.values():
        state = lane.state
        if state in HOLDING:
            _check_holding(weave, lane)
            if state in _ACTIVE:
                _check_turn(weave, lane)
        elif lane.held:
            raise InvariantViolated("I1", f"{lane} is {state.value} and holds {lane.held}")
        elif state is Phase.WAITING:
            _check_waiting(weave, lane)


def _hold(kept: bool, number: str, what: str) -> None:
    if not kept:
        raise InvariantViolated(number, what)


def _check_holding(weave: Weave, lane: Lane) -> None:
    """I1, I7, L2: the lane is the holder of its nodes, its lease is its own and was issued, every drain has an end."""
    holders = weave.turns.holders
    for node in lane.held:
        if holders[node] is not lane:
            raise InvariantViolated("I1", f"{lane} holds node {node}, which is held by {holders[node]}")
    if weave.leases.get(lane.epoch) is not lane or not 0 < lane.epoch <= weave.ledger.epoch:
        raise InvariantViolated("I7", f"{lane} does not own its lease {lane.epoch}")
    if lane.state in (Phase.FENCED, Phase.OFFLOADING) and lane.deadline == inf:
        raise InvariantViolated("L2", f"{lane} may keep others waiting for ever")


def _check_turn(weave: Weave, lane: Lane) -> None:
    """I4 and I5: the lane overtook no other that waits for its nodes, and is at the next of its job's iterations."""
    turns = weave.turns
    if lane.iteration != lane.seat.progress.committed(lane.kind):
        raise InvariantViolated("I5", f"{lane} runs with {lane.seat.progress.committed(lane.kind)} done before")
    if lane.tail:
        return
    for node in lane.held:
        if isinstance(turns, StrictTurns):
            due = (lane.rounds - 1, lane.place)
            early = not _may_be_put_off(lane) and any(
                node in o.nodes and (o.rounds, o.place) < due for o in turns.claims if o is not lane
            )
        elif isinstance(turns, UrgentTurns):
            queue = turns.queues[node]
            early = any(o.asked < lane.granted_by and urgency(o) < urgency(lane) for o in queue[:1])
        else:
            queue = turns.queues[node]
            early = bool(queue) and queue[0].asked < lane.asked
        if early:
            raise InvariantViolated("I4", f"{lane} got node {node} before its turn")


def _may_be_put_off(lane: Lane) -> bool:
    """Whether a rollout that ran ahead and failed at its tail may have put off this lane's next turn while it runs."""
    job = lane.seat.job
    return lane.kind is PhaseKind.TRAIN and job.staleness > 0 and job.tail is not None


def _check_waiting(weave: Weave, lane: Lane) -> None:
    """I4, I5 and one step of L1: the lane is in its place in the lines, and does not wait for nodes that are free."""
    turns = weave.turns
    if lane.iteration != lane.seat.progress.committed(lane.kind):
        raise InvariantViolated("I5", f"{lane} waits with {lane.seat.progress.committed(lane.kind)} done before")
    ready = 0
    for node in lane.nodes:
        queue = turns.queues[node]
        rank = urgency if isinstance(turns, UrgentTurns) else _asked
        if lane not in queue or any(rank(before) > rank(after) for before, after in pairwise(queue)):
            raise InvariantViolated("I4", f"{lane} is not in its place in the line for node {node}")
        ready += turns.holders[node] is None and turns.next_at(node) is lane
    if ready >= lane.wants:
        raise InvariantViolated("L1", f"{lane} waits for nodes that are free")


def _asked(lane: Lane) -> tuple[int, tuple[int, int]]:
    return lane.asked, (0, 0)


def _nodes_add_up(state: ClusterState) -> None:
    """I2: free + granted + draining + failed GPUs are the registered ones, pool by pool."""
    book = state.book
    counts: Counter[tuple[str, str]] = Counter()
    for node, record in book.nodes.items():
        counts[record.pool, "all"] += 1
        counts[record.pool, _standing(state, node)] += 1
    for name, pool in book.pools.items():
        gpus = pool.node_type.gpus
        registered = book.rented[name] * gpus
        parts = [counts[name, part] * gpus for part in ("free", "granted", "draining", "failed")]
        _hold(
            total(parts) == registered == counts[name, "all"] * gpus, "I2", f"pool {name}: {parts} of {registered} GPUs"
        )
        idle = [n for n, r in book.nodes.items() if r.pool == name and r.group_id is None and not r.cordoned]
        if not pool.on_demand:
            _hold(book.idle.get(name, ()) == tuple(idle), "I2", f"pool {name}: {book.idle.get(name)} are not {idle}")
        else:
            _hold(not idle, "I2", f"pool {name}: nobody uses the rented nodes {idle}")


def _standing(state: ClusterState, node: str) -> str:
    record = state.book.nodes[node]
    if record.state is NodeState.LOST:
        return "failed"
    weave = state.weaves.get(record.group_id or "")
    holder = weave.turns.holders.get(node) if weave else None
    if holder is None:
        return "free"
    return "draining" if holder.state in (Phase.FENCED, Phase.OFFLOADING) else "granted"


def _groups_are_apart(state: ClusterState) -> None:
    """I1 and I2, between groups: a node belongs to the one group whose jobs are pinned to it."""
    owners = {node: group.id for group in state.groups.values() for node in group.nodes}
    pinned = total(len(group.nodes) for group in state.groups.values())
    _hold(len(owners) == pinned, "I1", "two groups share a node")
    recorded = {node: record.group_id for node, record in state.book.nodes.items() if record.group_id is not None}
    _hold(owners == recorded, "I2", f"groups own {owners}, the register says {recorded}")
    _hold(state.groups.keys() == state.weaves.keys(), "I2", "groups and running groups differ")


def _seats_match_groups(state: ClusterState) -> None:
    """Every job is where its record says, and nowhere else."""
    homes = Counter((m.job.id, group.id) for group in state.groups.values() for m in group.members)
    expected: Counter[tuple[str, str]] = Counter()
    stopping = {job_id for job_id, record in state.jobs.items() if record.state is Job.STOPPING}
    _hold(stopping <= state.stopped.keys() <= state.jobs.keys(), "L2", f"of {stopping} some are not waited for")
    for job_id, record in state.jobs.items():
        if record.group_id:
            expected[job_id, record.group_id] += 1
        if record.target is not None:
            expected[job_id, record.target[0]] += 1
        _hold((record.state is Job.QUEUED) == (job_id in state.backlog), "L1", f"job {job_id} is queued or not")
        if record.state is Job.RUNNING:
            seat = state.weaves[record.group_id].seats.get(job_id)
            _hold(seat is not None and seat.attempt == record.attempt, "I7", f"job {job_id} runs without a seat")
    _hold(homes == expected, "I2", f"groups have {dict(homes)}, records say {dict(expected)}")
    _hold(len(set(state.backlog)) == len(state.backlog), "L1", "a job is queued twice")
    for group_id, weave in state.weaves.items():
        for job_id in weave.seats:
            _hold(state.jobs[job_id].group_id == group_id, "I1", f"job {job_id} sits in {group_id} as well")


def _exchange_comes_to_an_end(state: ClusterState) -> None:
    """L1, L2: a job that is to change places has a place until then, and does not wait longer than was reckoned."""
    for job_id in state.swaps:
        record = state.jobs.get(job_id)
        _hold(record is not None and record.state in _EXCHANGING, "L1", f"job {job_id} can't change places any more")
    _hold(not state.swaps or state.swaps_until < inf, "L2", f"{list(state.swaps)} may wait for each other for ever")


def _sizes_are_bounded(state: ClusterState) -> None:
    """L3: nothing that outsiders can feed grows without limit."""
    rules = state.rules
    for name, size, limit in (
        ("ended", len(state.ended), rules.ended_limit),
        ("decisions", len(state.decisions), rules.decisions_limit),
        ("alarms", len(state.alarms), state.alarms.maxlen or 0),
    ):
        _hold(size <= limit, "L3", f"{name} holds {size}, the limit is {limit}")
