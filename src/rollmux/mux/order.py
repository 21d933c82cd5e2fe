"""Whose turn it is at each node of a group: the order policies.

The forecast and the live group ask the same object, so what is predicted is what runs. A claim gets all its nodes at
once (an elastic one may start on some and grow onto the rest; a roaming one takes as many as it wants out of more).
Each policy ranks the claims of a group by one order for all nodes, so two gangs never hold half of each other's nodes.
"""

from bisect import insort
from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from rollmux.mux.totals import total


class Order(Enum):
    """How a group serves the phases that wait."""

    FIFO = "fifo"
    ROUND_ROBIN = "round-robin"
    URGENCY = "urgency"

    # Members are singletons, and every play that is remembered has one in its key: the default hashes the name.
    __hash__ = object.__hash__


class Pause(NamedTuple):
    """What a pause takes: until the nodes are free, and again when the phase goes on where it was."""

    off_ms: int
    on_ms: int


class Claim:
    """The standing claim of one job's kind of phase on its pinned nodes; it is idle, waits, or holds nodes.

    It takes all of its nodes, or whichever of them are free if it `wants` fewer than it has.
    """

    __slots__ = (
        "elastic",
        "ends_at",
        "held",
        "latest",
        "nodes",
        "pause",
        "pausing",
        "place",
        "rounds",
        "tail",
        "wants",
    )

    def __init__(self, nodes: tuple[str, ...], place: tuple[int, int], elastic: bool = False, wants: int = 0) -> None:
        self.nodes = nodes
        self.wants = wants or len(nodes)
        self.place = place  # (order of joining the group, rollout before train): breaks every tie
        self.elastic = elastic
        self.held: tuple[str, ...] = ()
        self.tail = False  # shrunk to its long tail: what it still holds does not keep others waiting
        self.rounds = 0  # phases granted so far, for strict orders
        self.latest = 0  # when it must begin to keep its job's limit, in milliseconds; for orders by urgency
        self.ends_at = 0  # when what it holds is planned to be free
        self.pause: Pause | None = None  # what pausing would take; None while it can't
        self.pausing = False  # it is making way already

    @property
    def roams(self) -> bool:
        """Whether it has nodes to choose from."""
        return self.wants < len(self.nodes)


C = TypeVar("C", bound=Claim)
Granted = tuple[C, tuple[str, ...]]


