"""A group as the play sees it: which jobs are linked through nodes, and how long each phase holds them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.mux.order import Order, Pause, aim_ms
from rollmux.mux.placed import ROLLOUT, Member
from rollmux.mux.play import JobPlay, TailPlay


class Part(NamedTuple):
    """Linked members: their indexes, each as the play sees it, and the short names that their nodes have there.

    `switching` says that switching takes some of them time, so that a newcomer changes how long others hold nodes.
    """

    indexes: tuple[int, ...]
    jobs: tuple[JobPlay, ...]
    names: Mapping[str, str]
    switching: bool
    order: Order

    def joined_by(self, index: int, member: Member) -> "Part":
        """The part with one more member that is linked to these, where switching costs nothing."""
        names = dict(self.names)
        jobs = (*self.jobs, _as_play(member, names, {}, self.order))
        return Part((*self.indexes, index), jobs, names, False, self.order)


def linked_parts(members: Sequence[Member], order: Order) -> tuple[Part, ...]:
    """The sets of linked members: members of different sets don't slow each other."""
    switching = any(_switches(member) for member in members)
    crowd = Counter(n for m in members for part in _parts(m) for n in part) if switching else {}
    return tuple(_part(members, indexes, crowd, switching, order) for indexes in _components(members))


def grown(parts: tuple[Part, ...], index: int, member: Member) -> tuple[Part, ...] | None:
    """The parts with one more member, where they follow from `parts`; None where they must be made anew."""
    part = parts[0]
    if len(parts) != 1 or part.switching or _switches(member):
        return None
    rollout, train = _parts(member)
    if train[0] in part.names or rollout[0] in part.names:
        return (part.joined_by(index, member),)
    return None


def with_aims(parts: tuple[Part, ...], members: Sequence[Member], changed: Collection[str]) -> tuple[Part, ...]:
    """The same parts where the `changed` members have other limits: a play sees these only in when jobs are due."""
    if parts and parts[0].order is not Order.URGENCY:
        return parts
    found = []
    for part in parts:
        jobs = [*part.jobs]
        for place, index in enumerate(part.indexes):
            member = members[index]
            if member.job.id in changed:
                jobs[place] = jobs[place]._replace(aim_ms=_aim_ms(member))
        found.append(part._replace(jobs=tuple(jobs)))
    return tuple(found)


def _part(
    members: Sequence[Member], indexes: Sequence[int], crowd: Mapping[str, int], switching: bool, order: Order
) -> Part:
    names: dict[str, str] = {}
    jobs = tuple([_as_play(members[i], names, crowd, order) for i in indexes])
    return Part(tuple(indexes), jobs, names, switching, order)


def _as_play(member: Member, names: dict[str, str], crowd: Mapping[str, int], order: Order) -> JobPlay:
    """A member as the play sees it, its nodes renamed by first use: equal plays have equal names.

    `crowd` counts the phases pinned to each node; it may be empty where switching costs nothing.
    """
    job, placement, urgent = member.job, member.placement, order is Order.URGENCY
    rollout, train = placement.rollout, placement.train
    rollout_ms, train_ms, sync_ms, rollout_pause, train_pause = _timing(job)
    if crowd:
        rollout_ms, train_ms = (
            held_ms(job.rollout, _is_shared(rollout, crowd)),
            held_ms(job.train, _is_shared(train, crowd)),
        )
    return JobPlay(
        rollout_ms,
        train_ms,
        sync_ms,
        _named(rollout, names),
        _named(train, names),
        job.staleness,
        job.elastic_rollout and len(rollout) > 1,
        _tail(job, job.holds(ROLLOUT, len(rollout))) if job.tail else None,
        _aim_ms(member) if urgent else 0,
        rollout_pause if urgent else None,
        train_pause if urgent else None,
        job.holds(ROLLOUT, len(rollout)) if job.rollout_spares else 0,
    )


def _aim_ms(member: Member) -> int:
    return aim_ms(member.limit_s, member.job.solo_s, member.job.iterations)


def _named(nodes: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    if len(nodes) == 1:
        (node,) = nodes
        name = names.get(node)
        if name is None:
            name = names[node] = str(len(names))
        return (name,)
    return tuple([names.setdefault(node, str(len(names))) for node in nodes])


def _timing(job: JobSpec) -> tuple[int, int, int, Pause | None, Pause | None]:
    """How long the job's phases take without switching, and what pausing them takes: asked for with every play."""
    known: tuple[int, int, int, Pause | None, Pause | None] | None = job.__dict__.get("_timing")
    if known is None:
        known = job.__dict__["_timing"] = (
            held_ms(job.rollout, shared=False),
            held_ms(job.train, shared=False),
            to_ms(job.sync_s),
            pause_of(job.rollout),
            pause_of(job.train),
        )
    return known


def _switches(member: Member) -> bool:
    return bool(member.job.rollout.switch_s or member.job.train.switch_s)


def _parts(member: Member) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return member.placement.rollout, member.placement.train


def _is_shared(nodes: tuple[str, ...], crowd: Mapping[str, int]) -> bool:
    return bool(crowd) and any(crowd[node] > 1 for node in nodes)


def held_ms(phase: PhaseSpec, shared: bool) -> int:
    """How long a phase holds its nodes: state moves in and out only where another phase is pinned beside it."""
    held_s = phase.duration_s if phase.measured_s is None else phase.measured_s
    return max(1, to_ms(held_s + phase.switch_s if shared else held_s))


def pause_of(phase: PhaseSpec) -> Pause | None:
    """What pausing the phase takes where others are pinned beside it; None if it can't pause."""
    if phase.pause_s is None:
        return None
    return Pause(to_ms(phase.offload_s), to_ms(phase.load_s + phase.pause_s))


def to_ms(seconds: float) -> int:
    """Whole milliseconds, never more than given: alone, a job must not seem slower than it says."""
    return int(seconds * 1000 + 1e-6)


def _tail(job: JobSpec, nodes: int) -> TailPlay | None:
    tail = job.tail
    if tail is None or tail.worst_keep_nodes >= nodes:
        return None
    speed = job.rollout.planned_s / job.rollout.duration_s
    bulk_s = job.rollout.load_s + tail.bulk_s * speed
    return TailPlay(to_ms(bulk_s), to_ms(tail.move_s), tail.worst_keep_nodes)


def _components(members: Sequence[Member]) -> list[list[int]]:
    """The sets of members that are linked through shared nodes; members of different sets don't slow each other."""
    places = [member.placement for member in members]
    train_hub, rollout_hub = places[0].train[0], places[0].rollout[0]
    if all(train_hub in place.train for place in places) or all(rollout_hub in place.rollout for place in places):
        return [list(range(len(members)))]
    home: dict[str, list[int]] = {}
    for i, place in enumerate(places):
        nodes = place.rollout + place.train
        linked = {id(home[n]): home[n] for n in nodes if n in home}
        if len(linked) == 1:  # one more member for a set that is there already
            (part,) = linked.values()
            part.append(i)
            for node in nodes:
                home[node] = part
            continue
        merged = sorted([i, *(j for part in linked.values() for j in part)])
        for j in merged:
            for node in places[j].rollout + places[j].train:
                home[node] = merged
    distinct = {id(part): part for part in home.values()}
    return sorted(distinct.values())
