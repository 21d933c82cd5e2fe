"""How long the rounds of a packed job take, as parts of the time of the same phases without tail batching.

The job simulator records a profile, so no length is made up here.
Invariant: a profile has as many short rounds for each long one as the batcher ran, so no prompt's work is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from statistics import fmean
from typing import NamedTuple

from rollmux.mux.job import JobSpec, PhaseSpec
from rollmux.packer.commands import RoundKind
from rollmux.sim.job.job import Job, Step
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.system import SYNC, System

# How many long rounds are recorded: the first ones differ, as a job has yet to learn its lengths.
CYCLES = 8


class RoundPart(NamedTuple):
    """The times of a round's phases, divided by their mean without tail batching."""

    rollout: float
    train: float


@dataclass(frozen=True)
class Profile:
    """The rounds of one simulated job, short and long ones apart, in the order in which they came."""

    name: str
    short: tuple[RoundPart, ...]
    long: tuple[RoundPart, ...]
    between: int  # short rounds from one long round to the next; 0 where there are no long ones

    @property
    def period(self) -> int:
        """How many rounds a cycle has."""
        return self.between + 1

    @cached_property
    def usual_short(self) -> RoundPart:
        """The mean of its short rounds."""
        return _mean(self.short)

    @cached_property
    def mean(self) -> RoundPart:
        """The mean round of a cycle."""
        return _mean([self.usual_short] * self.between + [_mean(self.long)]) if self.long else self.usual_short

    @cached_property
    def worst(self) -> RoundPart:
        rounds = self.short + self.long
        return RoundPart(max(part.rollout for part in rounds), max(part.train for part in rounds))

    def over(self, iterations: int) -> RoundPart:
        """The mean round of a life of so many rounds, which need not be whole cycles."""
        long = iterations // self.period if self.long else 0
        return _mean([*islice(cycle(self.short), iterations - long), *islice(cycle(self.long), long)])

    def part(self, number: int, *, long: bool) -> RoundPart:
        """The times of the round with this number among those of its kind."""
        rounds = self.long if long else self.short
        return rounds[number % len(rounds)]

    def packed(self, job: JobSpec, iterations: int) -> JobSpec:
        """The job as the cluster plans with it: its bounds are those of the worst round, its phases the means."""
        worst, mean = self.worst, self.over(iterations)
        return replace(
            job,
            rollout=_scaled(job.rollout, worst.rollout, mean.rollout),
            train=_scaled(job.train, worst.train, mean.train),
            tail=job.tail and replace(job.tail, bulk_s=job.tail.bulk_s * worst.rollout),
        )


def _mean(parts: Iterable[RoundPart]) -> RoundPart:
    rollout, train = zip(*parts, strict=True)
    return RoundPart(fmean(rollout), fmean(train))


def _scaled(phase: PhaseSpec, worst: float, mean: float) -> PhaseSpec:
    return replace(phase, duration_s=worst * phase.planned_s, measured_s=round(mean * phase.planned_s, 3))


def recorded(setup: Setup, system: System, cycles: int = CYCLES, seed: int = 0, *, rewards: bool = True) -> Profile:
    """The profile of a system on a setup, against the synchronous job.

    A rollout's time has its rewards in it, as an iteration of the cluster has no other place for them. Without
    `rewards` the synchronous job's are left out, as if its owner's rollout times had never had them; the packed job's
    stay. Training is all done after the round: nothing is streamed onto rollout nodes.
    """
    steps = _steps(Job(setup, replace(system, stream=False), seed), system, cycles)
    sync = Job(setup, SYNC, seed)
    before = [sync.step() for _ in steps]
    rollout_s = fmean(step.rollout_s + rewards * step.reward_s for step in before)
    train_s = fmean(step.train_s for step in before)
    rounds: dict[bool, list[RoundPart]] = {False: [], True: []}
    for step in steps:
        part = RoundPart((step.rollout_s + step.reward_s) / rollout_s, step.train_s / train_s)
        rounds[_is_long(step)].append(part)
    return Profile(f"{system.name} on {setup.name}", tuple(rounds[False]), tuple(rounds[True]), _between(steps))


def _steps(job: Job, system: System, cycles: int) -> list[Step]:
    """The job's first steps, until `cycles` of them were long rounds; `cycles` steps if it defers no prompt."""
    if system.eta_prompts == 1:
        return [job.step() for _ in range(cycles)]
    expected = round(1 / (system.eta_prompts - 1)) + 1
    steps: list[Step] = []
    while sum(map(_is_long, steps)) < cycles and len(steps) < 2 * cycles * expected:
        steps.append(job.step())
    return steps


def _is_long(step: Step) -> bool:
    return step.kind is RoundKind.LONG


def _between(steps: list[Step]) -> int:
    """Short rounds from one long round to the next. The first comes late, as some prompts are in the queue for good."""
    at = [number for number, step in enumerate(steps) if _is_long(step)]
    if len(at) < 2:
        return at[0] if at else 0
    return max(1, int((at[-1] - at[0]) / (len(at) - 1)) - 1)
