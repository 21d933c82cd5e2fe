"""One group at work: the state machine that grants its jobs' phases their nodes.

Every lease is for nodes that nobody else holds, its epoch is higher than any before, and phases are served in the order
that the group promises, except for the long tails that are moved aside. Illegal events raise and change nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from rollmux.checks import MAX_COUNT
from rollmux.errors import IllegalEvent
from rollmux.mux.commands import Command, Extend, Grant, Offload, Pause, Revoke, Shrink
from rollmux.mux.events import (
    Heartbeat,
    PhaseEvent,
    PhaseFailed,
    PhaseFinished,
    PhaseOffloaded,
    PhasePaused,
    PhaseProgressed,
    PhaseRequested,
    PhaseShrunk,
    PhaseStarted,
)
from rollmux.mux.job import PhaseKind
from rollmux.mux.order import Granted, Order, StrictTurns, Turns, turns_for
from rollmux.mux.seat import Lane, Seat, in_ms
from rollmux.mux.transitions import HOLDING, On, Phase, next_phase

Commands = list[Command]


@dataclass(slots=True)
class Ledger:
    """The counters that the whole cluster shares: the event at hand, and the last epoch."""

    seq: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a silent holder keeps its lease, and how long it then has to vanish before it is ended."""

    lease_s: float = inf
    drain_s: float = 10.0


