"""The whole cluster as one function: `handle(now, event) -> commands`.

It is driven alike by the live service and by the simulator; it reads no clock and does no IO. An illegal event raises
and changes nothing, a late or repeated message changes nothing, and whatever a policy plans is checked against the
numbered invariants before any of it is applied.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rollmux.checks import MAX_COUNT
from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.mux.changes import change_problems
from rollmux.mux.cluster_state import Checks, ClusterState, Commands, Rules
from rollmux.mux.commands import Command, Refuse, Stop
from rollmux.mux.feasible import place_problems
from rollmux.mux.hardware import Cluster
from rollmux.mux.invariants import check_all, check_seat
from rollmux.mux.job import JobSpec
from rollmux.mux.job_record import JobRecord
from rollmux.mux.mover import Mover
from rollmux.mux.order import aim_ms
from rollmux.mux.placed import Placement
from rollmux.mux.policies import Policy
from rollmux.mux.seat import Seat
from rollmux.mux.transitions import Job, JobOn, next_job
from rollmux.mux.validation import job_problems

# The reason for ending an attempt whose holder was silent for too long.
OVERDUE = "it did not give its nodes back in time"


class Entry(NamedTuple):
    """One line of the log: an event, what it led to, and the earlier entry that it answers (0: none)."""

    seq: int
    at: float
    event: ev.Event
    commands: tuple[Command, ...]
    cause: int


class ClusterMachine:
    """Takes events, keeps the state and the log, gives commands.

    `cause` is the earlier event that the last one answers (0: none).
    """

    __slots__ = ("_check", "cause", "log", "mover", "state")

    def __init__(self, cluster: Cluster, policy: Policy, rules: Rules | None = None) -> None:
        self.state = ClusterState(cluster, policy, rules)
        self.mover = Mover(self.state)
        self.log: deque[Entry] = deque(maxlen=self.state.rules.log_limit)
        self.cause = 0
        self._check = {Checks.NONE: None, Checks.JOB: self._check_job, Checks.ALL: self._check_all}[
            self.state.rules.checks
        ]

    def handle(self, now: float, event: ev.Event) -> tuple[Command, ...]:
        """What follows from this event.

        Raises IllegalEvent, and changes nothing, if it can't happen now. Raises InvariantViolated if a promise turns
        out to be broken: then the state is not to be trusted, and the caller must stop and restore.
        """
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise IllegalEvent(f"{event!r} is not an event")
        state = self.state
        if not now >= state.now:
            raise IllegalEvent(f"time went back from {state.now} to {now}: use a monotonic clock")
        ledger = state.ledger
        ledger.seq += 1
        self.cause = 0
        try:
            out = handler(self, now, event)
        except IllegalEvent:
            ledger.seq -= 1
            raise
        if out is None:
            ledger.seq -= 1
            return ()
        state.now = now
        if self._check is not None:
            self._check(event)
        commands = tuple(out)
        # Signs of life belong to no story: within hours they would fill the log and push all else out of it.
        if commands or not isinstance(event, ev.Heartbeats):
            self.log.append(Entry(ledger.seq, now, event, commands, self.cause))
        return commands

    def next_wake(self) -> float | None:
        """When a Tick is due at the latest."""
        deadlines = [lane.deadline for weave in self.state.weaves.values() for lane in weave.leases.values()]
        deadlines += [record.stop_by for record in self.state.stopping()]
        if self.state.swaps:
            deadlines.append(self.state.swaps_until)
        soonest = min(deadlines, default=float("inf"))
        return None if soonest == float("inf") else soonest

    def _check_job(self, event: ev.Event) -> None:
        job_id = getattr(event, "job_id", "")
        record = self.state.jobs.get(job_id)
        if record is not None and record.state is Job.RUNNING:
            weave = self.state.weaves[record.group_id]
            check_seat(weave, weave.seats[job_id])

    def _check_all(self, event: ev.Event) -> None:
        check_all(self.state)

    # -- jobs --------------------------------------------------------------------------------------------------

    def why_not(self, job: JobSpec) -> tuple[str, ...]:
        """All reasons why a job can't be submitted now.

        Whether it can ever have a place is asked only here. A job that was once taken is taken again in a replay, even
        if a later version of the policy knows that it waits in vain.
        """
        reasons = self._why_not_taken(job)
        if reasons or self._is_known(job):
            return reasons
        return tuple(map(str, place_problems(job, self.state.cluster, self.state.policy)))

    def _why_not_taken(self, job: JobSpec) -> tuple[str, ...]:
        state = self.state
        if problems := job_problems(job, state.cluster):
            return tuple(map(str, problems))
        if len(state.backlog) >= state.rules.max_queued and not self._is_known(job):
            return (f"{len(state.backlog)} jobs are waiting already, which is the limit",)
        return ()

    def _is_known(self, job: JobSpec) -> bool:
        return job.id in self.state.jobs or job.id in self.state.ended

    def _job_submitted(self, now: float, event: ev.JobSubmitted) -> Commands | None:
        job, state = event.job, self.state
        if reasons := self._why_not_taken(job):
            return [Refuse(str(job.id), reasons)]
        known = state.jobs.get(job.id)
        if known is not None and known.submitted == job:
            return None  # submitted twice
        if known is not None or job.id in state.ended:
            raise IllegalEvent(f"there has been a job {job.id!r}: give this one another id")
        state.jobs[job.id] = JobRecord(job.resolve(state.cluster), job, state.ledger.seq, now)
        state.backlog.append(job.id)
        out: Commands = []
        self.mover.admit(now, out)
        return out

    def _job_started(self, now: float, event: ev.JobStarted) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt) or record.state in (Job.RUNNING, Job.STOPPING):
            return None
        record.move(JobOn.STARTED)
        self.cause = record.launched_by
        assert record.placement is not None
        state = self.state
        member = state.groups[record.group_id].member(record.job.id)
        aim = aim_ms(member.limit_s, member.job.solo_s, member.job.iterations)
        seat = Seat(member.job, record.attempt, record.placement, state.ledger.seq, record.progress, aim)
        out = state.weaves[record.group_id].join(now, seat)
        if record.began is None:
            record.began = now
            state.changed[record.group_id] = None  # from now on it may be moved
            self.mover.regroup(now, out)
        return out

    def _job_profiled(self, now: float, event: ev.JobProfiled) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        state, seen = self.state, (event.rollout_bytes, event.train_bytes, event.process_bytes)
        width = len(record.placement.train) if record.placement is not None else record.job.train.nodes
        train_s = event.train_s / record.job.train_stretch(width)  # as on the number of nodes that the job wants
        measured = (event.rollout_s, train_s, event.sync_s, event.rollout_switch_s, event.train_switch_s)
        job = record.job.measured(*measured)
        problems = [*map(str, job_problems(job, state.cluster))]
        problems += [f"{count} bytes" for count in seen if count is not None and not 0 <= count <= MAX_COUNT]
        if problems:
            raise IllegalEvent(f"job {event.job_id} measured what can't be: {'; '.join(problems)}")
        if record.state is Job.QUEUED or job == record.job:
            return None
        out: Commands = []
        for group_id in state.learn(now, record, job):
            self.mover.relieve(now, group_id, out)
        self.mover.admit(now, out)  # a job that takes less than it said leaves room
        return out

    def _job_finished(self, now: float, event: ev.JobFinished) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        record.move(JobOn.FINISH)
        self.cause = record.launched_by
        out: Commands = []
        self.mover.end(now, record, "finished", out)
        return out

    def _job_failed(self, now: float, event: ev.JobFailed) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        next_job(record.state, JobOn.RESTART if record.state is not Job.STOPPING else JobOn.GONE_END, event.job_id)
        self.cause = record.launched_by
        out: Commands = []
        if record.state is Job.STOPPING:
            self._gone(now, record, out)
        else:
            self._attempt_over(now, record, event.reason, out)
        return out

    def _job_stopped(self, now: float, event: ev.JobStopped) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        next_job(record.state, JobOn.GONE_END, event.job_id)
        out: Commands = []
        self._gone(now, record, out)
        return out

    def _job_cancelled(self, now: float, event: ev.JobCancelled) -> Commands | None:
        record = self._record(event.job_id)
        if record is None:
            return None
        out: Commands = []
        if record.state is Job.STOPPING:
            if record.then is JobOn.GONE_END:
                return None
            record.then = JobOn.GONE_END
        elif record.state in (Job.STARTING, Job.RUNNING):
            self.state.stop(now, record, JobOn.GONE_END, "cancelled", out)
        else:
            record.move(JobOn.CANCEL)
            self.mover.end(now, record, "cancelled", out)
            return out
        self._changes_no_places(now, record, out)
        return out

    def _changes_no_places(self, now: float, record: JobRecord, out: Commands) -> None:
        """A job is ended or restarted: nobody is stopped for an exchange with it, or waits for it, from now on."""
        if self.mover.without_exchange(record.job.id, out):
            self.mover.admit(now, out)

    def _job_abandoned(self, now: float, event: ev.JobAbandoned) -> Commands | None:
        record = self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        record.move(JobOn.ABANDON)
        out: Commands = []
        self.mover.end(now, record, event.reason, out)
        return out

    def _attempt_over(self, now: float, record: JobRecord, reason: str, out: Commands) -> None:
        """An attempt's processes are gone before the work is done: begins another attempt, if one is left."""
        state = self.state
        record.failures += 1
        if record.failures >= record.job.max_attempts:
            record.move(JobOn.GIVE_UP)
            self.mover.end(now, record, f"failed {record.failures} times, at last: {reason}", out)
            return
        if record.target is not None:  # the job was about to move: it moves now, as if it had been stopped for that
            if record.state is not Job.STOPPING:
                record.move(JobOn.STOP)
            state.leave_weave(now, record, out)
            record.attempt += 1
            self._moves(now, record, record.target, out)
            return
        calls_off = self.mover.without_exchange(record.job.id, out)
        record.move(JobOn.RESTART)
        state.leave_weave(now, record, out)
        record.attempt += 1
        assert record.placement is not None
        state.launch(record, record.placement, out)
        if calls_off:
            self.mover.admit(now, out)

    def _moves(self, now: float, record: JobRecord, target: tuple[str, Placement], out: Commands) -> None:
        """A job whose processes are gone begins anew in the place that was kept for it, once its nodes are there."""
        state, left = self.state, record.group_id
        record.move(JobOn.GONE_MOVE)
        record.group_id, record.placement = target
        record.target = None
        state.unpin(record.job.id, left, out)
        state.launch_if_ready(record, out)
        self.mover.after_departure(now, [left], out)

    def _gone(self, now: float, record: JobRecord, out: Commands) -> None:
        """A stopped attempt's processes are gone: does what the attempt was stopped for."""
        state, then, left = self.state, record.then, record.group_id
        assert then is not None
        record.then = None
        if then is JobOn.GONE_END:
            record.move(then)
            self.mover.end(now, record, "cancelled", out)
            return
        if then is JobOn.RESTART:
            self._attempt_over(now, record, OVERDUE, out)
            return
        state.leave_weave(now, record, out)
        record.attempt += 1
        if then is JobOn.GONE_MOVE and record.target is not None:
            self._moves(now, record, record.target, out)
        elif then is JobOn.GONE_MOVE:
            record.move(then)
            self.mover.gone_for_exchange(now, record, out)
        else:
            state.requeue(record, JobOn.GONE_REPLACE)
            state.unpin(record.job.id, left, out)
            self.mover.after_departure(now, [left], out)

    # -- phases ------------------------------------------------------------------------------------------------

    def _phase_requested(self, now: float, event: ev.PhaseRequested) -> Commands | None:
        record = self.state.jobs.get(event.job_id) or self._record(event.job_id)
        if record is None or not record.is_current(event.attempt):
            return None
        if record.state is not Job.RUNNING:
            raise IllegalEvent(f"job {event.job_id} is {record.state.value}: it can't ask for a phase now")
        self.cause = record.launched_by
        return self.state.weaves[record.group_id].handle(now, event)

    def _phase(self, now: float, event: ev.PhaseEvent) -> Commands | None:
        assert not isinstance(event, ev.PhaseRequested)
        state = self.state
        record = state.jobs.get(event.job_id) or self._record(event.job_id)
        if record is None:
            return None
        weave = state.weaves.get(record.group_id)
        if weave is None:
            if not 0 < event.epoch <= state.ledger.epoch:
                raise IllegalEvent(f"there has never been a lease {event.epoch}")
            return None
        lane = weave.leases.get(event.epoch)
        if lane is not None:
            self.cause = lane.granted_by
        return weave.handle(now, event)

    def _heartbeats(self, now: float, event: ev.Heartbeats) -> Commands | None:
        state, heard = self.state, False
        out: Commands = []
        for beat in event.of:
            if state.lane(beat.job_id, beat.epoch) is not None:
                commands = state.weaves[state.jobs[beat.job_id].group_id].handle(now, beat)
                heard = heard or commands is not None
                out += commands or []
        return out if heard else None

    def _phase_finished(self, now: float, event: ev.PhaseFinished) -> Commands | None:
        record = self.state.jobs.get(event.job_id)
        if record is None:
            return self._phase(now, event)
        synced = record.progress.synced
        out = self._phase(now, event)
        if out is not None:
            is_synced = record.progress.synced > synced
            if self.state.is_moving(record):
                self.mover.move_if_safe(now, record, out, is_synced)
            elif is_synced:
                self.mover.watch(now, record, out)
        return out

    def _record(self, job_id: str) -> JobRecord | None:
        """The job's record; None if the job is over, so that any message about it comes too late."""
        record = self.state.jobs.get(job_id)
        if record is None and job_id not in self.state.ended:
            raise IllegalEvent(f"there is no job {job_id!r}")
        return record

    # -- nodes and time ----------------------------------------------------------------------------------------

    def _node_joined(self, now: float, event: ev.NodeJoined) -> Commands | None:
        state = self.state
        out = state.book.join(event.node, event.pool)
        if out is None:
            return None
        node = state.book.nodes.get(event.node)
        for record in state.pinned_to(node.group_id) if node is not None else ():
            placement = record.placement
            if record.state is Job.PROVISIONING and placement and event.node in placement.all_nodes:
                state.launch_if_ready(record, out)
        if node is not None and node.group_id is None:
            self.mover.after_departure(now, list(state.strained), out)
        else:
            self.mover.admit(now, out)
        return out

    def _node_lost(self, now: float, event: ev.NodeLost) -> Commands | None:
        state, node = self.state, event.node
        if not state.book.lose(node):
            return None
        out: Commands = []
        departed = []
        for record in list(state.jobs.values()):
            target = record.target
            departed += self._not_to_go_to(node, record, out)
            if record.placement is None or node not in record.placement.all_nodes:
                continue
            if record.state is Job.PROVISIONING:
                left = record.group_id
                state.requeue(record, JobOn.DISPLACE)
                state.unpin(record.job.id, left, out)
                departed.append(left)
                continue
            then = JobOn.GONE_REPLACE if record.target is None else JobOn.GONE_MOVE
            if record.then is JobOn.RESTART:
                record.then = then  # the job can't restart on these nodes
            elif record.state is not Job.STOPPING:
                state.stop(now, record, then, f"node {node} is lost", out)
            elif target is None and record.then is JobOn.GONE_MOVE:
                record.then = JobOn.GONE_REPLACE
        self.mover.exchanger.call_off(out)
        self.mover.after_departure(now, departed, out)
        return out

    def _not_to_go_to(self, node: str, record: JobRecord, out: Commands) -> list[str]:
        """Calls off the move of a job that was to go to this node; returns the groups that this changes."""
        target = record.target
        if target is None or node not in target[1].all_nodes:
            return []
        record.target, record.settled_until = None, 0.0
        self.state.unpin(record.job.id, target[0], out)
        here = record.placement
        if record.then is JobOn.GONE_MOVE and here is not None and not self.state.book.ready(here.all_nodes):
            record.then = JobOn.GONE_REPLACE  # else the job may stay: its place is still its own
        return [target[0], record.group_id]

    def _node_cordoned(self, now: float, event: ev.NodeCordoned) -> Commands | None:
        state, node = self.state, event.node
        if not state.book.cordon(node):
            return None
        out: Commands = []
        departed = []
        for record in list(state.jobs.values()):
            departed += self._not_to_go_to(node, record, out)
        if any(node in swap.member.placement.all_nodes for swap in state.swaps.values()):
            self.mover.exchanger.call_off(out)
        self.mover.after_departure(now, departed, out)
        return out

    def _node_uncordoned(self, now: float, event: ev.NodeUncordoned) -> Commands | None:
        if not self.state.book.uncordon(event.node):
            return None
        out: Commands = []
        self.mover.after_departure(now, list(self.state.strained), out)
        return out

    def _cluster_changed(self, now: float, event: ev.ClusterChanged) -> Commands | None:
        state = self.state
        gone = tuple(node for node in event.gone if node in state.book.nodes)
        if event.cluster == state.cluster and not gone:
            return None
        problems = change_problems(state, event.cluster, gone)
        if problems:
            raise IllegalEvent("; ".join(problems))
        state.become(event.cluster, gone)
        out: Commands = []
        self.mover.after_departure(now, list(state.strained), out)
        return out

    def _tick(self, now: float, event: ev.Tick) -> Commands | None:
        state = self.state
        out: Commands = []
        changed = False
        for weave in list(state.weaves.values()):
            commands, overdue = weave.expire(now)
            out += commands
            changed |= bool(overdue)
            for job_id in overdue:
                self._is_overdue(now, state.jobs[job_id], out)
        due = sorted([r for r in state.stopping() if r.stop_by <= now], key=lambda record: record.number)
        for record in due:
            if record.job.id in state.jobs:
                self._gone(now, record, out)
        if state.swaps and state.swaps_until <= now:
            self.mover.exchanger.call_off(out)
            self.mover.admit(now, out)  # the groups of the exchange take newcomers again
            changed = True
        return out if out or due or changed else None

    def _is_overdue(self, now: float, record: JobRecord, out: Commands) -> None:
        """Gives up a holder for lost. What else its attempt holds goes to nobody before the attempt is stopped."""
        state = self.state
        weave = state.weaves[record.group_id]
        if record.state is Job.RUNNING and weave.holds_more(now, record.job.id):
            state.stop(now, record, JobOn.RESTART, OVERDUE, out)
            self._changes_no_places(now, record, out)
        elif record.state is Job.RUNNING:
            out.append(Stop(record.job.id, record.attempt, OVERDUE))
            self._attempt_over(now, record, OVERDUE, out)
            return
        out += weave.give_up(now, record.job.id)


