"""A job pinned to nodes, what the jobs pinned to a node take of it, and which placements no order could make work.

Three conditions must hold under any order, two of them for phases that never pause. A placement that breaks one is
refused without a play:

- *time*: a job within its SLO begins an iteration at least every `limit_s`, so on each node
  `sum(phase_s / limit_s) <= 1`;
- *waiting*: while tenant j works through a phase on a node, tenant i is away for at most `away_s` (the rest of its
  iteration alone) and waits the remainder. Phases on one node never overlap, so these waits add up:
  `sum over j of max(0, phase_j - away_i) / limit_j` must fit the part of its time that i may lose, `1 - 1 / slo_i`;
- *life*: a short job may be over before means count for anything. No single wait, `phase_j - away_i`, may be longer
  than all that i may lose in its life, unless it is lucky in when it comes.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.order import Order
from rollmux.mux.totals import total

ROLLOUT, TRAIN = PhaseKind.ROLLOUT, PhaseKind.TRAIN

# Sums of quotients that meet a limit exactly may exceed it in the last bits.
ROUNDING = 1e-9

# Work lost by a move, where the job does not say (the paper measures 197 to 419 s).
MOVE_S = 300.0
# A job that is slower than forecast stays as long as it could still leave in time so many iterations later.
LAST_CHANCE = 1.5


@dataclass(frozen=True, slots=True)
class Placement:
    """The exact nodes that a job is pinned to: its state stays in their host memory."""

    rollout: tuple[str, ...]
    train: tuple[str, ...]

    def nodes(self, kind: PhaseKind) -> tuple[str, ...]:
        return self.rollout if kind is ROLLOUT else self.train

    @property
    def all_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.rollout + self.train))


NOWHERE = Placement((), ())


@dataclass(frozen=True, slots=True)
class Member:
    """A job in a group: where it is pinned and the slowest iteration that its SLO allows.

    `apart` says that the job has left shared nodes to keep its SLO, and shares none from now on.
    """

    job: JobSpec
    placement: Placement
    limit_s: float
    apart: bool = False

    @staticmethod
    def of(job: JobSpec, placement: Placement) -> "Member":
        return Member(job, placement, job.opening_limit_s)

    @property
    def bears_company(self) -> bool:
        """Whether the job has time to lose: meeting others costs waits at first, even if the steady pace shows none."""
        job = self.job
        return not self.apart and (job.iterations is None or min(self.limit_s, job.opening_limit_s) > job.solo_s)

    @property
    def roams(self) -> bool:
        """Whether its rollout has nodes to choose from."""
        job = self.job
        return job.rollout_spares > 0 and job.rollout.nodes < len(self.placement.rollout)

    def share(self, kind: PhaseKind) -> float:
        """The part of each held node's time that a phase needs; 0 where it may give nodes back early."""
        job = self.job
        return 0.0 if kind is ROLLOUT and job.may_shrink else job.phase(kind).planned_s / self.limit_s

    @property
    def is_stuck(self) -> bool:
        """Whether the job could not afford to leave if it were slower than forecast: it must have a good place."""
        job = self.job
        if job.iterations is None:
            return False
        to_leave_s = (job.cold_start_s or MOVE_S) + job.ramp_s + LAST_CHANCE * job.solo_s
        return (job.limit_s - job.solo_s) * job.iterations < to_leave_s

    def tenant(self, kind: PhaseKind, order: Order) -> "Tenant":
        """This member's claim on each node of one of its phases."""
        job, phase_s = self.job, self.job.phase(kind).planned_s
        pauses = order is Order.URGENCY and job.phase(kind).pause_s is not None
        may_leave = kind is ROLLOUT and (job.may_shrink or self.roams)
        overlaps = may_leave or job.staleness > 0
        return Tenant(
            job.id,
            kind,
            0.0 if may_leave else phase_s,
            0.0 if may_leave or pauses else phase_s,
            inf if overlaps else job.solo_s - phase_s,
            self.limit_s,
            inf if job.iterations is None else (self.limit_s - job.solo_s) * job.iterations,
            1 - job.solo_s / self.limit_s,
        )