class Weave:
    """The running jobs of one group."""

    __slots__ = ("leases", "ledger", "plain", "seats", "tails", "timing", "turns", "urgent")

    def __init__(self, order: Order, ledger: Ledger, timing: Timing) -> None:
        self.ledger = ledger
        self.timing = timing
        self.turns: Turns[Lane] = turns_for(order)
        self.urgent = order is Order.URGENCY
        self.plain = False  # no phase grows or shrinks, and no node waits for a phase that nobody asks for
        self.seats: dict[str, Seat] = {}
        self.leases: dict[int, Lane] = {}
        self.tails: list[Lane] = []  # rollouts whose tail may move as soon as that lets another job start

    def join(self, now: float, seat: Seat) -> Commands:
        """A job's processes are up: it takes part from now on."""
        self.seats[seat.job.id] = seat
        seat.due_ms = in_ms(now) + seat.aim_ms
        for lane in seat.lanes.values():
            if lane.nodes:
                self.turns.enter(lane)
        out: Commands = []
        self._meet_neighbours(now, out)
        return out

    def restore_leases(self) -> None:
        """Makes anew what follows from the lanes: the leases, and who has neighbours."""
        holding = [lane for seat in self.seats.values() for lane in seat.lanes.values() if lane.holding]
        self.leases = {lane.epoch: lane for lane in sorted(holding, key=lambda lane: lane.epoch)}
        self._count_neighbours()

    def leave(self, now: float, job_id: str) -> Commands:
        """A job's processes are gone, and with them whatever they held."""
        seat = self.seats.pop(job_id)
        out: Commands = []
        for lane in seat.lanes.values():
            self._end_lease(lane)
            lane.state = next_phase(lane.state, On.GONE, lane)
        self._serve(now, self.turns.leave([lane for lane in seat.lanes.values() if lane.nodes]), out)
        self._meet_neighbours(now, out)
        self._move_tails(out)
        return out

    def fence(self, now: float, job_id: str, reason: str) -> Commands:
        """A job is to be stopped: it waits for nothing more, and what it holds is only to be given back."""
        out: Commands = []
        lanes = self.seats[job_id].lanes.values()
        waiting = [lane for lane in lanes if lane.state is Phase.WAITING]
        for lane in waiting:
            lane.state = next_phase(lane.state, On.GONE, lane)
        self._serve(now, self.turns.withdraw(waiting), out)
        for lane in lanes:
            if lane.holding and lane.state is not Phase.PARKED and lane.state is not Phase.FENCED:
                self._fence(now, lane, reason, out)
        self._move_tails(out)
        return out

    def expire(self, now: float) -> tuple[Commands, list[str]]:
        """Fences holders that have been silent too long; returns the jobs that did not vanish in time either."""
        out: Commands = []
        overdue = []
        for lane in [lane for lane in self.leases.values() if lane.deadline <= now]:
            if lane.state is Phase.FENCED:
                overdue.append(lane.seat.job.id)
            else:
                self._fence(now, lane, "no sign of life from its holder", out)
        return out, list(dict.fromkeys(overdue))

    def holds_more(self, now: float, job_id: str) -> bool:
        """Whether a job holds anything whose time to be given back is not over yet."""
        return any(lane.holding and not _is_overdue(lane, now) for lane in self.seats[job_id].lanes.values())

    def give_up(self, now: float, job_id: str) -> Commands:
        """Others get the nodes of a job's overdue phases: nobody waits for these any longer."""
        out: Commands = []
        for lane in self.seats[job_id].lanes.values():
            if _is_overdue(lane, now):
                self._give_back(now, lane, out)
        self._move_tails(out)
        return out

    def handle(self, now: float, event: PhaseEvent) -> Commands | None:
        """What follows from a message of a running job; None if it changes nothing."""
        out = _HANDLERS[type(event)](self, now, event)
        if self.tails and out is not None:
            self._move_tails(out)
        return out

    def _lane_of(self, epoch: int, job_id: str) -> Lane | None:
        """The lane that holds this lease; None where the lease is over (I7)."""
        lane = self.leases.get(epoch)
        if lane is None:
            if 0 < epoch <= self.ledger.epoch:
                return None
            raise IllegalEvent(f"job {job_id} speaks of lease {epoch}, which was never granted")
        if lane.seat.job.id != job_id:
            raise IllegalEvent(f"job {job_id} speaks of lease {epoch}, which is another job's")
        return lane

    def _requested(self, now: float, event: PhaseRequested) -> Commands | None:
        seat, kind, iteration = self.seats[event.job_id], event.kind, event.iteration
        lane = seat.lanes[kind]
        if 0 <= iteration < seat.progress.committed(kind):
            return None  # done before: a late repeat
        state = lane.state
        if state is Phase.FENCED:
            raise IllegalEvent(f"{lane} has lost its lease {lane.epoch}: give back its nodes before asking again")
        if state in HOLDING and state is not Phase.PARKED and iteration == lane.iteration and not lane.wanted:
            return [Grant(lane.lease())]  # the same lease again: the first answer was lost
        if iteration == lane.iteration and (state is Phase.WAITING or lane.wanted):
            return None
        seat.require_turn(kind, iteration)
        following = next_phase(state, On.REQUEST, lane)
        lane.iteration = iteration
        seat.progress.begin(now)
        out: Commands = []
        if following is Phase.OFFLOADING:
            lane.wanted = True
        elif following is Phase.GRANTED:  # its state never left the nodes
            self._end_lease(lane)
            self._plan(lane)
            lane.rounds += 1
            lane.asked = self.ledger.seq
            self._grant(now, lane, out, load=False)
        else:
            self._wait(now, lane, out)
        return out

    def _plan(self, lane: Lane) -> None:
        """The lane is to do a phase from its beginning: plans how long this takes, and how urgent it is."""
        lane.worked_s, lane.resumed = 0.0, False
        if self.urgent:
            seat = lane.seat
            lane.left_ms = lane.whole_ms
            lane.latest = seat.due_ms + (lane.iteration - seat.progress.synced) * seat.aim_ms - lane.rest_ms

    def _wait(self, now: float, lane: Lane, out: Commands) -> None:
        self._plan(lane)
        lane.state = Phase.WAITING
        lane.asked = self.ledger.seq
        if not lane.nodes or self.turns.request(lane):
            self._grant(now, lane, out, load=True)
        else:
            self._ask_way(now, lane, out)

    def _ask_way(self, now: float, lane: Lane, out: Commands) -> None:
        """Less urgent holders make way for a lane that waits, if it would otherwise begin too late."""
        for holder in self.turns.to_pause(lane, in_ms(now)):
            assert holder.pause is not None
            holder.state = next_phase(holder.state, On.PAUSE, holder)
            holder.left_ms = holder.ends_at - in_ms(now) + holder.pause.on_ms
            holder.pause, holder.pausing = None, True
            self._forget_tail(holder)
            out.append(Pause(holder.seat.job.id, holder.epoch, holder.held))

    def _started(self, now: float, event: PhaseStarted) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.started_at is not None or lane.state not in _MAY_START:
            return None  # late or repeated
        lane.state = next_phase(lane.state, On.START, lane)
        lane.started_at = now
        lane.deadline = now + self.timing.lease_s
        return []

    def _progressed(self, now: float, event: PhaseProgressed) -> Commands | None:
        done, total = event.done, event.total
        if not 0 <= done <= total or not 1 <= total <= MAX_COUNT:
            raise IllegalEvent(f"job {event.job_id} says that {done} of {total} responses are done")
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.state is Phase.FENCED:
            return None
        following = next_phase(lane.state, On.PROGRESS, lane)
        if done <= lane.done:
            return None  # late: more is known already
        lane.deadline = now + self.timing.lease_s
        lane.done, lane.total = done, total
        tail = lane.seat.job.tail
        # A rollout whose state may stay keeps its nodes: nobody would hear when the state has left the freed ones.
        ripe = tail is not None and not lane.keep and lane.kind is PhaseKind.ROLLOUT and done >= tail.trigger * total
        if ripe and following is Phase.RUNNING and lane not in self.tails:
            self.tails.append(lane)
        return []

    def _paused(self, now: float, event: PhasePaused) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.state is Phase.FENCED:
            return None
        next_phase(lane.state, On.PAUSED, lane)
        if lane.started_at is not None:
            lane.worked_s += now - lane.started_at
        lane.resumed = True
        self._end_lease(lane)
        out: Commands = []
        lane.state = Phase.WAITING
        lane.asked = self.ledger.seq
        self._serve(now, self.turns.give_way(lane), out)
        if not lane.held:
            self._ask_way(now, lane, out)
        return out

    def _shrunk(self, now: float, event: PhaseShrunk) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.state in (Phase.TAIL, Phase.FENCED):
            return None
        lane.state = next_phase(lane.state, On.SHRUNK, lane)
        lane.deadline = now + self.timing.lease_s
        freed, lane.freeing = lane.freeing, ()
        out: Commands = []
        self._serve(now, self.turns.release(lane, freed), out)
        return out

    def _finished(self, now: float, event: PhaseFinished) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.state in (Phase.PARKED, Phase.OFFLOADING):
            return None  # late or repeated
        parks = lane.keep and lane.state in _MAY_PARK
        following = next_phase(lane.state, On.PARK if parks else On.FINISH, lane)
        if lane.state is not Phase.FENCED:  # what was done without a lease does not count
            worked_s = lane.worked_s + (0.0 if lane.started_at is None else now - lane.started_at)
            lane.seat.commit(lane.kind, worked_s, now)
        out: Commands = []
        if following is Phase.PARKED:
            lane.state = following
            lane.deadline = inf
            lane.pause, lane.pausing = None, False
            self._forget_tail(lane)
            if not lane.alone:
                self._evict(now, lane, out)
            return out
        self._give_back(now, lane, out)
        return out

    def _gave_back(self, now: float, event: PhaseFailed | PhaseOffloaded) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None:
            return None
        next_phase(lane.state, On.FAIL if isinstance(event, PhaseFailed) else On.OFFLOADED, lane)
        out: Commands = []
        self._give_back(now, lane, out)
        return out

    def _heartbeat(self, now: float, event: Heartbeat) -> Commands | None:
        lane = self._lane_of(event.epoch, event.job_id)
        if lane is None or lane.state not in _RENEWABLE:
            return None
        lane.deadline = now + self.timing.lease_s
        return []

    def _grant(self, now: float, lane: Lane, out: Commands, load: bool) -> None:
        ledger = self.ledger
        ledger.epoch = epoch = ledger.epoch + 1
        lane.state = Phase.GRANTED
        lane.epoch = epoch
        lane.granted_by = ledger.seq
        lane.deadline = now + self.timing.lease_s
        lane.started_at = None
        lane.done = lane.total = 0
        lane.load = load and bool(lane.nodes)
        lane.keep = lane.alone and bool(lane.nodes)
        if self.urgent:
            lane.ends_at = in_ms(now) + lane.left_ms
            lane.pause = lane.can_pause if len(lane.held) == lane.wants and not lane.alone else None
        self.leases[epoch] = lane
        out.append(Grant(lane.lease()))

    def _give_back(self, now: float, lane: Lane, out: Commands) -> None:
        """The lane holds nothing any more; the next in line get its nodes."""
        self._end_lease(lane)
        lane.state = Phase.IDLE
        if lane.nodes:
            is_undone = lane.iteration == lane.seat.progress.committed(lane.kind) and not lane.wanted
            had_its_turn = lane.tail  # others were let in already
            if is_undone and not had_its_turn:
                lane.rounds -= 1  # in a strict order its turn is still due
            self._serve(now, self.turns.release(lane), out)
            if is_undone and had_its_turn:
                self._serve(now, self.turns.put_off(lane.seat.lanes[PhaseKind.TRAIN]), out)
        if lane.wanted:
            lane.wanted = False
            self._wait(now, lane, out)

    def _end_lease(self, lane: Lane) -> None:
        self.leases.pop(lane.epoch, None)
        lane.deadline = inf
        lane.freeing = ()
        lane.pause, lane.pausing = None, False
        self._forget_tail(lane)

    def _forget_tail(self, lane: Lane) -> None:
        if lane in self.tails:
            self.tails.remove(lane)

    def _serve(self, now: float, granted: list[Granted[Lane]], out: Commands) -> None:
        for lane, nodes in granted:
            if lane.state is Phase.WAITING:
                self._grant(now, lane, out, load=True)
            else:
                out.append(Extend(lane.seat.job.id, lane.epoch, nodes))

    def _fence(self, now: float, lane: Lane, reason: str, out: Commands) -> None:
        epoch = lane.epoch
        lane.state = next_phase(lane.state, On.EXPIRE, lane)
        lane.iteration -= lane.wanted  # back to the one that the lease was for: it is done, and has had its turn
        lane.wanted, lane.pause, lane.pausing = False, None, False
        self._forget_tail(lane)
        lane.deadline = now + self.timing.drain_s
        out.append(Revoke(lane.seat.job.id, epoch, reason))
        self._serve(now, self.turns.withdraw([lane]), out)  # the lane might wait for the rest of its nodes

    def _evict(self, now: float, lane: Lane, out: Commands) -> None:
        lane.state = next_phase(lane.state, On.EVICT, lane)
        phase = lane.seat.job.phase(lane.kind)
        takes_s = min(phase.offload_s, phase.planned_s)  # no sign of life tells how far the holder is, or if it is dead
        lane.deadline = now + min(self.timing.lease_s, self.timing.drain_s) + takes_s
        out.append(Offload(lane.seat.job.id, lane.epoch, lane.held))

    def _meet_neighbours(self, now: float, out: Commands) -> None:
        """Neighbours have come or gone: state may stay on nodes only where nobody else is pinned."""
        self._count_neighbours()
        for lane in self.turns.claims:
            if lane.alone:
                continue
            if lane.state is Phase.PARKED:
                self._evict(now, lane, out)
            elif self.urgent and lane.keep and (lane.state is Phase.RUNNING or lane.state is Phase.GRANTED):
                lane.pause = lane.can_pause  # granted while it was alone: its neighbours count on its pauses

    def _count_neighbours(self) -> None:
        pinned = Counter(node for lane in self.turns.claims for node in lane.nodes)
        for lane in self.turns.claims:
            lane.alone = all(pinned[node] == 1 for node in lane.nodes)
        whole = all(not lane.elastic and lane.seat.job.tail is None for lane in self.turns.claims)
        self.plain = whole and not isinstance(self.turns, StrictTurns)
        if self.urgent:
            for seat in self.seats.values():
                seat.plan()

    def _move_tails(self, out: Commands) -> None:
        """Asks tails to move together where that lets another job start."""
        for lane in list(self.tails):
            tail = lane.seat.job.tail
            freed = self.turns.freed_by_tail(lane, tail.keep_nodes(lane.total - lane.done)) if tail else ()
            if freed:
                self.tails.remove(lane)
                lane.state = next_phase(lane.state, On.SHRINK, lane)
                lane.pause = None
                lane.freeing = freed
                keep = tuple(node for node in lane.held if node not in freed)
                out.append(Shrink(lane.seat.job.id, lane.epoch, keep, freed))


def _is_overdue(lane: Lane, now: float) -> bool:
    return lane.state is Phase.FENCED and lane.deadline <= now


_MAY_START = frozenset({Phase.GRANTED, Phase.PAUSING})

_MAY_PARK = frozenset({Phase.GRANTED, Phase.RUNNING, Phase.PAUSING})

_RENEWABLE = frozenset({Phase.GRANTED, Phase.RUNNING, Phase.PAUSING, Phase.SHRINKING, Phase.TAIL})

_HANDLERS: dict[type, Callable[..., Commands | None]] = {
    PhaseRequested: Weave._requested,
    PhaseStarted: Weave._started,
    PhaseProgressed: Weave._progressed,
    PhasePaused: Weave._paused,
    PhaseShrunk: Weave._shrunk,
    PhaseFinished: Weave._finished,
    PhaseFailed: Weave._gave_back,
    PhaseOffloaded: Weave._gave_back,
    Heartbeat: Weave._heartbeat,
}
