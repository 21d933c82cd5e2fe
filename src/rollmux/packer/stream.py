"""When a rollout gives GPUs to training before its end: which replicas, and where their unfinished requests go.

Invariant: groups of parallel ranks are freed whole or not at all, each unfinished request of a freed replica moves
exactly once, to one that stays, and no replica is left with a projected peak above its KV room.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil

from rollmux.checks import MAX_COUNT, Checks
from rollmux.packer.kv_peak import KnownLengths, peak_tokens

COUNT_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """As in the paper: at every 5 % from 20 % to 50 % completion the policy asks whether to free half of the GPUs.

    A length is projected as the `quantile` of the known longer responses, or as `cap_tokens` where fewer than `support`
    are known. `room_part` keeps some KV room back, since moved requests are computed again and so lag behind.
    """

    cap_tokens: int
    first: float = 0.2
    last: float = 0.5
    every: float = 0.05
    share: float = 0.5
    quantile: float = 0.95
    support: int = 20
    room_part: float = 0.95

    def __post_init__(self) -> None:
        checks = Checks("stream")
        checks.whole("cap_tokens", self.cap_tokens, 1, MAX_COUNT, "give the most tokens of a response")
        if checks.number("first", self.first, 0.0, 1.0, "0.2 begins to ask when 20 % of the responses are done"):
            checks.number("last", self.last, self.first, 1.0, "give at least first")
        checks.number("every", self.every, 1e-3, 1.0, "0.05 asks at every 5 %")
        checks.number("share", self.share, 0.01, 0.99, "0.5 frees half of the GPUs")
        checks.number("quantile", self.quantile, 0.0, 1.0, "1 takes the longest that is known")
        checks.whole("support", self.support, 1, MAX_COUNT, "1 believes a single longer response")
        checks.number("room_part", self.room_part, 0.01, 1.0, "1 plans with all KV room")
        checks.require()


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine of the rollout. Replicas with the same `group` share ranks or a node, and are freed together."""

    id: str
    gpus: int
    kv_room_tokens: int
    group: str | None = None

    @property
    def unit(self) -> tuple[bool, str]:
        """What is freed as a whole: the replica's group, or the replica alone."""
        return (False, self.id) if self.group is None else (True, self.group)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request that a replica still generates, or that waits there."""

    id: str
    replica: str
    prompt_tokens: int
    tokens: int

    @property
    def held(self) -> int:
        """The tokens whose KV the request holds. If it moves, they are computed again."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """A rollout between two decode steps; `known_lengths` are those of responses of earlier, whole rounds."""

    done: int
    total: int
    replicas: tuple[Replica, ...]
    unfinished: tuple[Unfinished, ...]
    known_lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks = Checks("rollout")
        if checks.whole("total", self.total, 1, MAX_COUNT, "count the responses that the round waits for"):
            checks.whole("done", self.done, 0, self.total, "count the responses that are done")
        places = {replica.id for replica in self.replicas}
        _distinct(checks, "replicas", [replica.id for replica in self.replicas])
        _distinct(checks, "unfinished", [request.id for request in self.unfinished])
        for place, replica in enumerate(self.replicas):
            checks.whole(f"replicas[{place}].gpus", replica.gpus, 1, 1024, "give its GPUs")
            checks.whole(f"replicas[{place}].kv_room_tokens", replica.kv_room_tokens, 0, MAX_COUNT, "give tokens")
        for place, request in enumerate(self.unfinished):
            for name in ("prompt_tokens", "tokens"):
                checks.whole(f"unfinished[{place}].{name}", getattr(request, name), 0, MAX_COUNT, "give tokens")
            if request.replica not in places:
                checks.report(f"unfinished[{place}].replica", request.replica, "a replica's id", "list its replica")
        checks.require()


class Why(Enum):
    """Why a rollout keeps all its GPUs for now."""

    TOO_EARLY = "too early"
    TOO_LATE = "too late"
    NOTHING_TO_FREE = "nothing to free"  # no group is small enough, or freeing it would leave no replica
    NO_ROOM = "no room"  # the projected peak of some replica that stays would be above its KV room


@dataclass(frozen=True, slots=True)
class Stay:
    why: Why


@dataclass(frozen=True, slots=True)
class Move:
    """A request changes its replica: its tokens are kept, its KV is recomputed."""

    request: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """The replicas that stay, those that are freed, and the moves. `peaks` are projected, for each that stays."""

    keep: tuple[str, ...]
    free: tuple[str, ...]
    moves: tuple[Move, ...]
    peaks: tuple[tuple[str, int], ...]
    recomputed_tokens: int


class StreamPolicy:
    """A pure function of a snapshot; ask it when a check point is passed, until it shrinks."""

    def __init__(self, settings: StreamSettings) -> None:
        self.settings = settings

    def due(self, before: int, done: int, total: int) -> bool:
        """Whether a check point was passed when the responses done went from `before` to `done`."""
        return done <= self._count(self.settings.last, total) and any(
            before < point <= done for point in self.check_points(total)
        )

    def check_points(self, total: int) -> tuple[int, ...]:
        """How many responses are done at each check point, in ascending order."""
        settings = self.settings
        steps = int((settings.last - settings.first) / settings.every + COUNT_ROUNDING)
        return tuple(self._count(settings.first + n * settings.every, total) for n in range(steps + 1))

    def decide(self, rollout: RolloutSnapshot) -> Shrink | Stay:
        if rollout.done < self._count(self.settings.first, rollout.total):
            return Stay(Why.TOO_EARLY)
        if rollout.done > self._count(self.settings.last, rollout.total):
            return Stay(Why.TOO_LATE)
        free = self._freed(rollout)
        keep = [replica for replica in rollout.replicas if replica.id not in free]
        if not free or not keep:
            return Stay(Why.NOTHING_TO_FREE)
        return self._moved(rollout, keep, free)

    @staticmethod
    def _count(part: float, total: int) -> int:
        return ceil(part * total - COUNT_ROUNDING)

    def _freed(self, rollout: RolloutSnapshot) -> frozenset[str]:
        """Whole groups up to the share of the GPUs, those with the least KV to recompute per GPU first."""
        held = dict.fromkeys((replica.id for replica in rollout.replicas), 0)
        for request in rollout.unfinished:
            held[request.replica] += request.held
        groups: dict[tuple[bool, str], list[Replica]] = {}
        for replica in sorted(rollout.replicas, key=lambda replica: replica.id):
            groups.setdefault(replica.unit, []).append(replica)
        left = int(self.settings.share * sum(replica.gpus for replica in rollout.replicas) + COUNT_ROUNDING)
        freed: list[str] = []
        for members in sorted(groups.values(), key=lambda group: _recompute_per_gpu(group, held)):
            gpus = sum(member.gpus for member in members)
            if gpus <= left:
                left -= gpus
                freed.extend(member.id for member in members)
        return frozenset(freed)

    def _moved(self, rollout: RolloutSnapshot, keep: Sequence[Replica], free: frozenset[str]) -> Shrink | Stay:
        """Moves the requests with the most KV at their end first, each to the replica that is least full at the end."""
        final = self.final_lengths(rollout)
        seats = _Seats(keep, final)
        for request in rollout.unfinished:
            if request.replica not in free:
                seats.take(request.replica, request)
        moving = [request for request in rollout.unfinished if request.replica in free]
        moving.sort(key=lambda request: (-_ending(request, final), request.id))
        moves = tuple(Move(request.id, request.replica, seats.take_emptiest(request)) for request in moving)
        peaks = seats.peaks()
        if any(peaks[replica.id] > self.settings.room_part * replica.kv_room_tokens for replica in keep):
            return Stay(Why.NO_ROOM)
        return Shrink(
            keep=tuple(sorted(peaks)),
            free=tuple(sorted(free)),
            moves=moves,
            peaks=tuple(sorted(peaks.items())),
            recomputed_tokens=sum(request.held for request in moving),
        )

    def final_lengths(self, rollout: RolloutSnapshot) -> dict[str, int]:
        settings = self.settings
        known = KnownLengths(
            rollout.known_lengths,
            cap_tokens=settings.cap_tokens,
            quantile=settings.quantile,
            support=settings.support,
        )
        return {request.id: known.final(request.tokens) for request in rollout.unfinished}


class _Seats:
    """The replicas that stay and the requests on them."""

    def __init__(self, keep: Sequence[Replica], final: Mapping[str, int]) -> None:
        self._final = final
        self._there: dict[str, list[Unfinished]] = {replica.id: [] for replica in keep}
        self._room = {replica.id: max(1, replica.kv_room_tokens) for replica in keep}
        self._ending = dict.fromkeys(self._there, 0)

    def take(self, replica: str, request: Unfinished) -> None:
        self._there[replica].append(request)
        self._ending[replica] += _ending(request, self._final)

    def take_emptiest(self, request: Unfinished) -> str:
        replica = min(self._there, key=lambda id_: (self._ending[id_] / self._room[id_], id_))
        self.take(replica, request)
        return replica

    def peaks(self) -> dict[str, int]:
        final = self._final
        return {
            replica: peak_tokens((request.held, final[request.id] - request.tokens) for request in requests)
            for replica, requests in self._there.items()
        }


def _recompute_per_gpu(group: Sequence[Replica], held: dict[str, int]) -> tuple[float, str]:
    return sum(held[member.id] for member in group) / sum(member.gpus for member in group), group[0].id


def _ending(request: Unfinished, final: Mapping[str, int]) -> int:
    return request.prompt_tokens + final[request.id]


def _distinct(checks: Checks, name: str, ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for place, id_ in enumerate(ids):
        if id_ in seen:
            checks.report(f"{name}[{place}].id", id_, "an id of its own", "name each once")
        seen.add(id_)
