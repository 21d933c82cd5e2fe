"""Which nodes of a group a phase would find room on, and how likely the group is to work with the phase there."""

from rollmux.mux.group import Group, Outline
from rollmux.mux.job import PhaseKind
from rollmux.mux.order import Order
from rollmux.mux.placed import ROUNDING, TRAIN, Member

# Of 6,700 placements by urgency nine in ten work where no shared node is taken for more than 0.7 of its time, three in
# four up to 0.8, half up to 0.9 and a quarter beyond; and half as many of each where somebody could lose less than 3 %
# of its time. The likeliest are tried first.
CROWDED = (0.8, 0.9)
TIGHT_SPARE = 0.03
# Of the nodes that a phase fits on: how tight the likeliest is, and all of them, those with the least waiting first.
Fitting = tuple[int, tuple[str, ...]]
NONE: Fitting = (0, ())
NEVER = 5  # tighter than any way is
# SLOs may need all of a node's time.
MOST = 1 + ROUNDING


class Seeker:
    """A phase of one job that looks for nodes with the time and the memory for it.

    It looks for the nodes of a group when it is first asked for them.
    """

    __slots__ = ("_found", "_hurries", "_is_train", "_phase", "_room", "_tenant", "_weighs", "need")

    def __init__(self, member: Member, kind: PhaseKind, order: Order, room: int) -> None:
        self._is_train, self._room = kind is TRAIN, room
        self._tenant, self._phase = member.tenant(kind, order), member.job.phase(kind)
        self._weighs = self._phase.resident_bytes > 0 or self._phase.transient_bytes > 0
        self.need = self._tenant.phase_s / member.limit_s
        self._hurries = self._tenant.spare < TIGHT_SPARE
        self._found: dict[str, Fitting] = {}

    def nodes(self, group: Group) -> Fitting:
        """The nodes of the group that have the time and the memory for the phase."""
        found = self._found.get(group.id)
        if found is None:
            found = self._found[group.id] = self._nodes(group)
        return found

    def finds(self, group: Group, outline: Outline) -> bool:
        """Whether a group in which a node has the time has one for the phase: bounds on all its nodes mostly tell."""
        _, _, spare, longest_s, soonest_s, _ = outline
        _, _, _, blocks_s, away_s, _, _, own = self._tenant
        nobody_waits = blocks_s <= soonest_s and longest_s <= away_s
        return (nobody_waits and spare >= 0 and own >= 0 and not self._weighs) or bool(self.nodes(group)[1])

    def short_of_memory(self, group: Group, outline: Outline) -> tuple[str, int, int] | None:
        """The last of the group's nodes that has the time but not the memory for the phase: (node, needed, room)."""
        found, phase, room = None, self._phase, self._room
        if outline.host_bytes + phase.resident_bytes + phase.transient_bytes <= room:
            return None
        for node, use, *_ in group.train_rows if self._is_train else group.rollout_rows:
            needed = use.host_bytes_with(phase)
            if needed > room and use.spare_with(self._tenant) >= 0:
                found = node, needed, room
        return found

    def least_tight(self, share: float) -> int:
        """How tight the likeliest node is at least, where SLOs need at least this share of the time of every node."""
        taken = share + self.need
        if taken > MOST:
            return NEVER
        some, much = CROWDED
        return (taken > some) + (taken > much) + self._hurries

    def pool(self, group: Group) -> tuple[str, ...]:
        """The group's rollout nodes with the memory for the phase, those with the fewest tenants first."""
        if not self._weighs:
            return group.least_crowded
        phase, uses = self._phase, group.uses
        return tuple([node for node in group.least_crowded if uses[node].host_bytes_with(phase) <= self._room])

    def _nodes(self, group: Group) -> Fitting:
        need, room = self.need, self._room
        _, _, _, blocks_s, away_s, _, _, own = self._tenant
        some, much = CROWDED
        found = []
        for node, use, share, spare, longest_s, soonest_s in group.train_rows if self._is_train else group.rollout_rows:
            taken = share + need
            if taken > MOST or (self._weighs and use.host_bytes_with(self._phase) > room):
                continue
            left = own if own < spare else spare
            if blocks_s > soonest_s or longest_s > away_s:  # somebody waits for somebody, so less than that is left
                left = use.spare_with(self._tenant)
            if left >= -ROUNDING:
                left = left if left > 0 else 0.0
                found.append(((taken > some) + (taken > much) + (left < TIGHT_SPARE), -left, node))
        if not found:
            return NONE
        if len(found) == 1:
            ((tight, _, node),) = found
            return tight, (node,)
        found.sort()
        return found[0][0], tuple([node for _, _, node in found])


def crowded(share: float) -> int:
    """How crowded nodes are where this part of their time is taken: 0, 1 or 2."""
    some, much = CROWDED
    return (share > some) + (share > much)
