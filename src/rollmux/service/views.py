"""The state of the cluster as values to show. Nothing here changes anything."""

from dataclasses import replace

from rollmux.mux.explain import explain
from rollmux.mux.forecast import likely_s
from rollmux.mux.job import PhaseKind
from rollmux.mux.job_record import JobRecord
from rollmux.mux.seat import Lane
from rollmux.mux.story import story
from rollmux.mux.transitions import Phase
from rollmux.protocol.history import ANOTHERS
from rollmux.protocol.job_file import Submission
from rollmux.protocol.views import ClusterView, JobView, LaneView, NodeView, Quote
from rollmux.service.controller import Controller
from rollmux.service.history.lately import taken_lately
from rollmux.service.history.seen import names_for
from rollmux.service.live import Live


def cluster_view(controller: Controller, now: float, tenant: str | None, broken: str = "") -> ClusterView:
    """The cluster as this tenant may see it (None: all of it). Names of others' jobs are not shown."""
    state = controller.machine.state
    mine = {name: live for name, live in controller.jobs.items() if tenant in (None, live.tenant)}
    placed = [record for record in state.jobs.values() if record.placement is not None]
    return ClusterView(
        now,
        state.ledger.seq,
        tuple(job_view(controller, now, name, tenant) for name in mine),
        _nodes(controller, set(mine)),
        state.usd_per_hour(),
        sum(record.job.usd_per_hour(state.cluster) for record in placed),
        _fluid_usd(controller),
        tuple(state.alarms) if tenant is None else (),
        broken,
    )


def job_view(controller: Controller, now: float, job_id: str, tenant: str | None) -> JobView:
    """One job, whether it lives or has ended, as this tenant may see it."""
    state, live = controller.machine.state, controller.jobs[job_id]
    record = state.jobs.get(job_id)
    if record is None:
        return _ended(controller, live)
    placement, progress = record.placement, record.progress
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
        _forecast_s(controller, record),
        progress.recent_s or None,
        progress.slowdown,
        record.job.slo,
        record.job.usd_per_hour(state.cluster),
        _lanes(controller, now, record, tenant),
        record.told.reason if record.told else (record.moving_because if state.is_moving(record) else ""),
        record.told.expected_wait_s if record.told else None,
    )


def one_job_view(controller: Controller, now: float, job_id: str, tenant: str | None) -> JobView:
    """One job with what takes too long to be told of each job of a whole cluster."""
    view = job_view(controller, now, job_id, tenant)
    return replace(view, likely_s=_likely_s(controller, job_id))


def quote(controller: Controller, submission: Submission) -> Quote:
    """What would become of a job that came now. Jobs that wait are before it, so it waits behind them."""
    state = controller.machine.state
    job = submission.job.resolve(state.cluster)
    decision = state.policy.place(job, state.snapshot())
    plan, alone_usd = decision.plan, job.usd_per_hour(state.cluster)
    lines = tuple(explain(decision).splitlines())
    if plan is None or state.backlog:
        line = (f"{len(state.backlog)} jobs are in line before it.",) if state.backlog else ()
        return Quote(False, "", (), (), 0.0, alone_usd, None, job.limit_s, line + lines)
    forecast = state.policy.forecaster.forecast(plan.group)
    place, added = plan.placement, plan.added_usd_per_hour
    seconds = forecast.iteration_s[-1]
    return Quote(True, plan.group.id, place.rollout, place.train, added, alone_usd, seconds, job.limit_s, lines)


def explained(controller: Controller, job_id: str) -> tuple[str, ...]:
    """Why a job is where it is."""
    decision = controller.machine.state.decisions.get(job_id)
    if decision is None:
        return (f"Nothing is remembered of why job {job_id} is where it is: that was before a restart, or long ago.",)
    return tuple(explain(decision).splitlines())


def told(controller: Controller, job_id: str) -> tuple[str, ...]:
    """What has happened to a job since the controller started."""
    return tuple(story(controller.machine.log, job_id))


def _ended(controller: Controller, live: Live) -> JobView:
    state, job = controller.machine.state, live.submission.job
    job = job.resolve(state.cluster)
    alone_usd = job.usd_per_hour(state.cluster)
    how, account = state.ended.get(job.id, ""), controller.history.books.accounts.get(job.id)
    done = account.done if account is not None else 0
    view = (job.id, live.tenant, "ended", "", 0, (), (), done, job.iterations, job.solo_s, None, None, None, job.slo)
    return JobView(*view, alone_usd, reason=how)


def _lanes(controller: Controller, now: float, record: JobRecord, tenant: str | None) -> tuple[LaneView, ...]:
    weave = controller.machine.state.weaves.get(record.group_id)
    seat = weave.seats.get(record.job.id) if weave is not None else None
    lanes = seat.lanes.values() if seat is not None else ()
    return tuple(_lane(controller, lane, now, tenant) for lane in lanes if lane.state is not Phase.IDLE)


def _lane(controller: Controller, lane: Lane, now: float, tenant: str | None) -> LaneView:
    for_s = None if lane.started_at is None or not lane.holding else now - lane.started_at
    nodes = lane.held if lane.holding else lane.nodes
    view = LaneView(lane.kind.value, lane.state.value, lane.iteration, nodes, lane.epoch, for_s)
    if lane.state is not Phase.WAITING:
        return view
    turn = controller.processes.waiting(now, lane, names_for(controller, tenant))
    return replace(view, waits_for=turn.holders, expected_s=turn.expected_s)


def _nodes(controller: Controller, visible: set[str]) -> tuple[NodeView, ...]:
    state = controller.machine.state
    holders: dict[str, list[str]] = {}
    for weave in state.weaves.values():
        for lane in weave.leases.values():
            for node in lane.held:
                job_id = lane.seat.job.id
                holders.setdefault(node, []).append(job_id if job_id in visible else ANOTHERS)
    return tuple(
        NodeView(name, node.pool, node.state.value, node.cordoned, node.group_id or "", tuple(holders.get(name, ())))
        for name, node in state.book.nodes.items()
    )


def _forecast_s(controller: Controller, record: JobRecord) -> float | None:
    state = controller.machine.state
    group = state.groups.get(record.group_id)
    if group is None:
        return None
    forecast = state.policy.forecaster.forecast(group)
    return dict(zip((m.job.id for m in group.members), forecast.iteration_s, strict=True)).get(record.job.id)


def _likely_s(controller: Controller, job_id: str) -> float | None:
    state = controller.machine.state
    group = state.groups.get(state.jobs[job_id].group_id) if job_id in state.jobs else None
    if group is None:
        return None
    names = [member.job.id for member in group.members]
    taken = taken_lately(reversed(controller.history.spans.over), names)
    return None if taken is None else dict(zip(names, likely_s(group, taken), strict=True))[job_id]


def _fluid_usd(controller: Controller) -> float:
    """What the work of an hour costs, at the pace at which it is done, were no node ever idle: no price is below it."""
    state, total = controller.machine.state, 0.0
    pools = ((PhaseKind.ROLLOUT, state.cluster.rollout), (PhaseKind.TRAIN, state.cluster.train))
    for group in state.groups.values():
        forecast = state.policy.forecaster.forecast(group)
        for member, iteration_s in zip(group.members, forecast.iteration_s, strict=True):
            phases = ((member.job.phase(kind), pool.node_type.usd_per_hour) for kind, pool in pools)
            total += sum(phase.nodes * usd * phase.planned_s for phase, usd in phases) / iteration_s
    return total
