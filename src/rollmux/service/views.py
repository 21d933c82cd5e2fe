"""The state of the cluster as values to show. Nothing here changes anything."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from rollmux.mux.backlog import run_cycle
from rollmux.mux.commands import Queue
from rollmux.mux.explain import called, explain, in_line, why_queued
from rollmux.mux.forecast import likely_s
from rollmux.mux.job import JobSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.node_book import NodeState
from rollmux.mux.plan import Decision, Verdict
from rollmux.mux.seat import Lane
from rollmux.mux.story import story
from rollmux.mux.transitions import Phase
from rollmux.protocol.job_file import Submission
from rollmux.protocol.views import ClusterView, JobView, LaneView, NodeView, Quote
from rollmux.service.controller import Controller, Refused
from rollmux.service.history.lately import taken_lately
from rollmux.service.live import Live
from rollmux.service.steps import Steps

# The most ended jobs that are shown beside the others, unless another number is asked for: each look takes longer with
# them, for as long as they are remembered.
MOST_ENDED = 100


def cluster_view(
    controller: Controller, now: float, tenant: str | None, broken: str = "", most_ended: int = MOST_ENDED
) -> Steps[ClusterView]:
    """The cluster as this tenant may see it (None: all of it). Names of others' jobs are not shown.

    Of the jobs that have ended, the latest come first.
    """
    state, seq = controller.machine.state, controller.machine.state.ledger.seq
    iteration_s, fluid_usd = yield from _paces(controller)
    usd_alone = sum(record.job.usd_per_hour(state.cluster) for record in state.jobs.values() if record.placement)
    yield
    nodes = yield from _nodes(controller, tenant)
    jobs, ended = [], controller.ended(tenant)
    names = [*ended[max(0, len(ended) - most_ended) :], *state.jobs]
    yield
    for name in names:
        live = controller.jobs.get(name)
        if live is not None and tenant in (None, live.tenant):
            jobs.append(job_view(controller, now, name, tenant, iteration_s))
            yield
    alarms, usd = tuple(state.alarms) if tenant is None else (), state.usd_per_hour()
    return ClusterView(now, seq, tuple(jobs), nodes, usd, usd_alone, fluid_usd, alarms, broken, len(ended))


def job_view(
    controller: Controller, now: float, job_id: str, tenant: str | None, iteration_s: Mapping[str, float]
) -> JobView:
    """One job, whether it lives or has ended, as this tenant may see it; the forecasts are given."""
    state, live = controller.machine.state, controller.jobs[job_id]
    record = state.jobs.get(job_id)
    if record is None:
        return _ended(controller, live)
    placement, progress, waits = record.placement, record.progress, state.waits(record)
    return JobView(
        job_id,
        live.tenant,
        record.state.value,
        record.group_id,
        record.attempt,
        placement.rollout if placement else (),
        placement.train if placement else (),
        progress.synced,
        record.job.iterations,
        record.job.solo_s,
        iteration_s.get(job_id),
        progress.recent_s or None,
        progress.slowdown,
        record.job.slo,
        record.job.usd_per_hour(state.cluster),
        _lanes(controller, now, record, tenant),
        _reason(controller, record, waits),
        waits.expected_wait_s if waits else None,
    )


def one_job_view(controller: Controller, now: float, job_id: str, tenant: str | None) -> JobView:
    """One job, with forecasts that would take too long for each job of a whole cluster."""
    state = controller.machine.state
    group = state.groups.get(state.jobs[job_id].group_id) if job_id in state.jobs else None
    if group is None:
        return job_view(controller, now, job_id, tenant, {})
    names = [member.job.id for member in group.members]
    iteration_s = dict(zip(names, state.policy.forecaster.forecast(group).iteration_s, strict=True))
    view = job_view(controller, now, job_id, tenant, iteration_s)
    taken = taken_lately(reversed(controller.history.spans.over), names)
    if taken is None:
        return view
    return replace(view, likely_s=dict(zip(names, likely_s(group, taken), strict=True))[job_id])


def quote(controller: Controller, now: float, submission: Submission, owner: str, tenant: str | None) -> Quote:
    """What would become of a job that its owner submitted now; raises what its submission would raise.

    The queue itself is asked, so that the job goes ahead of waiting jobs just as it would then.
    """
    state, known = controller.machine.state, controller.jobs.get(submission.job.id)
    if known is not None:
        known.require_same(owner, submission)
    if reasons := controller.machine.why_not(submission.job):
        raise Refused(reasons)
    job = submission.job.resolve(state.cluster)
    alone_usd = job.usd_per_hour(state.cluster)
    if known is not None:
        none = _no_place(job, alone_usd, "It has been submitted already: the same again changes nothing.")
        return replace(none, submitted=True)
    waiting = [state.jobs[job_id].job for job_id in state.backlog]
    queue = sorted([*waiting, job], key=lambda each: -each.priority)
    cycle = run_cycle(state.snapshot(), queue, lambda: state.remaining(now), state.queue_policy(now))
    decided = next((decision for decision in cycle.decisions if decision.job_id == job.id), None)
    decision = decided or state.policy.place(job, state.snapshot())
    name = controller.names(tenant)
    lines = _lines(controller, decision, lambda job_id: job_id if job_id == job.id else name(job_id))
    if decided is None:
        return _no_place(job, alone_usd, f"{queue.index(job)} jobs are in line before it.", *lines)
    plan = decision.plan
    if plan is None:
        return _no_place(job, alone_usd, *lines)
    forecast = state.policy.forecaster.forecast(plan.group)
    place, added = plan.placement, plan.added_usd_per_hour
    seconds = forecast.iteration_s[-1]
    return Quote(True, plan.group.id, place.rollout, place.train, added, alone_usd, seconds, job.limit_s, lines)


def _no_place(job: JobSpec, alone_usd: float, *lines: str) -> Quote:
    return Quote(False, "", (), (), 0.0, alone_usd, None, job.limit_s, lines)


def explained(controller: Controller, job_id: str, tenant: str | None) -> tuple[str, ...]:
    """Why a job is where it is, or still waits.

    For a job that has moved since, this is the decision of its admission; for a job in line, its latest decision as
    long as that is still why it waits.
    """
    state = controller.machine.state
    decision, record = state.decisions.get(job_id), state.jobs.get(job_id)
    waits = state.waits(record) if record is not None else None
    if waits is not None and (decision is None or decision.plan is not None or why_queued(decision) != waits.reason):
        return (f"Job {job_id} is number {waits.position} in line: {waits.reason}{_first(controller, waits, tenant)}.",)
    if decision is None:
        return (f"Nothing is remembered of why job {job_id} is where it is: that was before a restart, or long ago.",)
    lines = _lines(controller, decision, controller.names(tenant))
    if record is None or record.placement is None or decision.plan is None:
        return lines
    plan, placement = decision.plan, record.placement
    if (plan.group.id, plan.placement) == (record.group_id, placement):
        return lines
    where = f"{record.group_id} on {', '.join(placement.all_nodes)}"
    why = "" if state.is_moving(record) or not record.moving_because else f": {record.moving_because}"
    return (f"Job {job_id} has moved since to {where}{why}. This is how it was admitted:", *lines)


def _lines(controller: Controller, decision: Decision, name: Callable[[str], str]) -> tuple[str, ...]:
    """The decision in words; if there was no place, also which nodes the job lacks that are there but drained."""
    lines = tuple(explain(decision, name).splitlines())
    if decision.plan is not None:
        return lines
    lacking = {each.subject for each in decision.candidates if each.verdict is Verdict.NO_NODES}
    nodes = controller.machine.state.book.nodes.items()
    free = [(node, each) for node, each in nodes if each.group_id is None and each.state is NodeState.READY]
    idle = [node for node, each in free if each.cordoned and each.pool in lacking]
    return (*lines, f"Drained, so that no job is put there: {', '.join(idle)}.") if idle else lines


def _first(controller: Controller, waits: Queue, tenant: str | None) -> str:
    """Which job is first in line, if this one was not tried because others are before it: all wait for that one."""
    if waits.reason != in_line(waits.position - 1):
        return ""
    return f", the first of them {called(controller.machine.state.backlog[0], controller.names(tenant))}"


def told(controller: Controller, job_id: str, tenant: str | None) -> Steps[tuple[str, ...]]:
    """What has happened to a job, as far as the log goes back: it is bounded, and begins with the controller."""
    lines: list[str] = []
    since, name = controller.since(job_id), controller.names(tenant)
    for entry in list(controller.machine.log):
        if entry.at >= since:
            lines += story((entry,), job_id, name)
        yield
    return tuple(lines)


def _reason(controller: Controller, record: JobRecord, waits: Queue | None) -> str:
    """Why a job waits, moves, or has its place and does nothing there."""
    state, job_id = controller.machine.state, record.job.id
    if waits is not None:
        return waits.reason
    if state.is_moving(record):
        return record.moving_because
    return controller.jobs[job_id].waited_for(record, state.rules.timing)


def _ended(controller: Controller, live: Live) -> JobView:
    state, job = controller.machine.state, live.submission.job
    job = job.resolve(state.cluster)
    alone_usd = job.usd_per_hour(state.cluster)
    how, account = state.ended.get(job.id, ""), controller.history.books.accounts.get(job.id)
    done = account.done if account is not None else 0
    view = (job.id, live.tenant, "ended", "", 0, (), (), done, job.iterations, job.solo_s, None, None, None, job.slo)
    return JobView(*view, alone_usd, reason=how)


def _lanes(controller: Controller, now: float, record: JobRecord, tenant: str | None) -> tuple[LaneView, ...]:
    lanes = controller.machine.state.lanes(record)
    return tuple(_lane(controller, lane, now, tenant) for lane in lanes if lane.state is not Phase.IDLE)


def _lane(controller: Controller, lane: Lane, now: float, tenant: str | None) -> LaneView:
    for_s = None if lane.started_at is None or not lane.holding else now - lane.started_at
    nodes = lane.held if lane.holding else lane.nodes
    view = LaneView(lane.kind.value, lane.state.value, lane.iteration, nodes, lane.epoch, for_s)
    if lane.state is not Phase.WAITING:
        return view
    turn = controller.processes.waiting(now, lane, controller.names(tenant))
    return replace(view, waits_for=turn.holders, expected_s=turn.expected_s)


def _nodes(controller: Controller, tenant: str | None) -> Steps[tuple[NodeView, ...]]:
    state, name, found = controller.machine.state, controller.names(tenant), []
    holders: dict[str, list[str]] = {}
    for weave in state.weaves.values():
        for lane in weave.leases.values():
            for node in lane.held:
                holders.setdefault(node, []).append(name(lane.seat.job.id))
    yield
    for node, record in list(state.book.nodes.items()):
        held = tuple(holders.get(node, ()))
        found.append(NodeView(node, record.pool, record.state.value, record.cordoned, record.group_id or "", held))
        yield
    return tuple(found)


def _paces(controller: Controller) -> Steps[tuple[dict[str, float], float]]:
    """The forecast of each job, and what the work of an hour costs at that pace if no node is ever idle: no price is
    lower."""
    state, iteration_s, usd = controller.machine.state, dict[str, float](), 0.0
    prices = state.cluster.rollout.node_type.usd_per_hour, state.cluster.train.node_type.usd_per_hour
    for group in list(state.groups.values()):
        forecast = state.policy.forecaster.forecast(group)
        for member, each_s in zip(group.members, forecast.iteration_s, strict=True):
            job = member.job
            iteration_s[job.id] = each_s
            phases = zip((job.rollout, job.train), prices, strict=True)
            usd += sum(phase.nodes * price * phase.planned_s for phase, price in phases) / each_s
        yield
    return iteration_s, usd
