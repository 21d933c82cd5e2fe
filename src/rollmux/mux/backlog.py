"""The queue of a cluster that is full: who is admitted now, and when the first in line may expect its turn.

Jobs are ordered by priority, then by arrival. A job behind the first may go ahead only if, played forward with it,
the first starts no later than without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from rollmux.mux.job import JobSpec
from rollmux.mux.plan import Decision
from rollmux.mux.policies import Policy
from rollmux.mux.snapshot import Snapshot

# Each what-if places a job several times; jobs further back wait for a later cycle.
BACKFILL_DEPTH = 8
DEPARTURES_LIMIT = 64


class Left(NamedTuple):
    """The work that a job has left: its iterations (None where its owner did not say), less `elapsed_s`, the time spent
    on the present one without what a first iteration takes longer.

    `at_most_s` is for a job that is not running yet: how long it takes if it goes as slowly as its SLO allows.
    """

    iterations: int | None
    elapsed_s: float = 0.0
    at_most_s: float | None = None

    def seconds(self, iteration_s: float) -> float | None:
        """How long the job will still run at this pace."""
        if self.at_most_s is not None or self.iterations is None:
            return self.at_most_s
        return max(0.0, self.iterations * iteration_s - self.elapsed_s)


def _in_line(job: JobSpec, known: Left | None) -> Left:
    """For a job in line: one that has lost its place may have done most of its work, a newcomer none."""
    left = job.iterations if known is None else known.iterations
    at_most_s = None if left is None else job.cold_start_s + job.ramp_s + left * job.limit_s
    return Left(left, 0.0, at_most_s)


Remaining = Mapping[str, Left]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One round of the queue: the decisions made, in order, and the expected wait of the first in line."""

    decisions: tuple[Decision, ...]
    head_wait_s: float | None


def run_cycle(snapshot: Snapshot, queue: Sequence[JobSpec], outlook: Callable[[], Remaining], policy: Policy) -> Cycle:
    """Admits the jobs that can be admitted. `queue` is in its order; each decision that has a plan is to be applied."""
    decisions: list[Decision] = []
    waiting = list(queue)
    # 1. From the front, as long as there is room. A job that could not run even on an empty cluster holds nobody up.
    head: JobSpec | None = None
    while waiting and head is None:
        job = waiting.pop(0)
        decision = policy.place(job, snapshot)
        decisions.append(decision)
        if decision.plan is not None:
            snapshot = snapshot.with_group(decision.plan.group, decision.plan.new_nodes)
        elif policy.place(job, snapshot.emptied()).plan is not None:
            head = job
    if head is None:
        return Cycle(tuple(decisions), None)
    # 2. When the first in line would start if nobody else were let in.
    known, tried = outlook(), queue[: len(queue) - len(waiting) + BACKFILL_DEPTH]
    remaining = {**known, **{job.id: _in_line(job, known.get(job.id)) for job in tried}}
    start_s = expected_start_s(head, snapshot, remaining, policy)
    # 3. The jobs behind the first, if the first starts no later because of them.
    if start_s < inf:
        for job in waiting[:BACKFILL_DEPTH]:
            decision = policy.place(job, snapshot)
            if decision.plan is not None:
                after = snapshot.with_group(decision.plan.group, decision.plan.new_nodes)
                if expected_start_s(head, after, remaining, policy) <= start_s:
                    decisions.append(decision)
                    snapshot = after
    return Cycle(tuple(decisions), start_s if start_s < inf else None)


def expected_start_s(job: JobSpec, snapshot: Snapshot, remaining: Remaining, policy: Policy) -> float:
    """Seconds until enough other jobs have ended for this one to be placed; inf where that can't be told."""
    ends: list[tuple[float, str, str]] = []
    for group in snapshot.groups.values():
        forecast = policy.forecaster.forecast(group)
        for member, iteration_s in zip(group.members, forecast.iteration_s, strict=True):
            end_s = remaining[member.job.id].seconds(iteration_s)
            if end_s is not None:
                ends.append((end_s, member.job.id, group.id))
    for end_s, job_id, group_id in sorted(ends)[:DEPARTURES_LIMIT]:
        snapshot = snapshot.without_job(group_id, job_id)
        if policy.place(job, snapshot).plan is not None:
            return end_s
    return inf
