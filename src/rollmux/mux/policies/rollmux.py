"""Our placement: use every SLO's slack, widen either pool, and keep roomy groups for jobs that need room.

Beyond the published rules a saturated group is still open while every SLO holds, a group may gain training nodes as
well as rollout nodes, a job on several nodes may take old and new ones together, and a rollout with spare nodes roams
over those of its group. Among equal prices the fullest group that still works is taken, so that what is left free stays
in large pieces.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import NamedTuple

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.order import Order
from rollmux.mux.placed import NOWHERE, ROLLOUT, TRAIN, Member, Placement
from rollmux.mux.plan import TRAIL_LIMIT, USD_ROUNDING, Candidate, Decision, Plan, Strategy, Trail, Verdict
from rollmux.mux.policies.attempt import Widening, choices, packed, place_alone, widening, works
from rollmux.mux.policies.seeker import NONE, Seeker, crowded
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.worth import (
    burden_usd_per_hour,
    idle_usd,
    most_idle_usd,
    most_worth_usd_per_hour,
    worth_by_phase,
)

# Plays cost far more than ranking: so many in all ways to widen a group, and so many that work are compared. Eight and
# three find places that cost no less.
TRIES, WINS = 5, 2
# A job that runs has a place: for it the likeliest others do. More are no cheaper, and cost most of the time.
TRIES_TO_MOVE, WINS_TO_MOVE = 2, 1
# How full the nodes are over which a rollout roams, taken together. Of 530 such placements that would promise more
# of them than this 4 % worked.
POOL_FULL = 0.94
# A job that wants many nodes is offered none, all, and a few numbers of new nodes between.
WIDTHS_LIMIT = 5


class Open(NamedTuple):
    """A group that may take the job. `pool_free` is what its rollout nodes have to spare together, in nodes, for a
    rollout that may roam; a negative number for any other.
    """

    free_usd: float
    group: Group
    pool_free: float


FULLEST = itemgetter(0)


class Newcomer(NamedTuple):
    """A job that looks for a place, and both of its phases."""

    member: Member
    rollout: Seeker
    train: Seeker

    @staticmethod
    def of(job: JobSpec, order: Order, cluster: Cluster) -> "Newcomer":
        member = Member.of(job, NOWHERE)
        rollout_room, train_room = cluster.rollout.node_type.room_bytes, cluster.train.node_type.room_bytes
        return Newcomer(member, Seeker(member, ROLLOUT, order, rollout_room), Seeker(member, TRAIN, order, train_room))


class Way(NamedTuple):
    """How a group could take the job in, and how tight that is: on nodes out of these.

    Without `rollout`, the rollout roams.
    """

    tight: int
    group: Group
    train: tuple[str, ...]
    rollout: tuple[str, ...] | None


TIGHTEST_LAST = itemgetter(0)


@dataclass(slots=True)
class Search:
    """The place with the least burden so far, below what is asked for, and how many plays are left.

    `outdone` are places with their burdens, or what those come to at least; the best is among them.
    """

    worths: Mapping[PhaseKind, float]
    below_usd: float
    tries: int
    wins: int
    best: Plan | None = None
    outdone: list[tuple[str, Widening, float]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.tries <= 0 or self.wins <= 0

    def offer(self, plan: Plan, burden: float) -> None:
        if burden < self.below_usd - USD_ROUNDING:
            self.best, self.below_usd = plan, burden

    def tell(self, trail: Trail) -> None:
        """Leaves in the trail what the best outdid."""
        if self.best is None:
            return
        for group_id, added, burden in self.outdone[:TRAIL_LIMIT]:
            if burden > self.below_usd:
                usd = added.added_usd_per_hour
                trail.add(Candidate(group_id, added.strategy, usd, Verdict.BURDEN, "", burden, self.below_usd))


@dataclass(frozen=True)
class RollmuxPolicy:
    """Least added cost first; among equals, the group with the least left over."""

    order: Order = Order.URGENCY
    max_group: int = 5
    forecaster: Forecaster = field(default_factory=Forecaster, compare=False)
    name: str = "rollmux"

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        trail = Trail() if below_usd == inf else None  # nobody asks why a job was not moved
        newcomer = Newcomer.of(job, self.order, snapshot.cluster)
        candidates = self._open(newcomer, snapshot, trail, below_usd)
        tries, wins = (TRIES, WINS) if below_usd == inf else (TRIES_TO_MOVE, WINS_TO_MOVE)
        search = Search(worth_by_phase(job, snapshot.cluster), below_usd, tries, wins)
        worth = most_worth_usd_per_hour(job, snapshot.cluster)  # of its work, if nobody is slowed
        # Where one pool serves both phases, a group of its own may need fewer nodes than some ways to widen another.
        alone = self._alone(job, snapshot, trail) if snapshot.cluster.shared else None
        if alone is not None:
            search.offer(alone, alone.added_usd_per_hour - worth)
        cluster = snapshot.cluster
        rollout_usd, train_usd = cluster.rollout.node_type.usd_per_hour, cluster.train.node_type.usd_per_hour
        widths = _widths_by_price(job.rollout.nodes, job.train.nodes, rollout_usd, train_usd) if candidates else ()
        for usd, new_rollout, new_train in widths:
            if usd - worth >= search.below_usd or search.is_over:
                break
            added = widening(snapshot, new_rollout, new_train)
            if added is not None:
                self._try(search, newcomer, added, candidates, snapshot, trail)
        if not cluster.shared and job.usd_per_hour(cluster) - worth < search.below_usd:
            alone = self._alone(job, snapshot, trail)
            if alone is not None:
                search.offer(alone, alone.added_usd_per_hour - worth)
        if trail is None:
            return Decision(job.id, self.name, search.best, ())
        search.tell(trail)
        return Decision.of(job, self.name, search.best, trail)

    def _try(
        self,
        search: Search,
        newcomer: Newcomer,
        added: Widening,
        candidates: list[Open],
        snapshot: Snapshot,
        trail: Trail | None,
    ) -> None:
        """Plays the likeliest places with these new nodes, but for those that can't be the best."""
        usd, member = added.added_usd_per_hour, newcomer.member
        for group, placement in _placements(newcomer, added, candidates):
            idle = idle_usd(group, snapshot.cluster, self.forecaster)
            least = usd - _most_gained(member.job, placement, search.worths, idle)
            if least >= search.below_usd:
                search.outdone.append((group.id, added, least))
                continue
            plan = packed(group, Member(member.job, placement, member.limit_s), added)
            search.tries -= 1
            if works(plan, snapshot, self.forecaster, trail, fits=_is_apart(placement)):
                search.wins -= 1
                burden = burden_usd_per_hour(plan, snapshot, self.forecaster)
                search.outdone.append((group.id, added, burden))
                search.offer(plan, burden)
            if search.is_over:
                return

    def _alone(self, job: JobSpec, snapshot: Snapshot, trail: Trail | None) -> Plan | None:
        return place_alone(job, snapshot, self.order, self.forecaster, trail)

    def _open(self, newcomer: Newcomer, snapshot: Snapshot, trail: Trail | None, below_usd: float) -> list[Open]:
        """The groups that may take one more job, fullest first. The trail, if there is one, hears why others can't."""
        member, rollout, train = newcomer
        least = None if trail is not None else self._least_burdens(member.job, snapshot)
        roams = member.job.rollout_spares > 0
        frozen, bears_company = snapshot.frozen, member.bears_company
        found: list[Open] = []
        closed: list[Closed] = []
        for group in snapshot.groups.values():
            if least is not None and (group.id in frozen or least(group) >= below_usd + USD_ROUNDING):
                continue
            if len(group.members) >= self.max_group:
                closed.append((Verdict.FULL, group, len(group.members), self.max_group))
                continue
            hermit = group.hermit if bears_company else member
            if hermit is not None:
                closed.append((Verdict.NO_SLACK, group, 0.0, 0.0))
                continue
            pool_free = group.free_shares[0] if roams else -1.0
            if not (pool_free >= rollout.need or rollout.nodes(group)[1] or train.nodes(group)[1]):
                needed = min(rollout.need, train.need)
                closed.append((Verdict.SHARE, group, needed, max(group.free_shares)))
            elif group.id in frozen:
                closed.append((Verdict.FROZEN, group, 0.0, 0.0))
            else:
                found.append(Open(group.free_usd(snapshot.cluster), group, pool_free))
        found.sort(key=FULLEST)
        if trail is not None:
            _record(closed, member, snapshot, trail)
        return found

    def _least_burdens(self, job: JobSpec, snapshot: Snapshot) -> Callable[[Group], float]:
        """What taking the job adds to the burden at least, by group: each of its nodes is there already, or new."""
        cluster, forecaster = snapshot.cluster, self.forecaster
        worths, rollouts, trains = worth_by_phase(job, cluster), job.rollout.nodes, job.train.nodes
        rollout_worth, train_worth = worths[ROLLOUT], worths[TRAIN]
        new_rollout = cluster.rollout.node_type.usd_per_hour - rollout_worth
        new_train = cluster.train.node_type.usd_per_hour - train_worth
        roams = job.rollout_spares > 0

        def least(group: Group) -> float:
            rollout_idle, train_idle, all_idle = most_idle_usd(group, cluster, forecaster)
            rollout = max(-all_idle if roams else -rollout_idle, -rollout_worth)
            train = max(-train_idle, -train_worth)
            return rollouts * min(rollout, new_rollout) + trains * min(train, new_train)

        return least