class Turns(Generic[C]):
    """Who holds each node and who is next: first come, first served at every node."""

    __slots__ = ("claims", "holders", "queues")

    def __init__(self) -> None:
        self.claims: list[C] = []
        self.holders: dict[str, C | None] = {}
        self.queues: dict[str, list[C]] = {}

    def enter(self, claim: C) -> None:
        """A job is pinned: its nodes are known from here on."""
        self.claims.append(claim)
        for node in claim.nodes:
            if node not in self.holders:
                self.holders[node] = None
                self.queues[node] = []

    def leave(self, claims: Iterable[C]) -> list[Granted[C]]:
        """A job is unpinned, whatever it was doing; nodes that nobody is pinned to are forgotten."""
        nodes: dict[str, None] = {}
        for claim in claims:
            self.claims.remove(claim)
            self._forget_wait(claim)
            for node in claim.held:
                self.holders[node] = None
            claim.held, claim.tail = (), False
            nodes.update(dict.fromkeys(claim.nodes))
        pinned = {node for other in self.claims for node in other.nodes}
        for node in nodes:
            if node not in pinned:
                del self.holders[node], self.queues[node]
        return self._serve(node for node in nodes if node in pinned)

    def next_at(self, node: str) -> C | None:
        """The waiting claim that this node serves next."""
        queue = self.queues[node]
        return queue[0] if queue else None

    def memory(self) -> tuple[int, ...]:
        """What this order remembers beside holders and queues."""
        return ()

    def request(self, claim: C) -> tuple[str, ...]:
        """The claim waits from now on; returns the nodes that it gets at once."""
        self._line_up(claim)
        return self._take(claim)

    def to_pause(self, claim: C, now_ms: int) -> tuple[C, ...]:
        """The holders that shall make way for this claim, which waits."""
        return ()

    def _line_up(self, claim: C) -> None:
        for node in claim.nodes:
            self.queues[node].append(claim)

    def release(self, claim: C, nodes: tuple[str, ...] | None = None) -> list[Granted[C]]:
        """The claim gives back all it holds, or some of it as its tail begins; returns what others get."""
        holders = self.holders
        if nodes is None:
            nodes = claim.held
            if len(nodes) < claim.wants:
                self._forget_wait(claim)
            claim.held, claim.tail = (), False
        else:
            claim.held = tuple(node for node in claim.held if node not in nodes)
            claim.tail = True
        for node in nodes:
            holders[node] = None
        return self._serve(claim.nodes)

    def give_way(self, claim: C) -> list[Granted[C]]:
        """The claim gives back all it holds, and waits again; returns what is granted.

        It lines up before any other is served. But a gang that does not roam lines up last: it would keep nodes from
        others that are of no use to it without the rest.
        """
        held, claim.held = claim.held, ()
        for node in held:
            self.holders[node] = None
        if claim.roams or len(claim.nodes) == 1:
            self._line_up(claim)
            return self._serve(claim.nodes)
        granted, got = self._serve(claim.nodes), self.request(claim)
        return [*granted, (claim, got)] if got else granted

    def withdraw(self, claims: Iterable[C]) -> list[Granted[C]]:
        """These claims stop waiting, and keep what they hold; returns what others get."""
        claims = list(claims)
        for claim in claims:
            self._forget_wait(claim)
        return self._serve(dict.fromkeys(node for claim in claims for node in claim.nodes))

    def put_off(self, claim: C) -> list[Granted[C]]:
        """The phase before this claim in its job's iteration has to be done again; returns what others get."""
        return []

    def freed_by_tail(self, claim: C, keep: int) -> tuple[str, ...]:
        """The nodes to free if this rollout shrank to `keep` of its nodes; () where nobody could start on them."""
        held = claim.held
        if claim.tail or keep >= len(held) or len(held) < claim.wants:
            return ()
        for node in held:
            successor = self.next_at(node)
            if successor is None:
                continue
            wanted = [n for n in held if n in successor.nodes and self.next_at(n) is successor]
            others = [n for n in held if n not in wanted]
            freed = (wanted + others)[: len(held) - keep]
            if self._could_start(successor, claim, freed):
                return tuple(n for n in held if n in freed)
        return ()

    def _could_start(self, successor: C, tail: C, freed: list[str]) -> bool:
        if successor.held:
            return any(node in successor.nodes for node in freed)
        if successor.wants < len(successor.nodes):
            free = [node for node in successor.nodes if self.holders[node] is None or node in freed]
            return total(self.next_at(node) is successor for node in free) >= successor.wants
        some = False
        for node in successor.nodes:
            holder = self.holders[node]
            if self.next_at(node) is not successor:
                return False
            if holder is None or node in freed:
                some = True
            elif not (successor.elastic and (holder is tail or holder.tail)):
                return False
        return some

    def _take(self, claim: C) -> tuple[str, ...]:
        """Grants what the claim can have now."""
        holders, queues = self.holders, self.queues
        if claim.wants < len(claim.nodes):
            return self._take_some(claim)
        if claim.held:
            got = tuple(
                n for n in claim.nodes if claim in queues[n] and holders[n] is None and self.next_at(n) is claim
            )
        else:
            free = []
            for node in claim.nodes:
                if self.next_at(node) is not claim:
                    return ()
                holder = holders[node]
                if holder is None:
                    free.append(node)
                elif not (claim.elastic and holder.tail):
                    return ()
            got = tuple(free)
            if got:
                claim.rounds += 1
        for node in got:
            holders[node] = claim
            queues[node].remove(claim)
        claim.held += got
        return got

    def _take_some(self, claim: C) -> tuple[str, ...]:
        """As many nodes as a roaming claim wants, once so many of its own are free for it."""
        holders, queues = self.holders, self.queues
        free = [node for node in claim.nodes if holders[node] is None and self.next_at(node) is claim]
        if len(free) < claim.wants:
            return ()
        for node in claim.nodes:
            queues[node].remove(claim)
        claim.held = tuple(free[: claim.wants])
        for node in claim.held:
            holders[node] = claim
        claim.rounds += 1
        return claim.held

    def _serve(self, nodes: Iterable[str]) -> list[Granted[C]]:
        granted: list[Granted[C]] = []
        to_serve = list(nodes)
        for node in to_serve:
            holder = self.holders[node]
            if holder is None or holder.tail:
                claim = self.next_at(node)
                if claim is not None:
                    got = self._take(claim)
                    if got:
                        granted.append((claim, got))
                        if claim.roams:  # it no longer keeps others from the rest of its nodes
                            to_serve += [other for other in claim.nodes if other not in got]
        return granted

    def _forget_wait(self, claim: C) -> None:
        for node in claim.nodes:
            queue = self.queues[node]
            if claim in queue:
                queue.remove(claim)


class StrictTurns(Turns[C]):
    """Round-robin that never skips: each claim is served once per round, in the order of joining.

    A node waits for the claim whose turn it is, even while others ask. To compare with, not to live by.
    """

    __slots__ = ()

    def enter(self, claim: C) -> None:
        """The newcomer begins in the round of the claims beside it. Sets of claims that only it links are set level."""
        beside = [other for other in self.claims if _linked(other, claim)]
        first = max((other.rounds for other in beside), default=0)
        while beside:
            part = self._part_of(beside[0])
            behind = first - max(other.rounds for other in beside if other in part)
            for other in part:
                other.rounds += behind
            beside = [other for other in beside if other not in part]
        claim.rounds = first
        super().enter(claim)

    def put_off(self, claim: C) -> list[Granted[C]]:
        """A round later, like the phase that it waits for: else both might wait for each other at one node."""
        claim.rounds += 1
        return self._serve(claim.nodes)

    def _part_of(self, claim: C) -> list[C]:
        """All claims that are linked with this one, directly or through others."""
        part = [claim]
        for one in part:
            part += [other for other in self.claims if other not in part and _linked(other, one)]
        return part

    def leave(self, claims: Iterable[C]) -> list[Granted[C]]:
        granted = super().leave(claims)
        return granted + self._serve(list(self.holders))

    def memory(self) -> tuple[int, ...]:
        floor = min((claim.rounds for claim in self.claims), default=0)
        return tuple(claim.rounds - floor for claim in self.claims)

    def next_at(self, node: str) -> C | None:
        pinned = [claim for claim in self.claims if node in claim.nodes and node not in claim.held]
        if not pinned:
            return None
        due = min(pinned, key=_round)
        return due if due in self.queues[node] else None


