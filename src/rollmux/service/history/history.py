"""Hears every event that the machine has taken, and keeps what it means for phases, bills and nodes.

Invariant: the same events lead to the same history, whether they are heard as they happen or in a replay. It changes
nothing of the machine, and each event costs a few microseconds: only what the event touches is looked at.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_state import ClusterState
from rollmux.mux.group import Group
from rollmux.mux.job import PhaseKind
from rollmux.mux.job_record import JobRecord
from rollmux.mux.node_book import NodeRecord, NodeState
from rollmux.mux.seat import Lane
from rollmux.mux.transitions import Phase
from rollmux.protocol.history import Change, News
from rollmux.service.history.books import Account, Books, shares
from rollmux.service.history.spans import BUSY, LOST, MOST_SPANS, Open, Span, Spans

VERSION = 1
OFFLOAD = "offload"
# Records whose news are kept for those who follow: some seconds of a very busy cluster, an hour of a calm one.
MOST_NEWS = 8192

_OfJob = ev.JobStarted | ev.JobProfiled | ev.JobCancelled | cmd.Admit | cmd.Queue | cmd.Launch
_OfNode = ev.NodeEvent | cmd.Provision | cmd.ReleaseNode


class Saved(msgspec.Struct):
    """A history as an image holds it."""

    version: int
    over: list[Span]
    open: list[Open]
    waits: list[tuple[str, str, float]]
    books: Books


class _Node(NamedTuple):
    """What was told of a node last."""

    pool: str
    state: str
    cordoned: bool
    group: str

    @property
    def counts(self) -> bool:
        """Whether the books count it. A lost node that no job is pinned to is only remembered for being drained."""
        return bool(self.group) or self.state != NodeState.LOST.value


class History:
    """Spans, books and news of one cluster."""

    def __init__(self, state: ClusterState, saved: Any = None) -> None:
        self.state = state
        # Called with how long each phase has waited for its nodes, but not for a phase that goes on after a pause.
        self.waited: Callable[[PhaseKind, float], object] = lambda *_: None
        self.news: deque[News] = deque(maxlen=MOST_NEWS)
        self.news_after = state.ledger.seq  # `news` has the news of all later records
        self._changes: list[Change] = []
        self._records = dict(state.jobs)
        self._groups: dict[str, Group] = {}
        self._usd_per_hour: dict[str, float] = {}  # by group
        self._nodes: dict[str, _Node] = {}
        self._pools = {PhaseKind.ROLLOUT: state.cluster.rollout.name, PhaseKind.TRAIN: state.cluster.train.name}
        if isinstance(saved, dict) and saved.get("version") == VERSION:
            self._restore(msgspec.convert(saved, Saved))
        else:
            self._begin(max(0.0, state.now))

    def _restore(self, saved: Saved) -> None:
        self.books = saved.books
        self.spans = Spans(self.books.used)
        self.spans.over.extend(saved.over)
        self.spans.open = {span.epoch: span for span in saved.open}
        self.spans.waits = {(job, kind): since for job, kind, since in saved.waits}
        self._groups = dict(self.state.groups)
        self._usd_per_hour = {name: group.usd_per_hour(self.state.cluster) for name, group in self._groups.items()}
        self._nodes = {name: _seen(record) for name, record in self.state.book.nodes.items()}

    def _begin(self, now: float) -> None:
        """Begins the books with what there is at this moment."""
        self.books = Books.begun(self.state.cluster, now)
        self.spans = Spans(self.books.used)
        for record in self.state.jobs.values():
            account = self._account(record)
            account.counted_to, account.state = now, record.state.value
        for weave in self.state.weaves.values():
            for lane in weave.leases.values():
                if lane.state is not Phase.PARKED:
                    self._take_up(lane, now)
        self._see_groups(now)
        self._see_nodes(now, self.state.book.nodes)
        self._changes.clear()

    def _take_up(self, lane: Lane, now: float) -> None:
        span = self._open(lane.lease(), OFFLOAD if lane.state is Phase.OFFLOADING else lane.kind.value, now, 0.0)
        span.started = lane.started_at
        if lane.state is Phase.FENCED:
            span.does = LOST
        elif lane.started_at is not None and lane.state is not Phase.OFFLOADING:
            span.does = BUSY

    def saved(self) -> Any:
        """All of it but the news, as plain data."""
        waits = [(job, kind, since) for (job, kind), since in self.spans.waits.items()]
        return msgspec.to_builtins(
            Saved(VERSION, list(self.spans.over), list(self.spans.open.values()), waits, self.books)
        )

    @property
    def whole_from_s(self) -> float:
        """Every phase that ended since then is remembered."""
        over = self.spans.over
        return over[0].ended if len(over) == MOST_SPANS else self.books.since

    # -- what is heard -----------------------------------------------------------------------------------------------

    def heard(self, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        """The machine has taken this event, and answers with these commands."""
        hear = _HEARD[type(event)]
        if hear is not None:
            hear(self, now, event)
        for command in commands:
            answer = _ANSWERED.get(type(command))
            if answer is not None:
                answer(self, now, command)
        if hear in _AROUND:
            self._see_groups(now)
            self._forget_the_oldest()
        if self._changes:
            if len(self.news) == MOST_NEWS:
                self.news_after = self.news[0].seq
            self.news.append(News(self.state.ledger.seq, now, tuple(self._changes)))
            self._changes.clear()

    def _of_job(self, now: float, said: _OfJob) -> None:
        self._see_job(now, said.job_id)

    def _over(self, now: float, event: ev.JobFinished | ev.JobFailed | ev.JobStopped | ev.JobAbandoned) -> None:
        """An attempt is gone, and with it whatever it held."""
        for epoch in [epoch for epoch, span in self.spans.open.items() if span.job == event.job_id]:
            if self.state.lane(event.job_id, epoch) is None:
                self._end(epoch, "gone", now)
        self.spans.forget_waits(event.job_id)
        self._see_job(now, event.job_id)

    def _of_node(self, now: float, said: _OfNode) -> None:
        self._see_nodes(now, (said.node,))

    def _of_all(self, now: float, event: ev.NodeLost | ev.Tick) -> None:
        """An event that may concern any job."""
        live = {epoch for weave in self.state.weaves.values() for epoch in weave.leases}
        for epoch in [epoch for epoch in self.spans.open if epoch not in live]:
            self._end(epoch, "gone", now)
        for job_id in list(self._records):
            self._see_job(now, job_id)
        if isinstance(event, ev.NodeLost):
            self._see_nodes(now, (event.node,))

    def _submitted(self, now: float, event: ev.JobSubmitted) -> None:
        record = self.state.jobs.get(event.job.id)
        if record is not None and record.job.id not in self.books.accounts:
            self._records[record.job.id] = record
            self._account(record)
            self._tell("submitted", record.job.id)
            self._see_job(now, record.job.id)

    def _requested(self, now: float, event: ev.PhaseRequested) -> None:
        self._lines_up(now, event.job_id, event.kind)

    def _lines_up(self, now: float, job_id: str, kind: PhaseKind) -> None:
        lane = self.state.seat(self.state.jobs[job_id]).lanes[kind]
        if lane.state is Phase.WAITING or lane.wanted:
            self.spans.asked(job_id, kind.value, now)
            self._tell("waiting", job_id, kind=kind.value, iteration=lane.iteration, nodes=lane.nodes)

    def _started(self, now: float, event: ev.PhaseStarted) -> None:
        span = self.spans.open.get(event.epoch)
        if span is not None and span.started is None:
            self.spans.does(span, BUSY, now)
            span.started = now
            self._tell_of("started", span)

    def _paused(self, now: float, event: ev.PhasePaused) -> None:
        span = self._end(event.epoch, "paused", now)
        if span is not None:
            self._lines_up(now, event.job_id, PhaseKind(span.kind))

    def _resized(self, now: float, said: ev.PhaseShrunk | cmd.Extend) -> None:
        lane, span = self.state.lane(said.job_id, said.epoch), self.spans.open.get(said.epoch)
        if lane is not None and span is not None and self.spans.holds(span, lane.held, now):
            self._tell_of("nodes", span)

    def _finished(self, now: float, event: ev.PhaseFinished) -> None:
        span = self._end(event.epoch, "finished", now)
        synced = span is not None and span.kind == PhaseKind.SYNC.value
        if synced and self._groups != self.state.groups:  # between iterations jobs may be told to move
            self._see_groups(now)

    def _failed(self, now: float, event: ev.PhaseFailed) -> None:
        self._end(event.epoch, "failed", now)

    def _offloaded(self, now: float, event: ev.PhaseOffloaded) -> None:
        self._end(event.epoch, "finished", now)

    # -- what is answered --------------------------------------------------------------------------------------------

    def _granted(self, now: float, command: cmd.Grant) -> None:
        lease = command.lease
        if lease.epoch in self.spans.open:
            return  # the same lease again
        kind = lease.kind.value
        span = self._open(lease, kind, now, self.spans.waited(lease.job_id, kind, now))
        self._tell_of("granted", span)
        if not lease.resumed:
            self.waited(lease.kind, span.waited_s)

    def _revoked(self, now: float, command: cmd.Revoke) -> None:
        span = self.spans.open.get(command.epoch)
        if span is not None:
            self.spans.does(span, LOST, now)
            self._tell_of("fenced", span, reason=command.reason)

    def _evicted(self, now: float, command: cmd.Offload) -> None:
        lane = self.state.lane(command.job_id, command.epoch)
        if lane is not None:
            self._tell_of("offloading", self._open(lane.lease(), OFFLOAD, now, 0.0))

    def _stopped(self, now: float, command: cmd.Stop) -> None:
        self.spans.forget_waits(command.job_id)
        self._see_job(now, command.job_id)

    # -- what these share --------------------------------------------------------------------------------------------

    def _open(self, lease: cmd.Lease, kind: str, now: float, waited_s: float) -> Open:
        group = self.state.jobs[lease.job_id].group_id
        span = Open.of(lease, kind, group, self._pools.get(lease.kind, ""), now, waited_s)
        self.spans.begin(span)
        return span

    def _end(self, epoch: int, how: str, now: float) -> Span | None:
        span = self.spans.end(epoch, how, now)
        if span is not None:
            self._tell("ended", span.job, kind=span.kind, iteration=span.iteration, epoch=epoch, state=span.how)
        return span

    def _account(self, record: JobRecord) -> Account:
        account = Account(record.job.id, record.submitted_at, counted_to=record.submitted_at)
        self.books.accounts[record.job.id] = account
        return account

    def _tell(self, what: str, job_id: str = "", **more: Any) -> None:
        self._changes.append(Change(what, job_id, **more))

    def _tell_of(self, what: str, span: Open, reason: str = "") -> None:
        self._changes.append(
            Change(
                what,
                span.job,
                span.kind,
                span.iteration,
                span.epoch,
                span.group,
                tuple(span.nodes),
                reason=reason,
                waited_s=span.waited_s,
                attempt=span.attempt,
                load=span.load,
                resumed=span.resumed,
            )
        )

    # -- what is looked for ------------------------------------------------------------------------------------------

    def _see_job(self, now: float, job_id: str) -> None:
        record = self._records.get(job_id)
        if record is None:
            return
        account = self.books.accounts[job_id]
        if job_id not in self.state.jobs:
            del self._records[job_id]
            account.follow(record, self.state.cluster)
            account.state, account.ended, account.how = "ended", now, self.state.ended.get(job_id, "")
            self.spans.forget_waits(job_id)
            self._tell("job", job_id, state="ended", reason=account.how)
        elif account.state != record.state.value:
            account.state, account.since = record.state.value, now
            reason = record.told.reason if record.told is not None else record.moving_because if record.target else ""
            self._tell("job", job_id, state=account.state, group=record.group_id, reason=reason, attempt=record.attempt)

    def _see_groups(self, now: float) -> None:
        """Sees which jobs are pinned to which nodes now, and what that costs."""
        groups, cluster = self.state.groups, self.state.cluster
        if self._groups == groups:
            return
        touched: dict[str, None] = {}
        for group_id in [group_id for group_id in self._groups if group_id not in groups]:
            before = self._groups[group_id]
            self.books.pinned(now, group_id, {}, _jobs(before))
            touched.update(dict.fromkeys(before.nodes))
            del self._usd_per_hour[group_id]
        for group_id, group in groups.items():
            known = self._groups.get(group_id)
            if known is not group:
                self.books.pinned(now, group_id, shares(group, cluster), _jobs(known))
                touched.update(dict.fromkeys((*(known.nodes if known is not None else ()), *group.nodes)))
                self._usd_per_hour[group_id] = group.usd_per_hour(cluster)
        self._groups = dict(groups)
        self.books.costs(now, sum(self._usd_per_hour.values()))
        self._see_nodes(now, touched)

    def _forget_the_oldest(self) -> None:
        """Forgets the jobs that the machine remembers no more."""
        for job_id in self.state.forgotten(self.books.accounts):
            self.books.forget(job_id)

    def _cluster_changed(self, now: float, event: ev.ClusterChanged) -> None:
        """Nodes may cost something else from now on, and some are there no more."""
        for group_id, group in self._groups.items():
            self.books.pinned(now, group_id, shares(group, event.cluster), _jobs(group))
            self._usd_per_hour[group_id] = group.usd_per_hour(event.cluster)
        self.books.costs(now, sum(self._usd_per_hour.values()))
        self._see_nodes(now, event.gone)

    def _see_nodes(self, now: float, names: Iterable[str]) -> None:
        for name in names:
            before, record = self._nodes.get(name), self.state.book.nodes.get(name)
            after = _seen(record) if record is not None else None
            if before == after:
                continue
            for node, more in ((before, -1), (after, 1)):
                if node is not None and node.counts:
                    self.books.node_is(now, node.pool, more, more * bool(node.group))
            if after is None:
                del self._nodes[name]
                self._tell("gone", nodes=(name,))
            else:
                self._nodes[name] = after
                self._tell(
                    "node",
                    nodes=(name,),
                    state=after.state,
                    group=after.group,
                    pool=after.pool,
                    cordoned=after.cordoned,
                )


def _seen(record: NodeRecord) -> "_Node":
    return _Node(record.pool, record.state.value, record.cordoned, record.group_id or "")


def _jobs(group: Group | None) -> list[str]:
    return [member.job.id for member in group.members] if group is not None else []


# What hears which event; None: only the commands that follow from the event are of interest.
_HEARD: dict[type, Callable[..., None] | None] = {
    ev.JobSubmitted: History._submitted,
    ev.JobStarted: History._of_job,
    ev.JobProfiled: History._of_job,
    ev.JobCancelled: History._of_job,
    ev.JobFinished: History._over,
    ev.JobFailed: History._over,
    ev.JobStopped: History._over,
    ev.JobAbandoned: History._over,
    ev.PhaseRequested: History._requested,
    ev.PhaseStarted: History._started,
    ev.PhaseProgressed: None,
    ev.PhasePaused: History._paused,
    ev.PhaseShrunk: History._resized,
    ev.PhaseFinished: History._finished,
    ev.PhaseFailed: History._failed,
    ev.PhaseOffloaded: History._offloaded,
    ev.Heartbeat: None,
    ev.Heartbeats: None,
    ev.NodeJoined: History._of_node,
    ev.NodeLost: History._of_all,
    ev.NodeCordoned: History._of_node,
    ev.NodeUncordoned: History._of_node,
    ev.ClusterChanged: History._cluster_changed,
    ev.Tick: History._of_all,
}
# After an event that one of these hears, jobs may be pinned to other nodes.
_AROUND = {
    History._submitted,
    History._of_job,
    History._over,
    History._of_node,
    History._of_all,
    History._cluster_changed,
}
_ANSWERED: dict[type, Callable[..., None]] = {
    cmd.Admit: History._of_job,
    cmd.Queue: History._of_job,
    cmd.Launch: History._of_job,
    cmd.Stop: History._stopped,
    cmd.Grant: History._granted,
    cmd.Extend: History._resized,
    cmd.Revoke: History._revoked,
    cmd.Offload: History._evicted,
    cmd.Provision: History._of_node,
    cmd.ReleaseNode: History._of_node,
}
