"""Tables of the runs of all modes: how much is learnt, in which time, from which responses.

All is compared within a seed, and over the same number of trained prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, linear_regression

from benchmarks.figures.equivalence import Difference
from benchmarks.figures.goals import Goal, told
from benchmarks.figures.learning_runs import MODES, PROMPTS, SYNC, Run, Step
from benchmarks.figures.parts import Part
from rollmux.sim.sweep import interval

GOAL_GAIN = 1.5
MARGIN = 0.05  # of a reward from 0 to 1; stated before the first run that counts
LAST = 2  # what the policy is worth in the end is the mean of so many askings at most
WAY = 0.75  # of what the synchronous run gains: what time to the same reward goes to
TRAIN_SHARES = (0.1, 0.2, 0.3)  # of a synchronous step, where a forecast has to assume one

Runs = Mapping[str, Sequence[Run]]  # by mode, in the order of seeds
Cost = Callable[[Step], float]

COSTS: Mapping[str, Cost] = {
    "decode steps": lambda step: step.sweeps,
    "rollout, processor": lambda step: step.rollout_cpu_s,
    "rollout, clock": lambda step: step.rollout_s,
    "step, processor": lambda step: step.rollout_cpu_s + step.train_cpu_s,
    "step, clock": lambda step: step.rollout_s + step.train_s,
}
CLOCK = "step, clock"


def final(run: Run) -> float:
    """In the second half of the steps: where askings are few, the last but one may be that before training."""
    late = [each.reward for each in run.worth if 2 * each.steps > len(run.steps)]
    return fmean(late[-LAST:])


def total(run: Run, cost: Cost) -> float:
    return sum(map(cost, run.steps))


def gains(runs: Runs, mode: str, cost: Cost) -> list[float]:
    """How many times what the mode takes the synchronous run takes, seed by seed."""
    return [total(sync, cost) / total(run, cost) for sync, run in zip(runs[SYNC], runs[mode], strict=True)]


def target(sync: Run) -> float:
    """A reward that the synchronous run has come to."""
    first = sync.worth[0].reward
    return first + WAY * (final(sync) - first)


def reached(run: Run, reward: float, cost: Cost) -> float | None:
    """What it took until the policy was first worth so much, between two askings in proportion."""
    for before, after in pairwise(run.worth):
        if after.reward >= reward:
            until = sum(map(cost, run.steps[: before.steps]))
            between = sum(map(cost, run.steps[before.steps : after.steps]))
            return until + between * max(0.0, reward - before.reward) / max(after.reward - before.reward, 1e-9)
    return None


def gains_to_target(runs: Runs, mode: str, cost: Cost) -> list[float]:
    """The same, to the same reward; of the seeds where both reach it."""
    found = []
    for sync, run in zip(runs[SYNC], runs[mode], strict=True):
        theirs, ours = (reached(each, target(sync), cost) for each in (sync, run))
        if theirs and ours:  # neither was there before its first step, where sync gained nothing
            found.append(theirs / ours)
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def learnt_part(runs: Runs) -> Part:
    """What the policy is worth, and whether that is what synchronous training makes it."""
    rows: list[dict[str, object]] = []
    for mode in MODES:
        ours = [final(run) for run in runs[mode]]
        apart = Difference.of(ours, [final(run) for run in runs[SYNC]])
        rows.append(
            {
                "mode": mode,
                "before": told(interval([run.worth[0].reward for run in runs[mode]])),
                "after": told(interval(ours)),
                "right": f"{fmean(run.worth[-1].right for run in runs[mode]):.0%}",
                "length": f"{fmean(run.worth[-1].length for run in runs[mode]):.1f}",
                "minus sync": "-" if mode == SYNC else f"{apart.mean:+.3f} ±{apart.half_width:.3f}",
                "smallest margin": "-" if mode == SYNC else f"{apart.margin:.3f}",
                "verdict": "-" if mode == SYNC else apart.verdict(MARGIN),
            }
        )
    words = (
        f"Rewards of the policy's answers to the same prompts, the mean of the last {LAST} askings, or the last alone",
        "where the second half of the steps has no other, with 95 % intervals. `minus sync` is paired by seed and has",
        f"90 % intervals: two one-sided t-tests at the 5 % level say `equal` where they lie within ±{MARGIN}. A",
        "difference is `worse` or `better` where its interval leaves out 0.",
    )
    ours, theirs = ([final(run) for run in runs[mode]] for mode in (PROMPTS, SYNC))
    margin = Difference.of(ours, theirs).margin
    return Part("What is learnt", rows, words, [Goal("reward apart from sync, prompts race", margin, MARGIN)])


def time_part(runs: Runs) -> Part:
    """The same number of trained prompts."""
    rows: list[dict[str, object]] = [
        {"mode": mode, **{name: told(interval(gains(runs, mode, cost)), 2) for name, cost in COSTS.items()}}
        for mode in MODES
        if mode != SYNC
    ]
    words = (
        "How many times what the mode takes synchronous training takes. A decode step is a sweep over all",
        "responses that run. Clock: other processes were busy too, runs_other_cpu_cores says how much.",
        row_words(runs),
    )
    goals = [
        Goal(f"sync over prompts race, {name}", fmean(gains(runs, PROMPTS, cost)), GOAL_GAIN, at_most=False)
        for name, cost in COSTS.items()
    ]
    return Part("Time for the same number of trained prompts", rows, words, goals)


def row_words(runs: Runs) -> str:
    """What a decode step costs here, and what each response in it adds."""
    steps = [step for each in runs.values() for run in each for step in run.steps]
    rows = [step.generated_tokens / step.sweeps for step in steps]
    slope, base = linear_regression(rows, [1e3 * step.rollout_cpu_s / step.sweeps for step in steps])
    sync = [step for run in runs[SYNC] for step in run.steps]
    share = sum(step.train_cpu_s for step in sync) / sum(map(COSTS["step, processor"], sync))
    return (
        f"Here a decode step takes {base:.2f} ms and {slope:.3f} ms for each response in it: a tail of few is cheaper "
        f"than on a GPU, where it costs as much as the whole batch. Training is {share:.0%} of a synchronous step."
    )


def target_part(runs: Runs) -> Part:
    """The same reward."""
    rows: list[dict[str, object]] = []
    for mode in MODES:
        if mode == SYNC:
            continue
        found = {name: gains_to_target(runs, mode, cost) for name, cost in COSTS.items()}
        rows.append(
            {
                "mode": mode,
                "seeds": f"{len(found[CLOCK])} of {len(runs[mode])}",
                **{name: told(interval(each), 2) if each else "-" for name, each in found.items()},
            }
        )
    words = (
        f"To {WAY:.0%} of what the seed's synchronous run gains, between two askings in proportion. Seeds: those",
        "in which the mode reaches it at all.",
    )
    name, clock = f"sync over prompts race to the same reward, {CLOCK}", gains_to_target(runs, PROMPTS, COSTS[CLOCK])
    goals = [Goal(name, fmean(clock), GOAL_GAIN, at_most=False)] if clock else []
    return Part("Time to the same reward", rows, words, goals)


def forecast_part(runs: Runs) -> Part:
    """Where a decode step takes the same time for one response as for all."""
    rows: list[dict[str, object]] = []
    for mode in MODES:
        if mode == SYNC:
            continue
        gain = fmean(gains(runs, mode, COSTS["decode steps"]))
        tokens = fmean(1 / each for each in gains(runs, mode, lambda step: step.trained_tokens))
        shares = {f"training {share:.0%}": f"{1 / ((1 - share) / gain + share * tokens):.2f}" for share in TRAIN_SHARES}
        rows.append({"mode": mode, "rollout": f"{gain:.2f}", "trained tokens": f"{tokens:.2f}", **shares})
    words = (
        "A forecast, not a measurement: gain of a whole step where all decode steps take the same time, as on a",
        "GPU that reads its weights for each, by the share that training has of a synchronous step.",
    )
    return Part("Forecast from decode steps", rows, words)


def bias_part(runs: Runs) -> Part:
    """Which responses are trained, of which prompts."""
    rows: list[dict[str, object]] = []
    for mode, each in runs.items():
        steps = [step for run in each for step in run.steps]
        trained, generated = sum(step.trained_tokens for step in steps), sum(step.generated_tokens for step in steps)
        short, long = (_mean_length([step for step in steps if step.kind == kind]) for kind in ("short", "long"))
        rows.append(
            {
                "mode": mode,
                "shift": f"{fmean(run.lengths['mean_shift'] for run in each):+.1%}",
                "KS": f"{fmean(run.lengths['kolmogorov_smirnov'] for run in each):.3f}",
                "p50, p90, p99 offered": _quantiles(each, "offered"),
                "trained": _quantiles(each, "trained"),
                "short rounds": short,
                "long rounds": long,
                "wasted": f"{1 - trained / generated:.0%}",
                "times trained": _times(each),
            }
        )
    words = (
        "Shift: mean length of what is trained, over what its prompts were offered; KS: the largest difference of",
        "the two distributions. Of an aborted response counts what it had come to: a race of responses looks",
        "better than it is. Short and long rounds: mean lengths. Wasted: of all tokens made. Times trained: how",
        "often each prompt was, from the least to the most.",
    )
    return Part("What is trained of what is offered", rows, words)


def _mean_length(steps: Sequence[Step]) -> str:
    responses = sum(step.responses for step in steps)
    return f"{sum(step.trained_tokens for step in steps) / responses:.1f}" if responses else "-"


def _quantiles(runs: Sequence[Run], side: str) -> str:
    return ", ".join(f"{fmean(run.lengths[side][name] for run in runs):.0f}" for name in ("p50", "p90", "p99"))


def _times(runs: Sequence[Run]) -> str:
    times = {int(times) for run in runs for times in run.times_trained}
    return str(times.pop()) if len(times) == 1 else f"{min(times)} to {max(times)}"


def parts_of(runs: Runs) -> list[Part]:
    return [make(runs) for make in (learnt_part, time_part, target_part, forecast_part, bias_part)]
