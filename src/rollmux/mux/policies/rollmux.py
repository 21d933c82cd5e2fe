"""Our placement: use every SLO's slack, widen either pool, and keep roomy groups for jobs that need room.

Beyond the published rules a saturated group is still open while every SLO holds, a group may gain training nodes as
well as rollout nodes, a job on several nodes may take old and new ones together, and a rollout with spare nodes roams
over those of its group. Among equal prices the fullest group that still works is taken, so that what is left free stays
in large pieces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from operator import itemgetter

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, Placement
from rollmux.mux.plan import TRAIL_LIMIT, USD_ROUNDING, Candidate, Decision, Plan, Strategy, Trail, Verdict
from rollmux.mux.policies.attempt import Widening, packed, place_alone, widening, works
from rollmux.mux.policies.seeker import MOST
from rollmux.mux.policies.ways import Newcomer, Open, places
from rollmux.mux.quick_play import is_plain
from rollmux.mux.snapshot import Snapshot
from rollmux.mux.worth import (
    burden_usd_per_hour,
    idle_usd,
    most_idle_usd,
    most_worth_usd_per_hour,
    worth_by_phase,
)

# Plays cost far more than ranking: TRIES places are played, over all ways to widen a group, and WINS that work are
# compared. Eight and three find places that cost no less.
TRIES, WINS = 5, 2
# A job for which there are no nodes of its own waits if none of these works: of those for which five plays found no
# place in a full cluster whose rollouts roam, 13 % had one; with twenty plays 1 %. General plays count as several.
TRIES_IN_LINE = 20
# A running job has a place: the likeliest others are enough for it. More find none cheaper, and take most of the time.
TRIES_TO_MOVE, WINS_TO_MOVE = 2, 1
# A job that wants many nodes is offered none, all, and a few numbers of new nodes between.
WIDTHS_LIMIT = 5


@dataclass(slots=True)
class Search:
    """The place with the least burden so far, below what is asked for, and how many plays are left.

    `outdone` are places with their burdens, or with the least that these come to; the best place is among them too.
    """

    worths: Mapping[PhaseKind, float]
    below_usd: float
    tries: int
    wins: int
    general: int = 1  # as how many plays a general one counts
    best: Plan | None = None
    outdone: list[tuple[str, Widening, float]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.tries <= 0 or self.wins <= 0

    def offer(self, plan: Plan, burden: float) -> None:
        if burden < self.below_usd - USD_ROUNDING:
            self.best, self.below_usd = plan, burden

    def tell(self, trail: Trail) -> None:
        """Leaves in the trail the places that the best one outdid."""
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
        candidates, cluster = self._open(newcomer, snapshot, trail, below_usd), snapshot.cluster
        worth = most_worth_usd_per_hour(job, cluster)  # of the job's work, if nobody is slowed
        # Where one pool serves both phases, a group of its own may need fewer nodes than some ways to widen another.
        alone = self._alone(job, snapshot, trail) if cluster.shared else None
        tries, wins = (TRIES, WINS) if below_usd == inf else (TRIES_TO_MOVE, WINS_TO_MOVE)
        search = Search(worth_by_phase(job, cluster), below_usd, tries, wins)
        if below_usd == inf and alone is None and not has_nodes_apart(job, snapshot):
            search.tries, search.general = TRIES_IN_LINE, TRIES_IN_LINE // TRIES
        if alone is not None:
            search.offer(alone, alone.added_usd_per_hour - worth)
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
        """Plays the likeliest places with these new nodes, except those that can't be the best."""
        usd, member, cluster = added.added_usd_per_hour, newcomer.member, snapshot.cluster
        worths, wanted = search.worths, (member.job.rollout.nodes, member.job.train.nodes)
        for group, rollout, train in places(newcomer, added, candidates, cluster):
            idle = idle_usd(group, cluster, self.forecaster)
            most = _most_gained(rollout, worths[ROLLOUT], wanted[0], idle)
            least = usd - (most + _most_gained(train, worths[TRAIN], wanted[1], idle))
            if least >= search.below_usd:
                search.outdone.append((group.id, added, least))
                continue
            placement = Placement(rollout, train)
            plan = packed(group, Member(member.job, placement, member.limit_s), added)
            is_quick = search.general == 1 or all(is_plain(part.jobs, plan.group.order) for part in plan.group.parts)
            search.tries -= 1 if is_quick else search.general
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
        """The groups that may take one more job. The trail, if there is one, gets the reasons why others can't."""
        member, rollout, train = newcomer
        least = None if trail is not None else self._least_burdens(member.job, snapshot)
        roams, rollout_need, train_need = member.job.rollout_spares > 0, rollout.need, train.need
        frozen, bears_company, max_group = snapshot.frozen, member.bears_company, self.max_group
        found: list[Open] = []
        closed: list[Closed] = []
        for group in snapshot.groups.values():
            if least is not None and (group.id in frozen or least(group) >= below_usd + USD_ROUNDING):
                continue
            members, hermit, free, of_rollout, of_train = group.glance
            pool_free = free[0] if roams else -1.0
            if members >= max_group:
                closed.append((Verdict.FULL, group, members, max_group))
            elif hermit is not None or not bears_company:
                closed.append((Verdict.NO_SLACK, group, 0.0, 0.0))
            elif not (
                pool_free >= rollout_need
                or (of_rollout[1] + rollout_need <= MOST and rollout.finds(group, of_rollout))
                or (of_train[1] + train_need <= MOST and train.finds(group, of_train))
            ):
                closed.append((Verdict.SHARE, group, min(rollout_need, train_need), max(free)))
            elif frozen and group.id in frozen:
                closed.append((Verdict.FROZEN, group, 0.0, 0.0))
            else:
                nodes, rollout_share, train_share = of_rollout[0], of_rollout[1], of_train[1]  # by name takes longer
                found.append((group, pool_free, nodes, rollout_share, train_share))
        if trail is not None:
            _record(closed, newcomer, trail)
        return found

    def _least_burdens(self, job: JobSpec, snapshot: Snapshot) -> Callable[[Group], float]:
        """The least that taking the job adds to a group's burden: each of the job's nodes is there already, or new."""
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


