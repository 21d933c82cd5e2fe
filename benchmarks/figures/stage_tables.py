"""Parts of steps on one domain: shares of the baseline's stages, five steps of code, and the time limits of tests."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.figures import rollpacker as paper
from benchmarks.figures.goals import Goal, told
from benchmarks.figures.job_runs import CYCLE, Cases, Got, Ran, Run, Scale, StepTimes, over_seeds
from benchmarks.figures.parts import Part, beside
from rollmux.packer.commands import RoundKind
from rollmux.packer.false_kills import FalseKills
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import REWARDS, SYNC, TAIL

SHARED = "14B/16k"
LIMITED = "7B/8k"
LIMIT_STEPS = len(paper.TIMEOUTS_S["fixed"])

GOAL_TIMEOUTS = 1.45
GOAL_FALSE_KILLS = 0.005


def cases(scale: Scale) -> Cases:
    setup = SETUPS[SHARED]
    shares: Cases = {
        ("share", name): scale.each(Run(setup.only(name), SYNC, scale.cut(20))) for name in paper.STAGE_PCT
    }
    five: Cases = {("five", s.name): scale.each(Run(setup.only("code"), s, CYCLE)) for s in (SYNC, TAIL)}
    code, steps = SETUPS[LIMITED].only("code"), scale.cut(LIMIT_STEPS, CYCLE)
    limited: Cases = {
        ("limits", "adaptive"): scale.each(Run(code, REWARDS, steps)),
        ("limits", "fixed"): scale.each(Run(code, replace(REWARDS, adaptive_timeouts=False), steps)),
    }
    return {**shares, **five, **limited}


def parts(got: Got) -> list[Part]:
    return [shares(got), five_steps(got), limits(got), *false_kills(got)]


def shares(got: Got) -> Part:
    """Where the synchronous baseline spends a step."""
    rows: list[dict[str, object]] = []
    for name, figures in paper.STAGE_PCT.items():
        steps = [step for ran in got["share", name] for step in ran.steps]
        seconds = {stage: fmean(step.part_s(stage) for step in steps) for stage in paper.STAGES}
        whole = sum(seconds.values())
        for stage, figure in zip(paper.STAGES, figures, strict=True):
            rows.append({"domain": name, "stage": stage, **beside(100 * seconds[stage] / whole, figure)})
    words = ("One domain at a time. Without the sync, as the paper's shares add up to 100 without it.",)
    return Part(f"Stages of a synchronous step of {SHARED}, %", rows, words)


def five_steps(got: Got) -> Part:
    rows: list[dict[str, object]] = []
    for system, figures in paper.FIVE_STEPS_S.items():
        sums = [stage_sums(ran.steps) for ran in got["five", system]]
        for stage, figure in figures.items():
            rows.append({"system": system, "stage": stage, **beside(fmean(each[stage] for each in sums), figure)})
    words = (
        "Five steps with code, four short rounds and a long one with tail batching, in the mean over the seeds. The",
        "paper's 225 s of rollout for each synchronous step, and 277 s in its eta table, are both of this setup.",
    )
    return Part(f"Five steps of {SHARED} with code, s", rows, words)


def stage_sums(steps: Sequence[StepTimes]) -> dict[str, float]:
    """Seconds of all of them together, by stage."""

    def total(part: str, *kinds: RoundKind) -> float:
        return sum(step.part_s(part) for step in steps if step.kind in kinds)

    both = tuple(RoundKind)
    return {
        "rollout": total("rollout", *both),
        "short rollouts": total("rollout", RoundKind.SHORT),
        "long rollout": total("rollout", RoundKind.LONG),
        "reward": total("reward", *both),
        "train": total("train", *both),
    }


def limits(got: Got) -> Part:
    """Generation and rewards of code, with limits that are learnt and with 30 s for every test."""
    adaptive, fixed = got["limits", "adaptive"], got["limits", "fixed"]
    rows: list[dict[str, object]] = []
    for i in range(len(adaptive[0].steps)):
        row: dict[str, object] = {"step": i + 1, "round": adaptive[0].steps[i].kind.value}
        for name, runs in (("adaptive", adaptive), ("fixed", fixed)):
            ours = fmean(ran.steps[i].scored_s for ran in runs)
            figure = paper.TIMEOUTS_S[name][i]
            row |= {name: ours, f"paper's {name}": figure, f"{name} ratio": ours / figure}
        rows.append(row)
    sums = {name: over_seeds(runs, scored_s) for name, runs in (("adaptive", adaptive), ("fixed", fixed))}
    gain = sums["fixed"].mean / sums["adaptive"].mean
    words = (
        *(
            f"In sum, {name}: {told(each, 0)} s; the paper's 20 steps {sum(paper.TIMEOUTS_S[name]):.0f} s."
            for name, each in sums.items()
        ),
        "Means over the seeds. The paper's rounds take 32 s here, so generation takes no more; by its step breakdown",
        "short rollouts of the same setup with all domains take 74.5 s.",
    )
    goal = Goal(f"time limits, {LIMITED} with code: fixed over adaptive", gain, GOAL_TIMEOUTS, at_most=False)
    return Part("Generation and rewards with code, s", rows, words, [goal])


def scored_s(ran: Ran) -> float:
    return sum(step.scored_s for step in ran.steps)


def false_kills(got: Got) -> list[Part]:
    kills = pooled([ran.false_kills for ran in got["limits", "adaptive"] if ran.false_kills is not None])
    rate = kills.of_runs or 0.0
    row: dict[str, object] = {
        "runs": kills.runs,
        "killed": kills.killed,
        "audited": kills.audited,
        "would have passed": kills.would_have_passed,
        "of runs": rate,
        "at most (95 %)": kills.of_runs_upper,
    }
    words = (
        "All seeds together. In our data hardly a program ends between the learnt limits and 30 s, as in the paper's",
        "figure 7a: the rate is the data's more than the policy's. The paper reports none.",
    )
    goals = [
        Goal("false kills of runs, estimate", rate, GOAL_FALSE_KILLS),
        Goal("false kills of runs, upper bound", kills.of_runs_upper, GOAL_FALSE_KILLS),
    ]
    return [Part("Runs killed by learnt limits that would have passed at 30 s", [row], words, goals)]


def pooled(counts: Sequence[FalseKills]) -> FalseKills:
    """The counts of several jobs as those of one."""
    return FalseKills(
        sum(each.runs for each in counts),
        sum(each.killed for each in counts),
        sum(each.audited for each in counts),
        sum(each.would_have_passed for each in counts),
    )
