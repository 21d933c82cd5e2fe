"""The state of the whole cluster and the few ways in which it changes; the machine above decides when."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import nlargest
from math import inf

from rollmux.errors import InvariantViolated
from rollmux.mux.backlog import Left, run_cycle
from rollmux.mux.budget import followed
from rollmux.mux.commands import Admit, Command, Launch, Queue, Stop
from rollmux.mux.explain import why_queued
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job_record import JobRecord
from rollmux.mux.moves import Movable, Moves, compaction, escape, relief
from rollmux.mux.node_book import NodeBook
from rollmux.mux.placed import Placement
from rollmux.mux.plan import Decision, Plan, check_plan
from rollmux.mux.policies import Policy
from rollmux.mux.seat import Seat
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.transitions import Job, JobOn
from rollmux.mux.validation import require_cluster
from rollmux.mux.weave import Ledger, Timing, Weave

Commands = list[Command]


# At an arrival or a departure: at most so many moves one after the other.
REGROUP_ROUNDS = 8
# A cluster of so many groups is looked at as a whole. In a larger one each look is at so many of the groups that have
# changed, beside so many others; and so many have their limits brought up to date.
SMALL = 16
SOURCES = 1
ROOMIEST = 16
FOLLOWED = 16
# A job that moves meets its new neighbours at any moment: it may wait for a part of an iteration more.
AFTER_A_MOVE = 0.5
# One that is slower than forecast stays as long as it could go so many iterations later.
LAST_CHANCE = 1.5


class Checks(Enum):
    """Which invariants are checked after every event: none, those of the job at hand, or all of them."""

    NONE = "none"
    JOB = "job"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator may set. Everything that could grow has a limit (L3)."""

    timing: Timing = field(default_factory=Timing)
    max_queued: int = 10_000
    log_limit: int = 100_000
    decisions_limit: int = 1_000
    ended_limit: int = 10_000
    compaction: bool = True
    checks: Checks = Checks.JOB
    move_s: float = 300.0  # work lost by a move, where the job does not say (the paper measures 197 to 419 s)
    horizon_s: float = 3600.0  # how long a plan is trusted to last, before jobs come or go and change it


