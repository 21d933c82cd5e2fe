"""Which jobs change places, and when: to empty nodes that no longer pay, or to keep an SLO."""

from collections.abc import Iterable
from dataclasses import replace

from rollmux.errors import InvariantViolated
from rollmux.mux.budget import followed
from rollmux.mux.cluster_state import ClusterState, Commands
from rollmux.mux.exchanger import Exchanger
from rollmux.mux.exchanges import Candidate, exchange
from rollmux.mux.group import Group
from rollmux.mux.job_record import JobRecord
from rollmux.mux.moves import Movable, Moves, compaction, escape, relief
from rollmux.mux.placed import LAST_CHANCE
from rollmux.mux.plan import check_plan
from rollmux.mux.transitions import Job, JobOn

# At an arrival or a departure: at most so many moves one after the other.
REGROUP_ROUNDS = 8
# A cluster of at most SMALL groups is looked at as a whole. In a larger one a look compares SOURCES of the groups that
# have changed, the longest ago first, with the ROOMIEST others, and brings the limits of FOLLOWED groups up to date.
SMALL = 16
SOURCES = 1
ROOMIEST = 16
FOLLOWED = 8
# With fewer jobs there is little to exchange, and looking for it would take much of the time.
MANY = 20
# A job that moves meets its new neighbours at any moment, and so loses this part of an iteration more: it counts in the
# job's SLO and in what the move costs.
AFTER_A_MOVE = 0.5