_HANDLERS: dict[type, Callable[..., Commands | None]] = {
    ev.JobSubmitted: ClusterMachine._job_submitted,
    ev.JobStarted: ClusterMachine._job_started,
    ev.JobProfiled: ClusterMachine._job_profiled,
    ev.JobFinished: ClusterMachine._job_finished,
    ev.JobFailed: ClusterMachine._job_failed,
    ev.JobStopped: ClusterMachine._job_stopped,
    ev.JobCancelled: ClusterMachine._job_cancelled,
    ev.JobAbandoned: ClusterMachine._job_abandoned,
    ev.PhaseRequested: ClusterMachine._phase_requested,
    ev.PhaseStarted: ClusterMachine._phase,
    ev.PhaseProgressed: ClusterMachine._phase,
    ev.PhasePaused: ClusterMachine._phase,
    ev.PhaseShrunk: ClusterMachine._phase,
    ev.PhaseFinished: ClusterMachine._phase_finished,
    ev.PhaseFailed: ClusterMachine._phase,
    ev.PhaseOffloaded: ClusterMachine._phase,
    ev.Heartbeat: ClusterMachine._phase,
    ev.Heartbeats: ClusterMachine._heartbeats,
    ev.NodeJoined: ClusterMachine._node_joined,
    ev.NodeLost: ClusterMachine._node_lost,
    ev.NodeCordoned: ClusterMachine._node_cordoned,
    ev.NodeUncordoned: ClusterMachine._node_uncordoned,
    ev.ClusterChanged: ClusterMachine._cluster_changed,
    ev.Tick: ClusterMachine._tick,
}