class Tenant(NamedTuple):
    """One job's phase on one node. `spare` is the part of its time that the job may still lose to waiting here.

    `life_s` is the time that the job may lose in all its life: for a short job less than one long phase of another job.
    `blocks_s` is how long the phase may keep others waiting: 0 where it can pause. Where a phase may give back a node
    early, or take another one, `phase_s` is 0 as well; where phases of a job overlap, `away_s` has no bound.
    """

    job_id: str
    kind: PhaseKind
    phase_s: float
    blocks_s: float
    away_s: float
    limit_s: float
    life_s: float
    spare: float

    def losing(self, lost: float) -> "Tenant":
        """The same tenant with so much less to lose."""
        return self._replace(spare=self.spare - lost)

    def waits_for(self, other: "Tenant") -> float:
        """The least part of its time that this tenant loses to the other's phases."""
        if other.job_id == self.job_id:
            return 0.0
        return max(0.0, other.blocks_s - self.away_s) / other.limit_s


class NodeUse(NamedTuple):
    """One node's tenants. `share` is the least part of its time that they need under any order."""

    tenants: tuple[Tenant, ...] = ()
    busy_s: float = 0.0
    share: float = 0.0
    resident_bytes: int = 0
    transient_bytes: int = 0
    spare: float = inf  # the least of what its tenants may lose
    blocks_s: float = 0.0  # the longest that one of them may keep others waiting
    away_s: float = inf  # the least that one of them is away

    @property
    def host_bytes(self) -> int:
        """Resident state of all tenants and the largest transient copy."""
        return self.resident_bytes + self.transient_bytes

    def host_bytes_with(self, phase: PhaseSpec) -> int:
        """The same with one more phase on the node."""
        mine, its = self.transient_bytes, phase.transient_bytes
        return self.resident_bytes + phase.resident_bytes + (mine if mine > its else its)

    def joined_by(self, new: Tenant, job: JobSpec) -> "NodeUse":
        """The same node with one more tenant."""
        phase = job.phase(new.kind)
        if new.blocks_s <= self.away_s and self.blocks_s <= new.away_s:  # nobody waits for anybody
            tenants, spare = (*self.tenants, new), min(self.spare, new.spare)
        else:
            others = [t.losing(lost) if (lost := t.waits_for(new)) else t for t in self.tenants]
            tenants = (*others, new.losing(total([new.waits_for(t) for t in self.tenants])))
            spare = min([t.spare for t in tenants])
        return NodeUse(
            tenants,
            self.busy_s + phase.planned_s,
            self.share + new.phase_s / new.limit_s,
            self.resident_bytes + phase.resident_bytes,
            max(self.transient_bytes, phase.transient_bytes),
            spare,
            max(self.blocks_s, new.blocks_s),
            min(self.away_s, new.away_s),
        )

    def spare_with(self, new: Tenant) -> float:
        """The least part of its time that any tenant could still lose beside this one; -1 where a condition breaks."""
        _, _, phase_s, blocks_s, away_s, limit_s, life_s, spare = new  # asked for of most nodes, at every arrival
        tenants, _, share, _, _, least, longest_s, soonest_s = self
        if share + phase_s / limit_s > 1 + ROUNDING:
            return -1.0
        least = min(least, spare)
        if blocks_s > soonest_s or longest_s > away_s:  # somebody waits for somebody
            for _, _, _, other_s, other_away_s, other_limit_s, other_life_s, left in tenants:
                if blocks_s - other_away_s > other_life_s or other_s - away_s > life_s:
                    return -1.0
                if blocks_s > other_away_s:
                    least = min(least, left - (blocks_s - other_away_s) / limit_s)
                if other_s > away_s:
                    spare -= (other_s - away_s) / other_limit_s
            least = min(least, spare)
        return max(least, 0.0) if least >= -ROUNDING else -1.0


UNUSED = NodeUse()