class ClusterState:
    """Jobs, groups and nodes of one cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, rules: Rules | None = None) -> None:
        self.cluster = require_cluster(cluster)
        self.policy = policy
        self.rules = rules or Rules()
        self.now = -inf
        self.book = NodeBook(cluster)
        self.jobs: dict[str, JobRecord] = {}
        self.groups: dict[str, Group] = {}
        self.weaves: dict[str, Weave] = {}
        self.backlog: list[str] = []
        self.strained: dict[str, None] = {}  # groups that miss an SLO, and for which there is no better place
        self.changed: dict[str, None] = {}  # groups that are not as they were when last looked at for moves
        self.followed = 0  # where following the limits goes on, in a cluster with many groups
        self.ended: dict[str, str] = {}  # the latest jobs that are over, and how
        self.decisions: dict[str, Decision] = {}  # the latest
        self.alarms: deque[str] = deque(maxlen=100)  # plans that broke an invariant, and were not applied
        self.ledger = Ledger()
        self.next_group = 0

    def snapshot(self) -> Snapshot:
        """The cluster as policies see it: valid until the next event."""
        book = self.book
        return Snapshot(
            self.cluster,
            self.groups,
            book.idle,
            book.rented,
            book.next_node,
            self.next_group,
            book.frozen_groups(),
            frozenset(book.shunned_nodes()),
        )

    def seat(self, record: JobRecord) -> Seat:
        return self.weaves[record.group_id].seats[record.job.id]

    def usd_per_hour(self) -> float:
        """The present price of all nodes that belong to groups."""
        return sum(group.usd_per_hour(self.cluster) for group in self.groups.values())

    # -- admission ---------------------------------------------------------------------------------------------

    def admit_waiting(self, now: float, out: Commands) -> None:
        """One cycle of the queue: snapshot, order, plan, check, then apply."""
        if not self.backlog:
            return
        # 1. Snapshot, and the queue in its order.
        snapshot = self.snapshot()
        self.backlog.sort(key=lambda job_id: (-self.jobs[job_id].job.priority, self.jobs[job_id].number))
        queue = [self.jobs[job_id].job for job_id in self.backlog]
        # 2. Plan.
        cycle = run_cycle(snapshot, queue, lambda: self._remaining(now), self.policy)
        for decision in cycle.decisions:
            self._remember(decision)
            if decision.plan is None:
                continue
            # 3. Check against the numbered invariants; a plan that would break one is not applied.
            try:
                check_plan(decision.plan, self.snapshot(), self.policy.forecaster)
            except InvariantViolated as broken:
                self.alarms.append(f"{self.policy.name} planned what may not be, {broken}")
                self._tell_queued(decision.job_id, f"the plan for it was refused, {broken}", None, out)
                continue
            # 4. Apply.
            self._admit(now, self.jobs[decision.job_id], decision.plan, out)
        # 5. Who is still waiting learns why.
        refused = {decision.job_id: decision for decision in cycle.decisions if decision.plan is None}
        for position, job_id in enumerate(self.backlog, 1):
            told, refusal = self.jobs[job_id].told, refused.get(job_id)
            if refusal is not None:
                self._tell_queued(job_id, why_queued(refusal), cycle.head_wait_s if position == 1 else None, out)
            elif told is None or told.position < position:
                self._tell_queued(job_id, f"{position - 1} jobs are in line before it", None, out)

    def _tell_queued(self, job_id: str, reason: str, wait_s: float | None, out: Commands) -> None:
        record = self.jobs[job_id]
        told = Queue(job_id, self.backlog.index(job_id) + 1, reason, wait_s)
        if told != record.told:
            record.told = told
            out.append(told)

    def _admit(self, now: float, record: JobRecord, plan: Plan, out: Commands) -> None:
        self.backlog.remove(record.job.id)
        record.move(JobOn.ADMIT)
        record.told = None
        record.group_id, record.placement = plan.group.id, plan.placement
        self._pin(plan, out)
        out.append(Admit(record.job.id, plan.group.id, plan.placement))
        self.launch_if_ready(record, out)

    def _pin(self, plan: Plan, out: Commands) -> None:
        group = plan.group
        if group.id not in self.groups:
            self.next_group += 1
            self.weaves[group.id] = Weave(group.order, self.ledger, self.rules.timing)
        self.groups[group.id] = group
        self.changed[group.id] = None
        self.book.take(plan.new_nodes, group.id, out)

    def launch_if_ready(self, record: JobRecord, out: Commands) -> None:
        """Starts a job's processes once all its nodes are there."""
        placement = record.placement
        if placement is not None and self.book.ready(placement.all_nodes):
            record.move(JobOn.NODES_READY)
            self.launch(record, placement, out)

    def launch(self, record: JobRecord, placement: Placement, out: Commands) -> None:
        record.launched_by = self.ledger.seq
        out.append(Launch(record.job.id, record.attempt, placement))

    def _remember(self, decision: Decision) -> None:
        self.decisions.pop(decision.job_id, None)
        self.decisions[decision.job_id] = decision
        if len(self.decisions) > self.rules.decisions_limit:
            del self.decisions[next(iter(self.decisions))]

    def _remaining(self, now: float) -> dict[str, Left]:
        found = {}
        for job_id, record in self.jobs.items():
            since = record.progress.since
            ramp_s = 0.0 if record.progress.synced_since_launch else record.job.ramp_s
            found[job_id] = Left(record.remaining, (0.0 if since is None else now - since) - ramp_s)
        return found

    # -- departure ---------------------------------------------------------------------------------------------

    def unpin(self, job_id: str, group_id: str, out: Commands) -> None:
        """A job has left a group's nodes, or never comes: those that nobody is pinned to are free."""
        before = self.groups[group_id]
        after = before.left_by(job_id)
        kept = set(after.nodes)
        self.book.free([node for node in before.nodes if node not in kept], out)
        if after.members:
            self.groups[group_id] = after
            self.changed[group_id] = None
        else:
            del self.groups[group_id], self.weaves[group_id]
            self.strained.pop(group_id, None)
            self.changed.pop(group_id, None)

    def leave_weave(self, now: float, record: JobRecord, out: Commands) -> None:
        """A job's processes are gone; what they did since the last sync is lost."""
        weave = self.weaves.get(record.group_id)
        if weave is not None and record.job.id in weave.seats:
            out += weave.leave(now, record.job.id)
        record.progress.back_to_commit()

    def end(self, now: float, record: JobRecord, how: str, out: Commands) -> None:
        """A job is over and its processes are gone."""
        job_id = record.job.id
        self.leave_weave(now, record, out)
        homes = [home for home in (record.group_id, record.target[0] if record.target else "") if home]
        for group_id in homes:
            self.unpin(job_id, group_id, out)
        if job_id in self.backlog:
            self.backlog.remove(job_id)
        del self.jobs[job_id]
        self.ended[job_id] = how
        if len(self.ended) > self.rules.ended_limit:
            del self.ended[next(iter(self.ended))]
        self.after_departure(now, homes, out)

    def after_departure(self, now: float, left: list[str], out: Commands) -> None:
        """There is room: first for those who wait, then to bring the rest of these groups closer together."""
        for group_id in left:
            self.relieve(now, group_id, out)
        self.admit_waiting(now, out)
        self.regroup(now, out)

    def regroup(self, now: float, out: Commands) -> None:
        """Makes the moves that save the most, one after the other, as long as some pay.

        What has changed since it last looked is held against everything, and the rest only against what has changed. In
        a large cluster the changed groups take turns, those with the most to spare first.
        """
        self.follow_budgets(now, out)
        for group_id in list(self.strained):
            self.relieve(now, group_id, out)
        if not self.rules.compaction or self.backlog:
            return
        if any(record.then is JobOn.GONE_MOVE for record in self.jobs.values()):
            return  # those who are just leaving make more room: look again when the last has left
        small = len(self.groups) <= SMALL
        sources = self.changed if small else self._roomiest(self.changed, SOURCES)
        for _ in range(REGROUP_ROUNDS):
            moves = self._best_moves(now, sources, whole=small)
            if moves is None or not self.make_moves(now, moves, "its group's nodes no longer pay", out):
                break
        for group_id in list(sources):
            self.changed.pop(group_id, None)

    def _best_moves(self, now: float, sources: Iterable[str], *, whole: bool) -> Moves | None:
        snapshot = self.snapshot()
        near = replace(snapshot, groups={name: self.groups[name] for name in sources if name in self.groups})
        wide = snapshot if whole else replace(snapshot, groups={**near.groups, **self._roomiest(self.groups, ROOMIEST)})
        best: Moves | None = None
        for group in ({**near.groups, **self.groups} if whole else near.groups).values():
            movable = self.movable(now, group) if group.id not in self.strained else None
            if movable:
                others = wide if group.id in near.groups else near
                known = best.gain_usd if best is not None else 0.0
                best = compaction(group, others, movable, self.policy, self.rules.horizon_s, known) or best
        return best

    def _roomiest(self, names: Iterable[str], count: int) -> dict[str, Group]:
        """Of these groups, those whose free time is worth the most."""
        rollout_usd, train_usd = (pool.node_type.usd_per_hour for pool in (self.cluster.rollout, self.cluster.train))

        def idle_usd(group: Group) -> float:
            rollout, train = group.free_shares
            return rollout * rollout_usd + train * train_usd

        return {group.id: group for group in nlargest(count, (self.groups[name] for name in names), key=idle_usd)}

    def follow_budgets(self, now: float, out: Commands) -> None:
        """Limits follow what jobs have used of their SLOs; a group that is too slow for a new limit is relieved.

        In a large cluster the groups take turns.
        """
        names = list(self.groups)
        first = self.followed % max(1, len(names))
        self.followed = first + FOLLOWED
        for group_id in (names[first:] + names[:first])[:FOLLOWED]:
            group, limits = self.groups[group_id], dict[str, float]()
            for member in group.members:
                record = self.jobs[member.job.id]
                limit_s = record.limit_s(now) if record.group_id == group_id else None
                if limit_s is not None and record.remaining:
                    limit_s = followed(member.limit_s, limit_s, record.job, record.remaining)
                    if limit_s != member.limit_s:
                        limits[member.job.id] = limit_s
            if limits:
                self.groups[group_id] = group.with_limits(limits)
                self.changed[group_id] = None
                if any(limit_s < group.member(job_id).limit_s for job_id, limit_s in limits.items()):
                    self.relieve(now, group_id, out)

    def relieve(self, now: float, group_id: str, out: Commands) -> None:
        """Whoever would miss an SLO from now on gets a better place before that happens.

        New measurements can bring this about, and so can a departure: with fewer jobs the others may meet each other
        at worse moments.
        """
        group = self.groups.get(group_id)
        if group is None:
            return
        self.strained.pop(group_id, None)
        if self.policy.forecaster.late(group) is not None:
            self.strained[group_id] = None
            moves = relief(group, self.snapshot(), self.movable(now, group, settled=False), self.policy)
            if moves is not None:
                self.make_moves(now, moves, "an SLO of its group is in danger", out)

    def watch(self, now: float, record: JobRecord, out: Commands) -> None:
        """After a sync: a job that is slower than was forecast leaves while it can still afford to.

        First come, first served has more rhythms than are played, and the first iterations after a change are in none.
        """
        limit_s, job = record.limit_s(now), record.job
        if limit_s is None or record.progress.recent_s <= limit_s or record.target is not None or not record.remaining:
            return
        lost_s = job.cold_start_s or self.rules.move_s
        here, later = record.limit_s(now, lost_s), record.limit_s(now, lost_s + job.solo_s * LAST_CHANCE)
        group = self.groups[record.group_id]
        if here is None or later is None or not later < job.solo_s <= here or len(group.members) == 1:
            return
        leaver = Movable(job, record.remaining * job.solo_s, lost_s, here, record.remaining)
        moves = escape(group, self.snapshot(), leaver, self.policy)
        if moves is not None:
            self.make_moves(now, moves, "its SLO is in danger: it is slower than was forecast", out)

    def requeue(self, record: JobRecord, on: JobOn, out: Commands) -> None:
        """A job needs another place."""
        record.move(on)
        record.group_id, record.placement = "", None
        self.backlog.append(record.job.id)

    # -- moving ------------------------------------------------------------------------------------------------

    def movable(self, now: float, group: Group, *, settled: bool = True) -> dict[str, Movable]:
        """The group's jobs that run, are not on their way already, can afford a move and have earned their last."""
        found = {}
        forecast = self.policy.forecaster.forecast(group)
        for member, iteration_s in zip(group.members, forecast.iteration_s, strict=True):
            record = self.jobs[member.job.id]
            if record.state is not Job.RUNNING or record.target is not None or (settled and now < record.settled_until):
                continue
            left, lost_s = record.remaining, record.job.cold_start_s or self.rules.move_s
            limit_s = record.limit_s(now, lost_s + record.job.solo_s * AFTER_A_MOVE)
            if limit_s is not None and limit_s < record.job.solo_s:
                continue  # it can't afford a move
            if left is None:
                remaining_s = now - record.submitted_at  # the best guess: as long again as it has run
            else:
                # It goes after the iteration under way; in its last one it stays.
                left -= not self.seat(record).quiet
                remaining_s = left * iteration_s
            if left is None or left > 0:
                found[record.job.id] = Movable(record.job, remaining_s, lost_s, limit_s, left)
        return found

    def make_moves(self, now: float, moves: Moves, reason: str, out: Commands) -> bool:
        """Reserves the new places, all or none; each job goes at its next safe point."""
        snapshot = self.snapshot()
        try:
            for plan in moves.plans:
                check_plan(plan, snapshot, self.policy.forecaster)
                snapshot = snapshot.with_group(plan.group, plan.new_nodes)
        except InvariantViolated as broken:
            self.alarms.append(f"{self.policy.name} planned a move that may not be, {broken}")
            return False
        for plan in moves.plans:
            record = self.jobs[plan.job_id]
            self._pin(plan, out)
            record.target = (plan.group.id, plan.placement)
            record.settled_until = now + moves.payback_s
            record.moving_because = reason
            self.move_if_safe(now, record, out)
        return True

    def move_if_safe(self, now: float, record: JobRecord, out: Commands, synced: bool = False) -> None:
        """Between two iterations a job can be moved; one whose rollouts run ahead loses at most one of them."""
        if record.target is not None and record.state is Job.RUNNING and record.remaining != 0:
            seat = self.seat(record)
            if seat.quiet or (synced and record.job.staleness > 0):
                self.stop(now, record, JobOn.GONE_MOVE, f"moves to {record.target[0]}: {record.moving_because}", out)

    def stop(self, now: float, record: JobRecord, then: JobOn, reason: str, out: Commands) -> None:
        """Ends a job's processes; its nodes are free once they are gone, or after the drain time."""
        record.move(JobOn.STOP)
        record.then, record.stop_by = then, now + self.rules.timing.drain_s
        weave = self.weaves[record.group_id]
        if record.job.id in weave.seats:
            out += weave.fence(now, record.job.id, reason)
            record.stop_by = min([record.stop_by, *weave.fenced_until(record.job.id)])
        out.append(Stop(record.job.id, record.attempt, reason))