def _placements(newcomer: Newcomer, added: Widening, candidates: list[Open]) -> Iterator[tuple[Group, Placement]]:
    """Every way to take the job in with these new nodes, the likeliest and fullest groups first."""
    later: list[Way] = []
    for each in candidates:
        for way in _ways(newcomer, added, each):
            if way.tight:
                later.append(way)
            else:
                yield from _places(newcomer, added, way)
    for way in sorted(later, key=TIGHTEST_LAST):  # of the like, the fullest first
        yield from _places(newcomer, added, way)


def _ways(newcomer: Newcomer, added: Widening, candidate: Open) -> list[Way]:
    """How this group could take the job in with these new nodes.

    A rollout that may roam over more than one node does so, and is pinned only where that is likelier by far.
    """
    _, group, pool_free = candidate
    job = newcomer.member.job
    old_rollout, old_train = job.rollout.nodes - len(added.rollout), job.train.nodes - len(added.train)
    tight, train = newcomer.train.nodes(group) if old_train else NONE
    if len(train) < old_train:
        return []
    found: list[Way] = []
    nodes = len(group.rollout_nodes)
    roams = pool_free >= 0 and nodes > old_rollout
    if roams:
        need = newcomer.member.share(ROLLOUT) * job.rollout.nodes - len(added.rollout)
        load = 1 - (pool_free - need) / (nodes + len(added.rollout))
        if load <= POOL_FULL:
            found.append(Way(max(tight, crowded(load)), group, train, None))
    rollout_tight, rollout = newcomer.rollout.nodes(group) if old_rollout else NONE
    if len(rollout) >= old_rollout:
        found.append(Way(max(tight, rollout_tight) + (roams and nodes > 1), group, train, rollout))
    return found