class Mover:
    """Moves the jobs of one cluster."""

    __slots__ = ("exchanger", "state")

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.exchanger = Exchanger(state)

    def end(self, now: float, record: JobRecord, how: str, out: Commands) -> None:
        """A job is over: others may use its place."""
        left = self.state.end(now, record, how, out)
        self.without_exchange(record.job.id, out)
        self.after_departure(now, left, out)

    def after_departure(self, now: float, left: list[str], out: Commands) -> None:
        """Jobs have left room: first for jobs that wait, then to bring the rest of these groups closer together."""
        for group_id in left:
            self.relieve(now, group_id, out)
        self.admit(now, out)
        self.regroup(now, out)

    def admit(self, now: float, out: Commands) -> None:
        """Gives jobs in line their places. Where they may go depends on what the others can still lose, as of now."""
        if self.state.backlog:
            self.follow_budgets(now, out)
            self.state.admit_waiting(now, out)

    def regroup(self, now: float, out: Commands) -> None:
        """Makes the moves that save the most, one after the other, as long as some pay.

        Groups that have changed since the last look are compared with all others, and the others only with those that
        have changed. In a large cluster the changed groups take turns.
        """
        self.follow_budgets(now, out)
        for group_id in list(self.state.strained):
            self.relieve(now, group_id, out)
        if not self.state.rules.compaction or self.state.backlog:
            return
        if self.state.swaps or self.state.is_anybody_leaving():
            return  # jobs that are just leaving make more room: look again when the last has left
        small = len(self.state.groups) <= SMALL
        sources = self.state.changed if small else dict.fromkeys(list(self.state.changed)[:SOURCES])
        for _ in range(REGROUP_ROUNDS):
            moves = self._best_moves(now, sources, whole=small)
            if moves is None or not self.make_moves(now, moves, "its group's nodes no longer pay", out):
                break
        near = list(self.state.changed)
        for group_id in list(sources):
            self.state.changed.pop(group_id, None)
        if small and len(self.state.jobs) >= MANY:
            self._exchange(now, near, out)

    def _exchange(self, now: float, near: Iterable[str], out: Commands) -> None:
        """Makes the exchange that saves the most, if one pays."""
        state = self.state
        if state.is_anybody_leaving():
            return
        able = {}
        for group in state.groups.values():
            horizon_s = state.rules.exchange_horizon_s
            movable = self.movable(now, group, horizon_s=horizon_s) if group.id not in state.strained else {}
            paces = state.policy.forecaster.forecast(group).iteration_s if movable else ()
            for member, pace_s in zip(group.members, paces, strict=False):
                if member.job.id in movable and not member.apart:
                    able[member.job.id] = Candidate(group.id, movable[member.job.id]._replace(pace_s=pace_s))
        moves = exchange(near, state.snapshot(), able, state.policy, state.rules.exchange_horizon_s)
        if moves is None:
            return
        if self.exchanger.agree(now, moves, {plan.job_id: able[plan.job_id].movable for plan in moves.plans}):
            for plan in moves.plans:
                self.move_if_safe(now, state.jobs[plan.job_id], out)

    def gone_for_exchange(self, now: float, record: JobRecord, out: Commands) -> None:
        """A job has stopped to change places: it waits for the others, unless the exchange was called off."""
        if record.job.id not in self.state.swaps:
            self.state.launch_if_ready(record, out)
        elif self.exchanger.is_ripe():
            self.after_departure(now, self.exchanger.make(now, out), out)

    def without_exchange(self, job_id: str, out: Commands) -> bool:
        """Calls off the exchange if this job takes part in it: whatever has happened, it changes no places now.

        Whether it did: then the groups of the exchange take newcomers again.
        """
        takes_part = job_id in self.state.swaps
        if takes_part:
            self.exchanger.call_off(out)
        return takes_part

    def _best_moves(self, now: float, sources: Iterable[str], *, whole: bool) -> Moves | None:
        snapshot = self.state.snapshot()
        near = replace(
            snapshot, groups={name: self.state.groups[name] for name in sources if name in self.state.groups}
        )
        wide = snapshot if whole else None
        best: Moves | None = None
        for group in ({**near.groups, **self.state.groups} if whole else near.groups).values():
            movable = self.movable(now, group) if group.id not in self.state.strained else None
            if movable:
                if wide is None:
                    roomy = {**near.groups, **self.state.groups.roomiest(ROOMIEST)}
                    wide = replace(snapshot, groups=roomy)
                others = wide if group.id in near.groups else near
                known = best.gain_usd if best is not None else 0.0
                best = compaction(group, others, movable, self.state.policy, self.state.rules.horizon_s, known) or best
        return best

    def follow_budgets(self, now: float, out: Commands) -> None:
        """Limits follow what jobs have used of their SLOs; a group that is too slow for a new limit is relieved.

        In a large cluster the groups take turns.
        """
        names = list(self.state.groups)
        first = self.state.followed % max(1, len(names))
        most = SMALL if len(names) <= SMALL else FOLLOWED
        self.state.followed = first + most
        turn = names[first : first + most]
        for group_id in turn + names[: min(first, most - len(turn))]:
            group, tighter, looser = self.state.groups[group_id], dict[str, float](), dict[str, float]()
            for member in group.members:
                record = self.state.jobs[member.job.id]
                limit_s = record.limit_s(now) if record.group_id == group_id else None
                left = record.remaining if limit_s is not None else None
                if limit_s is not None and left:
                    limit_s = followed(member.limit_s, limit_s, record.job, left)
                    moving = record.state is not Job.RUNNING  # what the move costs shows only when the job is there
                    if limit_s < member.limit_s:
                        tighter[member.job.id] = limit_s
                    elif limit_s > member.limit_s and not moving:
                        looser[member.job.id] = limit_s
            if looser:
                # A job that may take longer may be kept waiting longer: that must harm no other job.
                after = group.with_limits(looser)
                if self.state.policy.forecaster.late(after) is None:
                    self.state.change(after)
            if tighter:
                self.state.change(self.state.groups[group_id].with_limits(tighter))
                self.relieve(now, group_id, out)

    def relieve(self, now: float, group_id: str, out: Commands) -> None:
        """If a job of the group would miss its SLO from now on, moves one to a better place before that happens.

        New measurements can bring this about, and so can a departure: with fewer jobs the others may meet each other
        at worse moments.
        """
        group = self.state.groups.get(group_id)
        if group is None:
            return
        self.state.strained.pop(group_id, None)
        if self.state.policy.forecaster.late(group) is not None:
            self.state.strained[group_id] = None
            if self._is_being_relieved(group):
                return
            moves = relief(group, self.state.snapshot(), self.movable(now, group, settled=False), self.state.policy)
            if moves is not None:
                self.make_moves(now, moves, "an SLO of its group is in danger", out)

    def _is_being_relieved(self, group: Group) -> bool:
        """Whether all jobs keep their SLOs once those that are about to move have left."""
        rest = group
        for member in group.members:
            record = self.state.jobs[member.job.id]
            if record.group_id == group.id and record.target is not None:
                rest = rest.left_by(member.job.id)
        return rest is not group and (not rest.members or self.state.policy.forecaster.late(rest) is None)

    def watch(self, now: float, record: JobRecord, out: Commands) -> None:
        """After a sync: a job that is slower than was forecast leaves while it can still afford to.

        A group has more rhythms than are played, and the first iterations after a change are in none.
        """
        limit_s, job = record.limit_s(now), record.job
        recent_s, left = record.progress.recent_s, record.remaining
        if limit_s is None or recent_s <= limit_s or self.state.is_moving(record) or not left:
            return
        lost_s = self.state.anew_s(job)
        one_more_s = max(job.solo_s * LAST_CHANCE, record.progress.slowest_s - job.solo_s * AFTER_A_MOVE)
        here, later = record.limit_s(now, lost_s), record.limit_s(now, lost_s + one_more_s)
        group = self.state.groups[record.group_id]
        if here is None or later is None or not later < job.solo_s <= here or len(group.members) == 1:
            return
        leaver = Movable(job, left * job.solo_s, lost_s, here, left)
        moves = escape(group, self.state.snapshot(), leaver, self.state.policy)
        if moves is not None:
            self.make_moves(now, moves, "its SLO is in danger: it is slower than was forecast", out)
            self.move_if_safe(now, record, out, synced=True)

    def movable(
        self, now: float, group: Group, *, settled: bool = True, horizon_s: float | None = None
    ) -> dict[str, Movable]:
        """The group's jobs that run, are not moving already, can afford a move, and whose last move has paid off.

        Jobs that are being stopped for a move that was called off may move too; otherwise they stay.
        How long a job still runs is forecast only where it may be less than the horizon.
        """
        found, rules = {}, self.state.rules
        horizon_s = rules.horizon_s if horizon_s is None else horizon_s
        for number, member in enumerate(group.members):
            record = self.state.jobs[member.job.id]
            in_vain = record.state is Job.STOPPING and record.then is JobOn.GONE_MOVE  # if it is not moving any more
            if not (record.state is Job.RUNNING or in_vain) or self.state.is_moving(record):
                continue
            if settled and now < record.settled_until:
                continue
            left = record.remaining
            lost_s = self.state.anew_s(record.job) + record.job.solo_s * AFTER_A_MOVE
            limit_s = record.limit_s(now, lost_s)
            if limit_s is not None and limit_s < record.job.solo_s:
                continue  # it can't afford a move
            if left is None:
                remaining_s = now - record.submitted_at  # the best guess: as long again as it has run
            else:
                # The job goes after the iteration under way; in its last iteration it stays.
                left -= record.state is Job.RUNNING and not self.state.seat(record).quiet
                remaining_s = left * record.job.solo_s  # at least
                if remaining_s < horizon_s:
                    remaining_s = left * self.state.policy.forecaster.forecast(group).iteration_s[number]
            if left is None or left > 0:
                found[record.job.id] = Movable(record.job, remaining_s, lost_s, limit_s, left)
        return found

    def make_moves(self, now: float, moves: Moves, reason: str, out: Commands) -> bool:
        """Reserves the new places, all or none; each job goes at its next safe point."""
        snapshot = self.state.snapshot()
        try:
            for plan in moves.plans:
                check_plan(plan, snapshot, self.state.policy.forecaster)
                snapshot = snapshot.with_group(plan.group, plan.new_nodes)
        except InvariantViolated as broken:
            self.state.alarms.append(f"{self.state.policy.name} planned a move that may not be, {broken}")
            return False
        for plan in moves.plans:
            record = self.state.jobs[plan.job_id]
            self.state.pin(plan, out)
            record.target = (plan.group.id, plan.placement)
            record.settled_until = now + moves.payback_s
            record.moving_because = reason
            self.move_if_safe(now, record, out)
        return True

    def move_if_safe(self, now: float, record: JobRecord, out: Commands, synced: bool = False) -> None:
        """Moves the job if it is between two iterations; one whose rollouts run ahead loses these."""
        state = self.state
        if state.is_moving(record) and record.state is Job.RUNNING and record.remaining != 0:
            seat = state.seat(record)
            if seat.quiet or (synced and record.job.staleness > 0):
                goal = record.target[0] if record.target is not None else state.swaps[record.job.id].group_id
                state.stop(now, record, JobOn.GONE_MOVE, f"moves to {goal}: {record.moving_because}", out)
