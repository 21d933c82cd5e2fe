"""Whole steps beside the paper's: speed-ups part by part, the parts of a step, and how steps vary over time."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from benchmarks.figures import rollpacker as paper
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import CYCLE, Cases, Got, Ran, Run, Scale, StepTimes, over_seeds, plus_minus, speedup
from benchmarks.figures.parts import Part, beside, off
from rollmux.packer.commands import RoundKind
from rollmux.packer.stream import StreamSettings
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import PLANNER, REWARDS, RLHFUSE, ROLLPACKER, SYNC, TAIL, System
from rollmux.sim.sweep import interval

REWARDS_ALONE = System("rewards beside, alone", beside=True)
SYSTEMS = (SYNC, TAIL, REWARDS, PLANNER, ROLLPACKER)
RIVALS = (RLHFUSE, REWARDS_ALONE)
PREDICTED = (SYNC, TAIL, ROLLPACKER)  # for the setup to which no constant is fitted
STEPS_SHOWN = 40  # in the paper's figure 9
NAMES = {"veRL": SYNC, "RollPacker": ROLLPACKER, "RLHFuse": RLHFUSE}
TRIGGERS = {"20 %": 0.2, "30 %": 0.3, "40 %": 0.4}
TRIGGERED = "7B/8k"

GOAL_OFF = 0.15
GOAL_STREAM = 1.03
# A part may cost so much: the paper's figures have two digits, and two of them are equal.
ROUNDING = 0.01


def cases(scale: Scale) -> Cases:
    asked: Cases = {
        (name, system.name): scale.each(Run(setup, system, scale.steps))
        for name, setup in SETUPS.items()
        for system in (SYSTEMS if name in paper.SETUPS else PREDICTED)
    }
    rivals: Cases = {
        (name, system.name): scale.each(Run(SETUPS[name], system, min(scale.steps, STEPS_SHOWN)))
        for name in paper.SETUPS
        for system in RIVALS
    }
    setup = SETUPS[TRIGGERED]
    triggered: Cases = {
        ("trigger", name): scale.each(Run(setup, ROLLPACKER, scale.steps, stream=StreamSettings(setup.cap, at, at)))
        for name, at in TRIGGERS.items()
    }
    return {**asked, **rivals, **triggered}


def parts(got: Got) -> list[Part]:
    return [speedups(got), rivals(got), breakdown(got), cadence(got), step_times(got), triggers(got)]


def speedups(got: Got) -> Part:
    rows: list[dict[str, object]] = []
    goals = []
    for name, figures in paper.SPEEDUPS.items():
        base = got[name, SYNC.name]
        ours = {system: speedup(got[name, system], base) for system in figures}
        fitted = name in paper.SETUPS
        for system, figure in figures.items():
            named = {"setup": name, "system": system, "calibrated": "yes" if fitted else "no"}
            rows.append({**named, **beside(ours[system].mean, figure), "±": plus_minus(ours[system])})
        worst = max(off(ours[system].mean, figure) for system, figure in figures.items())
        goals.append(Goal(f"speed-ups, {name}: most off the paper's", worst, GOAL_OFF))
        goals.append(
            Goal(
                f"speed-ups, {name}: parts that cost no time", kept([o.mean for o in ours.values()]), 1.0, at_most=False
            )
        )
    words = (
        "Each with all before it, over the synchronous baseline on the same seeds, in the mean step of whole cycles.",
        "32B is the 14B job on 64 GPUs with the model's own sizes, its sync and wake scaled, no constant fitted. How",
        "many sandbox workers and judges the paper has, and how fast, is unsaid: for 7B and 14B they are fitted.",
    )
    return Part("Speed-up over the synchronous baseline", rows, words, goals)


def kept(speedups: Sequence[float]) -> float:
    """The share of the parts after the first that do not make the job slower, but for the rounding of the paper's."""
    return fmean(after >= before * (1 - ROUNDING) for before, after in pairwise(speedups))


def rivals(got: Got) -> Part:
    """Overlap without tail batching."""
    rows: list[dict[str, object]] = []
    for name in paper.SETUPS:
        base, times = got[name, SYNC.name], paper.STEP_TIMES_S[name]
        figures = {
            RLHFUSE.name: fmean(times["veRL"]) / fmean(times["RLHFuse"]),
            REWARDS_ALONE.name: paper.REWARDS_ALONE[name],
        }
        for system, figure in figures.items():
            ours = speedup(got[name, system], base)
            rows.append({"setup": name, "system": system, **beside(ours.mean, figure), "±": plus_minus(ours)})
    words = (
        "RLHFuse by the means of the paper's figure 9. `rewards beside, alone` keeps the limit of 30 s for every test.",
    )
    return Part("Overlap without tail batching: speed-up over the synchronous baseline", rows, words)