# A job that is behind its limit makes up for so many iterations' time at most. A job that is ahead keeps no lead.
DEBT = 2

# Iterations are due a little before the limit says, so that some late by chance are made up for.
AIM = 0.98


# No job's iterations are due further apart than so many times what one takes alone, however patient the job is: the
# others gain nothing by more.
PATIENCE = 4


# A job of few iterations can't make up for much. So iterations are due a little closer together than they must be done:
# over a job's life by the time of EARLY iterations in all, for each iteration by half of one at most.
EARLY, EARLY_AT_MOST = 3, 0.5


def aim_ms(limit_s: float, solo_s: float, iterations: int | None) -> int:
    """How far apart a job's iterations are due, by the slowest that its SLO allows and how long it takes alone."""
    early = min(EARLY / iterations, EARLY_AT_MOST) if iterations else 0.0
    aim_s = min(limit_s, PATIENCE * solo_s) * AIM - solo_s * early
    return max(1, int(max(aim_s, solo_s) * 1000 + 1e-6))


def next_due(due_ms: int, now_ms: int, aim_ms: int) -> int:
    """When the next iteration is due, if one that was due at `due_ms` is done now."""
    if due_ms > now_ms:
        return now_ms + aim_ms
    return aim_ms + (due_ms if due_ms > now_ms - DEBT * aim_ms else now_ms - DEBT * aim_ms)


class UrgentTurns(Turns[C]):
    """The most urgent claim first: the one that must begin the soonest to keep its job's limit.

    A claim that would begin too late makes a holder pause that is less urgent and can pause. Urgency does not change
    before the phase is done, so that two claims never make each other pause in turns.
    """

    __slots__ = ()

    def _line_up(self, claim: C) -> None:
        for node in claim.nodes:
            insort(self.queues[node], claim, key=urgency)

    def to_pause(self, claim: C, now_ms: int) -> tuple[C, ...]:
        if claim.held:
            return ()
        if claim.wants < len(claim.nodes):
            return self._some_to_pause(claim, now_ms)
        found: dict[C, None] = {}
        for node in claim.nodes:
            holder = self.holders[node]
            if self.next_at(node) is not claim:
                return ()
            if holder is not None and not holder.pausing:
                if not _makes_way(holder, claim, now_ms):
                    return ()
                found[holder] = None
        return tuple(found)

    def _some_to_pause(self, claim: C, now_ms: int) -> tuple[C, ...]:
        """Of the holders that would make way for a roaming claim the least urgent, until the claim lacks no node."""
        lacks, able = claim.wants, dict[C, int]()
        for node in claim.nodes:
            if self.next_at(node) is not claim:
                continue
            holder = self.holders[node]
            if holder is None or holder.pausing:
                lacks -= 1
            elif _makes_way(holder, claim, now_ms):
                able[holder] = able.get(holder, 0) + 1
        found: list[C] = []
        for holder in sorted(able, key=urgency, reverse=True):
            if lacks <= 0:
                break
            found.append(holder)
            lacks -= able[holder]
        return tuple(found) if lacks <= 0 else ()


def urgency(claim: Claim) -> tuple[int, tuple[int, int]]:
    """The key by which waiting claims are ranked, the smallest first."""
    return claim.latest, claim.place


def _makes_way(holder: Claim, claim: Claim, now_ms: int) -> bool:
    """Whether the holder can pause, and the claim is more urgent, would be late, and would wait longer than a pause."""
    pause = holder.pause
    return (
        pause is not None
        and urgency(claim) < urgency(holder)
        and holder.ends_at > max(claim.latest, now_ms + pause.off_ms + pause.on_ms)
    )


def _linked(one: Claim, other: Claim) -> bool:
    return one.place[0] == other.place[0] or not set(one.nodes).isdisjoint(other.nodes)


def _round(claim: Claim) -> tuple[int, tuple[int, int]]:
    growing = bool(claim.held) and not claim.tail
    return claim.rounds - growing, claim.place


def turns_for(order: Order) -> Turns[C]:
    """A fresh book of turns under this order."""
    return _TURNS[order]()


_TURNS: dict[Order, type[Turns[Any]]] = {
    Order.FIFO: Turns,
    Order.ROUND_ROBIN: StrictTurns,
    Order.URGENCY: UrgentTurns,
}