def has_nodes_apart(job: JobSpec, snapshot: Snapshot) -> bool:
    """Whether the pools can give each phase of the job nodes of its own."""
    cluster, skip = snapshot.cluster, job.rollout.nodes if snapshot.cluster.shared else 0
    rollout = snapshot.offer(cluster.rollout, job.rollout.nodes)
    return rollout is not None and snapshot.offer(cluster.train, job.train.nodes, skip) is not None


def _most_gained(nodes: tuple[str, ...], worth: float, wanted: int, idle_usd: Mapping[str, float]) -> float:
    """What a phase may add to the worth of the work: on no node more than is now left undone there."""
    gained = 0.0
    for node in nodes:
        idle = idle_usd.get(node, worth)
        gained += idle if idle < worth else worth
    most = worth * wanted
    return gained if gained < most else most


def _is_apart(placement: Placement) -> bool:
    """Whether no node must hold the state of both phases, so that it was enough to check each phase's memory."""
    return set(placement.rollout).isdisjoint(placement.train)


@lru_cache(maxsize=1024)
def _widths_by_price(
    rollout_nodes: int, train_nodes: int, rollout_usd: float, train_usd: float
) -> tuple[tuple[float, int, int], ...]:
    """What adding nodes to a group costs, and how many of each kind: fewer than a new group has, cheapest first."""
    wanted = rollout_nodes, train_nodes
    sizes = [(rollout, train) for rollout in _widths(wanted[0]) for train in _widths(wanted[1])]
    priced = [(size[0] * rollout_usd + size[1] * train_usd, *size) for size in sizes if size != wanted]
    return tuple(sorted(priced, key=itemgetter(0)))


def _widths(wanted: int) -> list[int]:
    if wanted < WIDTHS_LIMIT:
        return list(range(wanted + 1))
    return sorted({round(wanted * i / (WIDTHS_LIMIT - 1)) for i in range(WIDTHS_LIMIT)})


Closed = tuple[Verdict, Group, float, float]


def _record(closed: list[Closed], newcomer: Newcomer, trail: Trail) -> None:
    """Leaves the closed groups in the trail: all of a few, or a count and the nearest miss of many."""
    if len(closed) <= TRAIL_LIMIT:
        for entry in closed:
            trail.add(_as_candidate(entry, newcomer))
        return
    for verdict in dict.fromkeys(entry[0] for entry in closed):
        alike = [entry for entry in closed if entry[0] is verdict]
        nearest = min(alike, key=lambda entry: entry[2] - entry[3])
        trail.more[verdict] = (len(alike), _as_candidate(nearest, newcomer))


def _as_candidate(entry: Closed, newcomer: Newcomer) -> Candidate:
    verdict, group, value, limit = entry
    subject = ""
    if verdict is Verdict.NO_SLACK:
        hermit = group.hermit if newcomer.member.bears_company else newcomer.member
        subject = hermit.job.id if hermit is not None else ""
    if verdict is Verdict.SHARE:
        _, _, _, of_rollout, of_train = group.glance
        for phase, outline in ((newcomer.rollout, of_rollout), (newcomer.train, of_train)):
            short = phase.short_of_memory(group, outline)
            if short is not None:
                verdict = Verdict.MEMORY
                subject, value, limit = short
    return Candidate(group.id, Strategy.DIRECT, 0.0, verdict, subject, value, limit)
