"""The published placement: Algorithm 1 of the RollMux paper (arXiv 2512.11306), to compare with.

Every group that is not saturated is tried with what it has, then with just enough new rollout nodes; a new group
comes last; the first placement with the least added cost wins. A group's training pool is never resized: a job
takes all of it as its data-parallel width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import Member, Placement
from rollmux.mux.plan import Candidate, Decision, Plan, Strategy, Trail, Verdict
from rollmux.mux.policies.attempt import choices, packed, place_alone, refusal, widening, works
from rollmux.mux.snapshot import Snapshot


@dataclass(frozen=True)
class PaperPolicy:
    """Strictly the paper's rules; `order` is what the groups run and what the SLO is checked under."""

    order: Order = Order.FIFO
    max_group: int = 5
    forecaster: Forecaster = field(default_factory=Forecaster, compare=False)
    name: str = "paper"

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision:
        trail = Trail()
        best: Plan | None = None
        for group in snapshot.groups.values():
            if self._pruned(group, snapshot, trail):
                continue
            for plan in self._candidates(job, group, snapshot):
                if best is not None and plan.added_usd_per_hour >= best.added_usd_per_hour:
                    trail.add(refusal(plan, Verdict.DEARER, "", plan.added_usd_per_hour, best.added_usd_per_hour))
                elif works(plan, snapshot, self.forecaster, trail):
                    best = plan
            if best is not None and best.added_usd_per_hour == 0:
                break  # nothing can be cheaper, and the first minimum wins
        alone = place_alone(job, snapshot, self.order, self.forecaster, trail)
        if alone is not None and (best is None or alone.added_usd_per_hour < best.added_usd_per_hour):
            best = alone
        return Decision.of(job, self.name, best, trail)

    def _pruned(self, group: Group, snapshot: Snapshot, trail: Trail) -> bool:
        if group.saturated:
            verdict, value, limit = Verdict.SATURATED, group.load_s, group.cycle_s
        elif len(group.members) >= self.max_group:
            verdict, value, limit = Verdict.FULL, len(group.members), self.max_group
        elif group.id in snapshot.frozen:
            verdict, value, limit = Verdict.FROZEN, 0, 0
        else:
            return False
        trail.add(Candidate(group.id, Strategy.DIRECT, 0.0, verdict, "", value, limit))
        return True

    def _candidates(self, job: JobSpec, group: Group, snapshot: Snapshot) -> Iterator[Plan]:
        """Direct packing, then one more new rollout node at a time."""
        fitted = job.at_width(len(group.train_nodes))
        for new in range(job.rollout.nodes + 1):
            added = widening(snapshot, new, 0)
            if added is None:
                return
            for old in choices(group.rollout_nodes, group.uses, job.rollout.nodes - new):
                placement = Placement(old + added.rollout, group.train_nodes)
                yield packed(group, Member(fitted, placement, job.limit_s), added)
