"""Runs of the job simulator: what to play, and the results that are kept, small enough to come from another process.

Invariant: a run's fields determine its results, so two tables that ask for the same run share it.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import cpu_count
from statistics import fmean

from benchmarks.figures.goals import spread
from benchmarks.harness import arguments
from rollmux.packer.batching import Batching
from rollmux.packer.commands import RoundKind
from rollmux.packer.eta import AdaptiveEta, Factors
from rollmux.packer.false_kills import FalseKills
from rollmux.packer.known_long import KnownLong
from rollmux.packer.length_bias import Bias
from rollmux.packer.stream import StreamPolicy, StreamSettings
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.sim.job.job import Job, Step
from rollmux.sim.job.played import Played
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.summary import wasted_share
from rollmux.sim.job.system import System
from rollmux.sim.sweep import Interval, interval

MOST_PROMPTS = 2.0
CYCLE = 5  # four short rounds and a long one


@dataclass(frozen=True)
class Run:
    """So many steps of a job under a system, and what is unlike in it: when it streams, which policies choose."""

    setup: Setup
    system: System
    steps: int
    seed: int = 0
    stream: StreamSettings | None = None
    adaptive_eta: bool = False
    known_long: float | None = None  # the share of prompts that is taken for long

    def job(self) -> Job:
        job = Job(self.setup, self.system, self.seed)
        if self.stream is not None:
            job.stream = StreamPolicy(self.stream)
        if self.adaptive_eta or self.known_long is not None:
            job.batcher = TailBatcher(
                batching(self.setup, self.system),
                eta=adaptive(self.system) if self.adaptive_eta else None,
                known_long=None if self.known_long is None else KnownLong(self.known_long),
            )
        return job


def adaptive(system: System) -> AdaptiveEta:
    """Factors that begin as the system's; as many prompts as pay, but no more responses, which would bias lengths."""
    start = Factors(system.eta_prompts, system.eta_responses)
    return AdaptiveEta(start, Factors(MOST_PROMPTS, system.eta_responses))


def batching(setup: Setup, system: System) -> Batching:
    """What the batcher of such a job is told."""
    factors = system.eta_prompts, system.eta_responses
    return Batching(setup.prompts, setup.responses, *factors, system.race, setup.quotas)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step without what was trained in it."""

    kind: RoundKind
    sync_s: float
    rollout_s: float
    reward_s: float
    train_s: float
    tp: int
    preemptions: int

    @classmethod
    def of(cls, step: Step) -> "StepTimes":
        times = step.sync_s, step.rollout_s, step.reward_s, step.train_s
        return cls(step.kind, *times, step.tp, step.preemptions)

    @property
    def scored_s(self) -> float:
        """Generation and rewards together, which is how the paper counts rewards beside the rollout."""
        return self.rollout_s + self.reward_s

    @property
    def step_s(self) -> float:
        return self.sync_s + self.scored_s + self.train_s

    def part_s(self, name: str) -> float:
        return {"sync": self.sync_s, "rollout": self.rollout_s, "reward": self.reward_s, "train": self.train_s}[name]


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run. `bias` has the whole lengths of aborted responses, too."""

    steps: tuple[StepTimes, ...]
    bias: Bias
    wasted: float  # share of all tokens made
    waiting: int  # prompts that wait for a long round that has not come
    false_kills: FalseKills | None

    def only(self, kind: RoundKind) -> list[StepTimes]:
        return [step for step in self.steps if step.kind is kind]

    def step_s(self, after: int = 0) -> float:
        """Of the mean step in whole cycles, without the first so many steps."""
        return fmean(step.step_s for step in whole_cycles(self.steps[after:]))


def whole_cycles(steps: Sequence[StepTimes]) -> Sequence[StepTimes]:
    """From after the first long round to the last one: a step more or less would count long rounds wrongly.

    All of them, where no two rounds are long.
    """
    longs = [place for place, step in enumerate(steps) if step.kind is RoundKind.LONG]
    return steps[longs[0] + 1 : longs[-1] + 1] if len(longs) > 1 else steps


def play(run: Run) -> Ran:
    """Plays it."""
    job = run.job()
    steps = tuple(job.step() for _ in range(run.steps))
    kills = job.timeouts.false_kills if job.timeouts is not None else None
    bias = job.bias.report()
    played = Played(run.system, steps, bias, job.batcher.bias.report(), job.batcher.queued, kills)
    times = tuple(map(StepTimes.of, steps))
    return Ran(times, bias.overall, wasted_share(played), played.waiting_prompts, kills)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is played: steps of a run (whole cycles of four short rounds and a long one), and of which seeds."""

    seeds: range
    steps: int
    quick: bool = False

    def each(self, run: Run) -> list[Run]:
        """The same for each seed."""
        return [replace(run, seed=seed) for seed in self.seeds]

    def cut(self, steps: int, quick: int = 1) -> int:
        """So many steps, unless it is only to be shown that it works."""
        return quick if self.quick else steps


def cycle_arguments(name: str, description: str | None) -> argparse.Namespace:
    """What a benchmark that plays whole cycles is asked for."""
    parser = arguments(name, description or "")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--cycles", type=int, default=12, help="cycles of four short rounds and a long one in a run")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes at once")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.cycles, args.workers = 1, 1, 1
    return args


def scale_of(args: argparse.Namespace) -> Scale:
    steps = CYCLE * args.cycles + args.quick  # the first long round may come a step late
    return Scale(range(args.seed, args.seed + args.seeds), steps, args.quick)


Key = tuple[object, ...]
Cases = dict[Key, list[Run]]  # what a table asks for: a run for each seed
Got = Mapping[Key, Sequence[Ran]]


def play_all(asked: Iterable[Cases], workers: int) -> list[Got]:
    """All that the tables ask for, each run once."""
    tables = list(asked)
    runs = list(dict.fromkeys(run for cases in tables for each in cases.values() for run in each))
    ran = dict(zip(runs, spread(play, runs, workers), strict=True))
    return [{key: [ran[run] for run in each] for key, each in cases.items()} for cases in tables]


def over_seeds(runs: Sequence[Ran], of: Callable[[Ran], float]) -> Interval:
    """The mean of a figure over the seeds, with its interval."""
    return interval([of(ran) for ran in runs])


def speedup(runs: Sequence[Ran], base: Sequence[Ran], after: int = 0) -> Interval:
    """How many times as fast as the base on the same seeds, in the mean step of whole cycles."""
    return interval([slow.step_s(after) / fast.step_s(after) for fast, slow in zip(runs, base, strict=True)])


def plus_minus(value: Interval, digits: int = 3) -> object:
    """Half the interval, as it stands in a column of its own."""
    return "-" if value.half_width is None else round(value.half_width, digits)
