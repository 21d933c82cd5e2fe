"""Plays the first steps of one job under one system, and tells what its batcher and its timeouts have learnt.

Invariant: setup, system, number of steps and seed determine all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rollmux.packer.commands import RoundKind
from rollmux.packer.false_kills import FalseKills
from rollmux.packer.length_bias import BiasReport
from rollmux.sim.job.job import Job, Step
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.system import System

Told = Callable[[int], None]  # how many steps are done


@dataclass(frozen=True, slots=True)
class Played:
    """One system's run, of at least one step.

    `bias` counts every response of a trained prompt with its whole length, even if it was aborted, as only a simulator
    can. `seen_bias` is the batcher's own report, as a live run has it.
    """

    system: System
    steps: tuple[Step, ...]
    bias: BiasReport
    seen_bias: BiasReport
    waiting_prompts: int  # prompts that wait for a long round that has not come
    false_kills: FalseKills | None  # None if timeouts don't adapt

    @property
    def whole(self) -> tuple[Step, ...]:
        """The steps of whole cycles, up to the last long round: prompts deferred after it have yet to be paid for."""
        last = max((i for i, step in enumerate(self.steps) if step.kind is RoundKind.LONG), default=len(self.steps) - 1)
        return self.steps[: last + 1]


def play(setup: Setup, system: System, steps: int, seed: int, told: Told = lambda done: None) -> Played:
    """Runs the first steps of the job."""
    job, done = Job(setup, system, seed), []
    for number in range(steps):
        done.append(job.step())
        told(number + 1)
    kills = job.timeouts.false_kills if job.timeouts is not None else None
    return Played(system, tuple(done), job.bias.report(), job.batcher.bias.report(), job.batcher.queued, kills)
