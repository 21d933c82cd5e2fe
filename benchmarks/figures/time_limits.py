"""Adaptive against fixed time limits, with RollPacker's times of tests: computed, and in the real sandbox.

The times are those of `rollmux.sim.job.rewards` (RollPacker, arXiv 2509.21009, figure 7a). In the real sandbox limits
and times are shortened alike. Each program computes for its whole time, so limits of processor time apply.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from rollmux.packer.timeouts import TimeoutPolicy, TimeoutSettings
from rollmux.packer.timeouts import replay as replayed
from rollmux.runtime.rewards import Case, CodeTask, Kind, PoolSettings, RewardPool, Status
from rollmux.runtime.sandbox import Program
from rollmux.sim.job.rewards import drawn_program, reference_s

RIGHT = 0.6  # of the programs that end; the figure doesn't say
_SPIN = (
    "import time\nend = time.process_time() + {seconds!r}\nwhile time.process_time() < end: pass\nprint({printed!r})"
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One program, its prompt, and how long its tests run unlimited."""

    problem: str
    reference_s: float
    seconds: float
    correct: bool


def drawn(prompts: int, responses: int, seed: int) -> list[Drawn]:
    """So many programs for each prompt, prompt by prompt as a round scores them."""
    rng = Random(seed)
    programs = []
    for prompt in range(prompts):
        heaviness, looseness = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
        for _ in range(responses):
            made = drawn_program(heaviness, looseness, rng, RIGHT)
            programs.append(Drawn(f"prompt {prompt}", reference_s(heaviness), made.seconds, made.correct))
    return programs


def computed(programs: Sequence[Drawn], at_once: int) -> dict[str, object]:
    """The policy as it ships, over all of them; what a reference solution takes is known before."""
    policy = TimeoutPolicy()
    for program in programs:
        policy.learn(program.problem, program.reference_s, program.reference_s)
    trials = [(program.problem, program.seconds, program.correct) for program in programs]
    found = replayed(policy, trials, at_once)
    return {
        "how": "computed",
        "programs": found.trials,
        "fixed_s": found.fixed_s,
        "adaptive_s": found.adaptive_s,
        "fixed_over_adaptive": found.fixed_s / found.adaptive_s,
        "falsely_killed": found.falsely_killed,
        "audits": found.false_kills.audited,
        "false_kills_upper": found.false_kills.of_runs_upper,
    }


async def in_the_sandbox(programs: Sequence[Drawn], scale: float, turns: int) -> dict[str, object]:
    """Real programs, all times shortened by the same factor, through a pool with fixed limits, then adaptive ones."""
    shipped = TimeoutSettings()
    short = replace(shipped, floor_s=shipped.floor_s * scale, ceiling_s=shipped.ceiling_s * scale)
    adaptive = TimeoutPolicy(short)
    for program in programs:
        adaptive.learn(program.problem, program.reference_s * scale, program.reference_s * scale)
    fixed_s, fixed_false = await _scored(programs, scale, turns, TimeoutPolicy(replace(short, floor_s=short.ceiling_s)))
    adaptive_s, adaptive_false = await _scored(programs, scale, turns, adaptive)
    return {
        "how": f"in the sandbox, times × {scale:g}, {turns} at once",
        "programs": len(programs),
        "fixed_s": fixed_s,
        "adaptive_s": adaptive_s,
        "fixed_over_adaptive": fixed_s / adaptive_s,
        "falsely_killed": adaptive_false - fixed_false,
        "audits": adaptive.false_kills.audited,
        "false_kills_upper": adaptive.false_kills.of_runs_upper,
    }


async def _scored(programs: Sequence[Drawn], scale: float, turns: int, policy: TimeoutPolicy) -> tuple[float, int]:
    """Seconds until all are scored, and how many right ones were killed."""
    async with RewardPool(PoolSettings(turns={Kind.CODE: turns}), policy) as pool:
        start_s = time.perf_counter()
        rewards = await asyncio.gather(*(pool.score(_task(program, scale)) for program in programs))
        taken_s = time.perf_counter() - start_s
    false = 0
    for program, reward in zip(programs, rewards, strict=True):
        if reward.status in (Status.ERROR, Status.CANCELLED) or (reward.score == 1.0) > program.correct:
            raise RuntimeError(f"{program} got {reward}")
        false += program.correct and reward.status is Status.TIMEOUT
    return taken_s, false


def _task(program: Drawn, scale: float) -> CodeTask:
    source = _SPIN.format(seconds=program.seconds * scale, printed="yes" if program.correct else "no")
    return CodeTask(program.problem, Program(source), (Case("", "yes"),))
