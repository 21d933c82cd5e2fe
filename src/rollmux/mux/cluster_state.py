"""The state of the whole cluster and the few ways in which it changes; `ClusterMachine` decides when it does."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from math import inf

from rollmux.errors import InvariantViolated
from rollmux.mux.backlog import Left, run_cycle
from rollmux.mux.commands import Admit, Command, Launch, Queue, Stop
from rollmux.mux.exchanges import Swap
from rollmux.mux.explain import in_line, why_queued
from rollmux.mux.group import Group
from rollmux.mux.groups import Groups
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.moves import Mindful, Movable
from rollmux.mux.node_book import NodeBook
from rollmux.mux.order import aim_ms
from rollmux.mux.placed import MOVE_S, Placement
from rollmux.mux.plan import Decision, Plan, check_plan
from rollmux.mux.policies import Policy
from rollmux.mux.seat import Lane, Seat
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.totals import total
from rollmux.mux.transitions import Job, JobOn
from rollmux.mux.validation import require_cluster
from rollmux.mux.weave import Ledger, Timing, Weave

Commands = list[Command]


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
    move_s: float = MOVE_S
    horizon_s: float = 3600.0  # how long a plan is trusted to last, before jobs come or go and change it
    exchange_horizon_s: float = 14400.0  # the same for a plan by which jobs change places


class ClusterState:
    """Jobs, groups and nodes of one cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, rules: Rules | None = None) -> None:
        self.cluster = require_cluster(cluster)
        self.policy = policy
        self.rules = rules or Rules()
        self.now = -inf
        self.book = NodeBook(cluster)
        self.jobs: dict[str, JobRecord] = {}
        self.groups = Groups(cluster)
        self.weaves: dict[str, Weave] = {}
        self.backlog: list[str] = []
        self.strained: dict[str, None] = {}  # groups that miss an SLO, and for which there is no better place
        self.changed: dict[str, None] = {}  # groups that have changed since they were last looked at for moves
        self.stopped: dict[str, None] = {}  # jobs that are being stopped, and maybe some that were
        self.swaps: dict[str, Swap] = {}  # jobs that are to change places, once all of them have stopped
        self.swaps_until = inf  # when the exchange is called off, if not all of them have stopped by then
        self.followed = 0  # in a cluster with many groups: the place of the group whose limits are looked at next
        self.ended: dict[str, str] = {}  # the latest jobs that are over, and how each ended
        self.decisions: dict[str, Decision] = {}  # the latest ones, by job
        self.alarms: deque[str] = deque(maxlen=100)  # plans that broke an invariant, and were not applied
        self.ledger = Ledger()
        self.next_group = 0

    def become(self, cluster: Cluster, gone: Collection[str]) -> None:
        """The cluster is another one from now on, without the nodes that are `gone`: no group has any of them."""
        self.cluster = cluster
        self.book.become(cluster, gone)
        self.groups.become(cluster)
        self.changed = dict.fromkeys(self.groups)  # other places may be better now

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
            book.frozen_groups() | self._swapping_groups(),
            frozenset(book.shunned_nodes()),
        )

    def _swapping_groups(self) -> frozenset[str]:
        """The groups that a job of the exchange is to leave or to join: no other job joins them meanwhile."""
        if not self.swaps:
            return frozenset()
        left = {self.jobs[name].group_id for name in self.swaps if name in self.jobs}
        return frozenset(left | {swap.group_id for swap in self.swaps.values()})

    def is_moving(self, record: JobRecord) -> bool:
        """Whether the job is to go elsewhere at its next safe point, or is on its way."""
        return record.target is not None or record.job.id in self.swaps

    def stopping(self) -> list[JobRecord]:
        """The jobs whose processes are being ended, in the order in which they were told to stop."""
        if not self.stopped:
            return []
        found = {job_id: self.jobs[job_id] for job_id in self.stopped if self.jobs[job_id].state is Job.STOPPING}
        self.stopped = dict.fromkeys(found)
        return list(found.values())

    def pinned_to(self, group_id: str | None) -> list[JobRecord]:
        """The jobs that are in this group or will be, in the order in which they were submitted."""
        group = self.groups.get(group_id or "")
        records = [self.jobs[member.job.id] for member in group.members] if group is not None else []
        return sorted(records, key=lambda record: record.number)

    def is_anybody_leaving(self) -> bool:
        """Whether a job is being stopped in order to begin anew elsewhere."""
        return any(record.then is JobOn.GONE_MOVE for record in self.stopping())

    def seat(self, record: JobRecord) -> Seat:
        return self.weaves[record.group_id].seats[record.job.id]

    def lanes(self, record: JobRecord) -> tuple[Lane, ...]:
        """The lanes of a job, if its processes are there."""
        weave = self.weaves.get(record.group_id)
        seat = weave.seats.get(record.job.id) if weave is not None else None
        return tuple(seat.lanes.values()) if seat is not None else ()

    def lane(self, job_id: str, epoch: int) -> Lane | None:
        """The lane of the job that holds this lease now."""
        record = self.jobs.get(job_id)
        weave = self.weaves.get(record.group_id) if record is not None else None
        lane = weave.leases.get(epoch) if weave is not None else None
        return lane if lane is not None and lane.seat.job.id == job_id else None

    def usd_per_hour(self) -> float:
        """The present price of all nodes that belong to groups."""
        return total(group.usd_per_hour(self.cluster) for group in self.groups.values())

    def change(self, group: Group) -> None:
        """A group has other measurements or limits than before."""
        self.groups[group.id] = group
        self.changed[group.id] = None
        for member in group.members:
            seat = self.weaves[group.id].seats.get(member.job.id)
            if seat is not None:
                seat.aim_ms = aim_ms(member.limit_s, member.job.solo_s, member.job.iterations)

    def learn(self, now: float, record: JobRecord, job: JobSpec) -> list[str]:
        """Takes over what was measured of a job's phases; returns its groups.

        The job does not get back what it has used up of its SLO, nor what the move costs that it is about to make. Nor
        does it lose what it has gained: it may have been joined since, or have moved, by the limit that it had then.
        """
        known, record.job = record.job, job
        limit_s = record.limit_s(now)  # by the new measurements
        homes = [record.group_id] + ([record.target[0]] if record.target else [])
        for group_id in homes:
            group = self.groups[group_id]
            before_s = group.member(job.id).limit_s * job.solo_s / known.solo_s
            at_most_s = before_s if record.target else max(before_s, job.opening_limit_s)
            if limit_s is not None:
                at_most_s = min(at_most_s, limit_s)
            self.change(group.with_job(job).with_limits({job.id: max(at_most_s, job.solo_s)}))
        if record.state is Job.RUNNING:
            seat = self.seat(record)
            seat.job = self.groups[record.group_id].member(job.id).job
            seat.plan()
        return homes

    # -- admission ---------------------------------------------------------------------------------------------

    def admit_waiting(self, now: float, out: Commands) -> None:
        """One cycle of the queue: snapshot, order, plan, check, then apply."""
        # 1. Snapshot, and the queue in its order.
        snapshot = self.snapshot()
        self.backlog.sort(key=self._turn)
        queue = [self.jobs[job_id].job for job_id in self.backlog]
        # 2. Plan.
        cycle = run_cycle(snapshot, queue, lambda: self.remaining(now), self.queue_policy(now))
        for decision in cycle.decisions:
            self._remember(decision)
            if decision.plan is None:
                continue
            # 3. Check against the numbered invariants; a plan that would break one is not applied.
            try:
                check_plan(decision.plan, self.snapshot(), self.policy.forecaster)
            except InvariantViolated as broken:
                self.alarms.append(f"{self.policy.name} planned what may not be, {broken}")
                position = self.backlog.index(decision.job_id) + 1
                self._tell_queued(decision.job_id, position, f"the plan for it was refused, {broken}", None, out)
                continue
            # 4. Apply.
            self._admit(self.jobs[decision.job_id], decision.plan, out)
        # 5. The owners of jobs that still wait are told why.
        refused = {decision.job_id: decision for decision in cycle.decisions if decision.plan is None}
        for position, job_id in enumerate(self.backlog, 1):
            told, refusal = self.jobs[job_id].told, refused.get(job_id)
            if refusal is not None:
                wait_s = cycle.head_wait_s if position == 1 else None
                self._tell_queued(job_id, position, why_queued(refusal), wait_s, out)
            elif told is None or told.position < position:
                self._tell_queued(job_id, position, in_line(position - 1), None, out)

    def queue_policy(self, now: float) -> Policy:
        """The policy for jobs in line, some of which may have lost their places."""
        back = {}
        for job_id in self.backlog:
            record = self.jobs[job_id]
            if record.attempt == 1:
                continue  # a newcomer: in a long line nearly all are
            job, left = record.job, record.remaining
            limit_s = record.limit_s(now, self.anew_s(job)) if left else None
            if limit_s is not None and left and job.solo_s <= limit_s < job.limit_s:
                back[job_id] = Movable(job, left * job.solo_s, self.anew_s(job), limit_s, left)
        return Mindful(self.policy, back) if back else self.policy

    def anew_s(self, job: JobSpec) -> float:
        """The work that a job loses when it begins anew elsewhere."""
        return (job.cold_start_s or self.rules.move_s) + job.ramp_s

    def _turn(self, job_id: str) -> tuple[int, int]:
        record = self.jobs[job_id]
        return -record.job.priority, record.number

    def waits(self, record: JobRecord) -> Queue | None:
        """Why a job waits, as of now: some of the jobs before it may have gone since its owner was told."""
        told = record.told
        if told is None or told.reason != in_line(told.position - 1):
            return told
        before = bisect_left(self.backlog, self._turn(record.job.id), key=self._turn)
        return Queue(told.job_id, before + 1, in_line(before), None)

    def _tell_queued(self, job_id: str, position: int, reason: str, wait_s: float | None, out: Commands) -> None:
        record = self.jobs[job_id]
        told = Queue(job_id, position, reason, wait_s)
        if told != record.told:
            record.told = told
            out.append(told)

    def _admit(self, record: JobRecord, plan: Plan, out: Commands) -> None:
        self.backlog.remove(record.job.id)
        record.move(JobOn.ADMIT)
        record.told = None
        record.group_id, record.placement = plan.group.id, plan.placement
        self.pin(plan, out)
        out.append(Admit(record.job.id, plan.group.id, plan.placement))
        self.launch_if_ready(record, out)

    def pin(self, plan: Plan, out: Commands) -> None:
        """The plan's job has its nodes from here on."""
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

    def remaining(self, now: float) -> dict[str, Left]:
        """The work that each job has left that has begun or has a place; those in a long line have all of theirs."""
        found = {}
        for job_id, record in self.jobs.items():
            if record.state is Job.QUEUED and record.began is None:
                continue
            since = record.progress.since
            ramp_s = 0.0 if record.progress.synced_since_launch else record.job.ramp_s
            found[job_id] = Left(record.remaining, (0.0 if since is None else now - since) - ramp_s)
        return found

    # -- departure ---------------------------------------------------------------------------------------------

    def unpin(self, job_id: str, group_id: str, out: Commands) -> None:
        """A job has left a group's nodes, or never comes: frees the nodes that nobody is pinned to any more."""
        self.book.free(self.leave(job_id, group_id), out)

    def leave(self, job_id: str, group_id: str) -> list[str]:
        """A job has left a group; returns the nodes that nobody there is pinned to any more."""
        before = self.groups[group_id]
        after = before.left_by(job_id)
        kept = set(after.nodes)
        if after.members:
            self.groups[group_id] = after
            self.changed[group_id] = None
        else:
            del self.groups[group_id], self.weaves[group_id]
            self.strained.pop(group_id, None)
            self.changed.pop(group_id, None)
        return [node for node in before.nodes if node not in kept]

    def leave_weave(self, now: float, record: JobRecord, out: Commands) -> None:
        """A job's processes are gone; what they did since the last sync is lost."""
        weave = self.weaves.get(record.group_id)
        if weave is not None and record.job.id in weave.seats:
            out += weave.leave(now, record.job.id)
        record.progress.back_to_commit()

    def end(self, now: float, record: JobRecord, how: str, out: Commands) -> list[str]:
        """A job is over and its processes are gone; returns the groups that it has left."""
        job_id = record.job.id
        self.leave_weave(now, record, out)
        homes = [home for home in (record.group_id, record.target[0] if record.target else "") if home]
        for group_id in homes:
            self.unpin(job_id, group_id, out)
        if job_id in self.backlog:
            self.backlog.remove(job_id)
        del self.jobs[job_id]
        self.stopped.pop(job_id, None)
        self.ended[job_id] = how
        if len(self.ended) > self.rules.ended_limit:
            del self.ended[next(iter(self.ended))]
        return homes

    def forgotten(self, known: Collection[str]) -> list[str]:
        """The jobs of `known` that are no longer remembered here; all that are remembered here must be in `known`.

        Where `known` has the order in which jobs came, they are among the first: hardly any other is looked at.
        """
        count = len(known) - len(self.jobs) - len(self.ended)
        return list(islice((each for each in known if each not in self.jobs and each not in self.ended), max(0, count)))

    def requeue(self, record: JobRecord, on: JobOn) -> None:
        """A job has lost its place, and waits in line for another."""
        record.move(on)
        record.group_id, record.placement = "", None
        self.backlog.append(record.job.id)

    def stop(self, now: float, record: JobRecord, then: JobOn, reason: str, out: Commands) -> None:
        """Ends a job's processes; its nodes are free once they are gone, or after the drain time.

        A holder that was fenced before is waited for no longer than it would have been.
        """
        record.move(JobOn.STOP)
        self.stopped[record.job.id] = None
        record.then, record.stop_by = then, now + self.rules.timing.drain_s
        weave = self.weaves[record.group_id]
        if record.job.id in weave.seats:
            out += weave.fence(now, record.job.id, reason)
        out.append(Stop(record.job.id, record.attempt, reason))