def breakdown(got: Got) -> Part:
    rows: list[dict[str, object]] = []
    for name, kinds in paper.BREAKDOWN_S.items():
        for kind, seconds in kinds.items():
            steps = [step for ran in got[name, ROLLPACKER.name] for step in ran.only(RoundKind(kind))]
            figures = dict(zip(paper.PARTS, seconds, strict=True))
            ours = {part: fmean(step.part_s(part) for step in steps) for part in paper.PARTS}
            for each in (figures, ours):
                each["rollout and reward"] = each["rollout"] + each["reward"]
                each["step"] = sum(each[part] for part in paper.PARTS)
            rows += [
                {"setup": name, "round": kind, "part": part, **beside(ours[part], figures[part])} for part in figures
            ]
    words = (
        "With everything on. Ours are seconds that follow each other: rollout to the last token that anybody waited",
        "for, then what is left of rewards, then what is left of training. The paper counts as rollout the rewards",
        "beside it, so `rollout and reward` is what compares. Its 7B short rollout of 74.5 s waits for rewards; with",
        "code alone, where they are fast, generation and rewards take 31.7 s (table of time limits).",
    )
    return Part("What a step is made of, s", rows, words)


def cadence(got: Got) -> Part:
    """Which rounds are long: every fifth, in the paper's figure 9."""
    rows: list[dict[str, object]] = []
    goals = []
    for name in paper.SETUPS:
        runs = got[name, ROLLPACKER.name]
        for seed, ran in enumerate(runs):
            kinds = "".join(step.kind.value[0] for step in ran.steps[:STEPS_SHOWN])
            rows.append({"setup": name, "run": seed, "kinds": kinds})
        least = min(on_beat(ran.steps[:STEPS_SHOWN]) for ran in runs)
        goals.append(Goal(f"cadence, {name}: rounds of the paper's kind", least, 1.0, at_most=False))
    words = ("s is a short round, l a long one; the paper's are long at 5, 10, 15 and so on.",)
    return Part("Kinds of the first rounds", rows, words, goals)


def on_beat(steps: Sequence[StepTimes]) -> float:
    """The share that is long where it is the fifth, and short elsewhere."""
    return fmean((step.kind is RoundKind.LONG) == (number % CYCLE == 0) for number, step in enumerate(steps, 1))


def step_times(got: Got) -> Part:
    rows: list[dict[str, object]] = []
    for name, series in paper.STEP_TIMES_S.items():
        for system, figures in series.items():
            runs = got[name, NAMES[system].name]
            for what, of in (("mean", fmean), ("min", min), ("max", max)):
                ours = interval([of(step.step_s for step in ran.steps[:STEPS_SHOWN]) for ran in runs])
                named = {"setup": name, "system": system, "of 40": what}
                rows.append({**named, **beside(ours.mean, of(figures)), "±": plus_minus(ours, 1)})
    words = (
        "Min and max are of 40 steps, in the mean over the seeds. The paper's first steps of veRL and RLHFuse start",
        "cold (veRL with 14B: 504 s, then about 380), and count. Its veRL with 7B jumps between 180 and 340 s from",
        "step to step; why is unsaid.",
    )
    return Part("40 steps, s", rows, words)


def triggers(got: Got) -> Part:
    """When half of the GPUs leave the rollout."""
    runs: dict[str, Sequence[Ran]] = {
        "none": got[TRIGGERED, PLANNER.name],
        **{name: got["trigger", name] for name in TRIGGERS},
        "adaptive": got[TRIGGERED, ROLLPACKER.name],
    }
    rows: list[dict[str, object]] = []
    for name, figure in paper.TRIGGER_S.items():
        ours = over_seeds(runs[name], Ran.step_s)
        gain = speedup(runs[name], runs["none"]).mean
        over_none = {"over none": gain, "paper's over none": paper.TRIGGER_S["none"] / figure}
        rows.append({"trigger": name, **beside(ours.mean, figure), "±": plus_minus(ours, 1), **over_none})
    goals = [
        Goal(
            f"stream trigger, {TRIGGERED}: none over adaptive",
            speedup(runs["adaptive"], runs["none"]).mean,
            GOAL_STREAM,
            at_most=False,
        )
    ]
    words = (
        "Mean steps. The paper's setup is unsaid; its seconds are those of 7B/8k. A fixed trigger asks once, and stays",
        "as it is where the rest has no room for the requests; the paper's may force them and preempt.",
    )
    return Part("When streaming begins, s of a step", rows, words, goals)
