"""The ways in which groups could take a job in with some new nodes, the likeliest first.

Of many groups most are never looked into: what is known of a group as a whole says how tight its likeliest way is at
least, and its turn comes by that. The ways come in the same order as if all of them had been found beforehand.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import NOWHERE, ROLLOUT, TRAIN, Member
from rollmux.mux.policies.attempt import Widening, choices
from rollmux.mux.policies.seeker import MOST, NEVER, NONE, Seeker, crowded

# The largest part of their time that may be promised of the nodes over which a rollout roams, taken together. Of 530
# placements that would promise more than this, 4 % worked.
POOL_FULL = 0.94

# A group that may take the job; the time that its rollout nodes together have to spare, counted in nodes (a negative
# number if the job's rollout may not roam); how many rollout nodes it has; and the least share of time that SLOs need
# of any rollout node, and of any training node.
Open = tuple[Group, float, int, float, float]


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


class Wish(NamedTuple):
    """What a job wants of a group beside some new nodes: how many of the rollout and training nodes that are there.

    A rollout that roams needs `need` nodes' worth of their time.
    """

    newcomer: Newcomer
    added: Widening
    rollout: int
    train: int
    need: float

    @staticmethod
    def of(newcomer: Newcomer, added: Widening) -> "Wish":
        job, new_rollout = newcomer.member.job, len(added.rollout)
        need = newcomer.member.share(ROLLOUT) * job.rollout.nodes - new_rollout
        return Wish(newcomer, added, job.rollout.nodes - new_rollout, job.train.nodes - len(added.train), need)


class Way(NamedTuple):
    """How a group could take the job in: how tight this is, and the nodes from which those of each phase are chosen.

    Without `rollout`, the rollout roams.
    """

    tight: int
    train: tuple[str, ...]
    rollout: tuple[str, ...] | None


# What a group has free, its number, a way's place among its ways, the group, and this way; None in place of the way
# where the group is still to be looked into.
Chance = tuple[float, int, int, Open, Way | None]
# A group, and the nodes for the rollout and for the training.
Place = tuple[Group, tuple[str, ...], tuple[str, ...]]


def places(newcomer: Newcomer, added: Widening, candidates: list[Open], cluster: Cluster) -> Iterator[Place]:
    """Where the job could go with these new nodes, the likeliest places and the fullest groups first."""
    wish = Wish.of(newcomer, added)
    by_tightness = _chances(wish, candidates, cluster)
    for tight, chances in enumerate(by_tightness):
        chances.sort()
        for free_usd, number, _, candidate, known in chances:
            for place, way in enumerate(_ways(wish, candidate) if known is None else (known,)):
                if way.tight == tight:
                    yield from _of_way(wish, candidate[0], way)
                else:
                    by_tightness[way.tight].append((free_usd, number, place, candidate, way))


def _chances(wish: Wish, candidates: list[Open], cluster: Cluster) -> list[list[Chance]]:
    """The groups that may have a way, by how tight it is at least: bounds on what `_ways` would say."""
    (_, rollout, train), added, old_rollout, old_train, need = wish
    new_rollout, train_need = len(added.rollout), train.need if old_train else -inf
    found: list[list[Chance]] = [[] for _ in range(NEVER)]
    for number, candidate in enumerate(candidates):
        group, pool_free, nodes, rollout_share, train_share = candidate
        if train_share + train_need > MOST:  # true of most groups, where there are many
            continue
        tight = train.least_tight(train_share) if old_train else 0
        pinned = rollout.least_tight(rollout_share) if old_rollout else 0
        least = pinned if pinned > tight else tight
        if pool_free >= 0 and nodes > old_rollout:  # the rollout may roam
            load = 1 - (pool_free - need) / (nodes + new_rollout)
            least = min(least + (nodes > 1), max(tight, crowded(load)) if load <= POOL_FULL else NEVER)
        if least < NEVER:
            found[least].append((group.free_usd(cluster), number, 0, candidate, None))
    return found


def _ways(wish: Wish, candidate: Open) -> list[Way]:
    """How this group could take the job in.

    A rollout that may roam over more than one node does so, and is pinned only where that is likelier by far.
    """
    newcomer, added, old_rollout, old_train, need = wish
    group, pool_free, nodes, _, _ = candidate
    tight, train = newcomer.train.nodes(group) if old_train else NONE
    if len(train) < old_train:
        return []
    found: list[Way] = []
    roams = pool_free >= 0 and nodes > old_rollout
    if roams:
        load = 1 - (pool_free - need) / (nodes + len(added.rollout))
        if load <= POOL_FULL:
            found.append(Way(max(tight, crowded(load)), train, None))
    rollout_tight, rollout = newcomer.rollout.nodes(group) if old_rollout else NONE
    if len(rollout) >= old_rollout:
        found.append(Way(max(tight, rollout_tight) + (roams and nodes > 1), train, rollout))
    return found


def _of_way(wish: Wish, group: Group, way: Way) -> Sequence[Place]:
    """The places of one way: mostly one."""
    newcomer, added, old_rollout, old_train, _ = wish
    _, train, rollout = way
    if rollout is None:
        pool = newcomer.rollout.pool(group)[: old_rollout + newcomer.member.job.rollout_spares]
        rollouts = [added.rollout + pool] if len(pool) > old_rollout else []
    elif len(rollout) == old_rollout:
        rollouts = [rollout + added.rollout]
    else:
        rollouts = [nodes + added.rollout for nodes in choices(rollout, group.uses, old_rollout)]
    if len(train) == old_train and len(rollouts) == 1:
        return ((group, rollouts[0], train + added.train),)
    trains = choices(train, group.uses, old_train)
    return [(group, rollout, nodes + added.train) for nodes in trains for rollout in rollouts]