def _places(newcomer: Newcomer, added: Widening, way: Way) -> Iterator[tuple[Group, Placement]]:
    """The placements of one way."""
    job, group = newcomer.member.job, way.group
    old_rollout, old_train = job.rollout.nodes - len(added.rollout), job.train.nodes - len(added.train)
    for train in choices(way.train, group.uses, old_train):
        if way.rollout is None:
            pool = newcomer.rollout.pool(group)[: old_rollout + job.rollout_spares]
            if len(pool) > old_rollout:
                yield group, Placement(added.rollout + pool, train + added.train)
            continue
        for rollout in choices(way.rollout, group.uses, old_rollout):
            yield group, Placement(rollout + added.rollout, train + added.train)


def _most_gained(
    job: JobSpec, placement: Placement, worths: Mapping[PhaseKind, float], idle_usd: Mapping[str, float]
) -> float:
    """What the placement may add to the worth of the work: on no node more than is now left undone there."""
    most = 0.0
    for kind, worth in worths.items():
        nodes = placement.nodes(kind)
        gained = 0.0
        for node in nodes:
            idle = idle_usd.get(node, worth)
            gained += idle if idle < worth else worth
        most += min(gained, worth * job.holds(kind, len(nodes)))
    return most


def _is_apart(placement: Placement) -> bool:
    """Whether no node must hold the state of both phases, so that the memory looked at is all that counts."""
    return set(placement.rollout).isdisjoint(placement.train)


@lru_cache(maxsize=1024)
def _widths_by_price(
    rollout_nodes: int, train_nodes: int, rollout_usd: float, train_usd: float
) -> tuple[tuple[float, int, int], ...]:
    """How many nodes may be added to a group, fewer than a new one would have: what they cost, cheapest first."""
    wanted = rollout_nodes, train_nodes
    sizes = [(rollout, train) for rollout in _widths(wanted[0]) for train in _widths(wanted[1])]
    priced = [(size[0] * rollout_usd + size[1] * train_usd, *size) for size in sizes if size != wanted]
    return tuple(sorted(priced, key=itemgetter(0)))


def _widths(wanted: int) -> list[int]:
    if wanted < WIDTHS_LIMIT:
        return list(range(wanted + 1))
    return sorted({round(wanted * i / (WIDTHS_LIMIT - 1)) for i in range(WIDTHS_LIMIT)})


Closed = tuple[Verdict, Group, float, float]


def _record(closed: list[Closed], member: Member, snapshot: Snapshot, trail: Trail) -> None:
    """Leaves the closed groups in the trail: all of a few, or a count and the nearest miss of many."""
    if len(closed) <= TRAIL_LIMIT:
        for entry in closed:
            trail.add(_as_candidate(entry, member, snapshot))
        return
    for verdict in dict.fromkeys(entry[0] for entry in closed):
        alike = [entry for entry in closed if entry[0] is verdict]
        nearest = min(alike, key=lambda entry: entry[2] - entry[3])
        trail.more[verdict] = (len(alike), _as_candidate(nearest, member, snapshot))


def _as_candidate(entry: Closed, member: Member, snapshot: Snapshot) -> Candidate:
    verdict, group, value, limit = entry
    subject = ""
    if verdict is Verdict.NO_SLACK:
        hermit = group.hermit if member.bears_company else member
        subject = hermit.job.id if hermit is not None else ""
    if verdict is Verdict.SHARE:
        cluster = snapshot.cluster
        for kind, nodes, pool in (
            (ROLLOUT, group.rollout_nodes, cluster.rollout),
            (TRAIN, group.train_nodes, cluster.train),
        ):
            room, phase = pool.node_type.room_bytes, member.job.phase(kind)
            for node in nodes:
                needed = group.uses[node].host_bytes_with(phase)
                if needed > room and group.uses[node].spare_with(member.tenant(kind, group.order)) >= 0:
                    verdict, subject, value, limit = Verdict.MEMORY, node, needed, room
    return Candidate(group.id, Strategy.DIRECT, 0.0, verdict, subject, value, limit)
