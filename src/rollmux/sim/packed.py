"""The bridge between the tiers: how the cluster sees jobs that pack their rounds.

The cluster plans with the means of a profile, while each round takes its own time. A job without a profile stays as it
is. Invariant: whichever rounds are put off, the rounds of a job's life take in sum what was planned, so a mean holds.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.job import JobSpec, PhaseKind
from rollmux.sim.cast import Takes, as_planned
from rollmux.sim.profile import Profile, RoundPart
from rollmux.sim.workload import Arrival, Workload

# A long round is put off by at most so many rounds while a neighbour is in a long one.
HOLD = 3

ProfileOf = Callable[[JobSpec], Profile | None]

_PRODUCTION = re.compile(r"(\d+)B-(\d+)K-")


def production_setup(job_id: str) -> str | None:
    """The shipped setup nearest to a job of the production trace; None if its name has no model and cap."""
    found = _PRODUCTION.match(job_id)
    if found is None:
        return None
    model, cap = found.groups()
    if "32" in (model, cap):
        return "32B/32k"
    return "14B/16k" if model == "14" or cap == "16" else "7B/8k"


@dataclass(frozen=True)
class ByName:
    """The profiles of production jobs, by setup; other jobs have none."""

    profiles: Mapping[str, Profile]

    def __call__(self, job: JobSpec) -> Profile | None:
        setup = production_setup(job.id)
        return None if setup is None else self.profiles.get(setup)


def packed_workload(workload: Workload, profile_of: ProfileOf, *, promised: bool = False) -> Workload:
    """The same jobs with as many iterations, packed.

    An SLO is measured against the packed job alone; if `promised`, against the job as it was before: this is the
    promise to an owner who knows nothing of tail batching.
    """
    return replace(workload, arrivals=tuple(_packed(arrival, profile_of, promised) for arrival in workload.arrivals))


def _packed(arrival: Arrival, profile_of: ProfileOf, promised: bool) -> Arrival:
    profile = profile_of(arrival.job)
    if profile is None:
        return arrival
    job = profile.packed(arrival.job, arrival.iterations)
    if promised:
        job = replace(job, slo=arrival.job.slo * arrival.job.solo_s / job.solo_s)
    return replace(arrival, job=job, duration_s=arrival.iterations * job.solo_s)


@dataclass(slots=True)
class _Life:
    """The rounds that a job has begun: whether each is long, and how long it takes."""

    rounds: list[tuple[bool, RoundPart]] = field(default_factory=list)
    short: int = 0
    long: int = 0

    def late(self, profile: Profile) -> int:
        """For how many rounds the next long round has been due; below 0 if it is not due."""
        return self.short - (self.long + 1) * profile.between

    def begin(self, profile: Profile, *, long: bool) -> None:
        part = profile.part(self.long if long else self.short, long=long)
        self.rounds.append((long, part))
        self.long += long
        self.short += not long


class Rounds:
    """How long the phases of packed jobs take, round by round. A round that is done again takes as long again.

    With a machine to look at, a job puts its long round off while a neighbour on its rollout nodes is in a long one.
    The round stays due, as its prompts still wait, and the next long round comes no later for it.
    """

    def __init__(self, profile_of: ProfileOf, machine: ClusterMachine | None = None) -> None:
        self.profile_of, self.machine = profile_of, machine
        self._lives: dict[str, _Life] = {}

    def takes(self, job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        profile = None if kind is PhaseKind.SYNC else self.profile_of(job)
        if profile is None:
            return as_planned(job, kind, iteration)
        life = self._lives.setdefault(job.id, _Life())
        if iteration == len(life.rounds):
            life.begin(profile, long=self._is_long(job, profile, life))
        part, worst, bound_s = life.rounds[iteration][1], profile.worst, job.phase(kind).duration_s
        share = part.rollout / worst.rollout if kind is PhaseKind.ROLLOUT else part.train / worst.train
        return round(bound_s * share, 3)

    def is_long(self, job_id: str) -> bool:
        """Whether the latest round that the job has begun is a long one."""
        life = self._lives.get(job_id)
        return life is not None and bool(life.rounds) and life.rounds[-1][0]

    def _is_long(self, job: JobSpec, profile: Profile, life: _Life) -> bool:
        late = life.late(profile)
        if not profile.long or late < 0:
            return False
        last = len(life.rounds) + 1 == job.iterations
        return late >= HOLD or last or not self._meets_long(job.id)

    def _meets_long(self, job_id: str) -> bool:
        if self.machine is None:
            return False
        state = self.machine.state
        group = state.groups.get(state.jobs[job_id].group_id)
        if group is None:
            return False
        mine = set(group.member(job_id).placement.rollout)
        return any(
            self.is_long(other.job.id) and not mine.isdisjoint(other.placement.rollout)
            for other in group.members
            if other.job.id != job_id
        )


@dataclass(frozen=True)
class Packing:
    """For `Settings.packing`: how a cluster runs packed jobs, round by round.

    With `stagger` neighbours avoid each other's long rounds; else every job has its long rounds as they come.
    """

    profile_of: ProfileOf
    stagger: bool = False

    def takes(self, machine: ClusterMachine) -> Takes:
        return Rounds(self.profile_of, machine if self.stagger else None).takes

    def told(self, job: JobSpec, iterations: int) -> JobSpec:
        """The job as it is submitted to the cluster: a part of its SLO is kept back for its long rounds.

        A job in its short rounds looks faster than planned until the long one comes. A cluster that spent this seeming
        gain would have nothing left then.
        """
        profile = self.profile_of(job)
        if profile is None:
            return job
        short, mean = profile.usual_short, profile.over(iterations)
        early_s = job.rollout.planned_s * (1 - short.rollout / mean.rollout)
        early_s += job.train.planned_s * (1 - short.train / mean.train)
        rounds = profile.between + (HOLD if self.stagger else 0)
        kept = max(0.0, rounds * early_s / (iterations * job.solo_s))
        return replace(job, slo=max(1.0, job.slo * (1 - kept)))
