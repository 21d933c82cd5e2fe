"""Mean rollout times by over-provisioning of prompts and of responses, and whether ours are ordered as the paper's."""

from collections.abc import Mapping
from itertools import combinations
from statistics import fmean

from benchmarks.figures import rollpacker as paper
from benchmarks.figures.goals import Goal
from benchmarks.figures.job_runs import Cases, Got, Run, Scale, over_seeds, plus_minus
from benchmarks.figures.parts import Part, beside, off
from rollmux.packer.batching import Race
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import System

Factors = tuple[float, float]  # of prompts and of responses
Pair = tuple[Factors, Factors]

STEPS = 45  # whole cycles of 9, 5 and 3 rounds
GOAL_OFF = 0.2
CLEAR = 1.05  # so much apart, the paper's figures are in an order


def cycle(prompts: float) -> int:
    """Rounds from one long one to the next."""
    return 1 if prompts == 1 else round(1 / (prompts - 1)) + 1


def cases(scale: Scale) -> Cases:
    return {
        (name, *factors): scale.each(
            Run(SETUPS[name].only("math"), System("eta", *factors, Race.GENERATED), scale.cut(STEPS, cycle(factors[0])))
        )
        for name, figures in paper.ETA_ROLLOUT_S.items()
        for factors in figures
    }


def parts(got: Got) -> list[Part]:
    means = {key: over_seeds(runs, lambda ran: fmean(s.rollout_s for s in ran.steps)) for key, runs in got.items()}
    rows: list[dict[str, object]] = []
    goals = []
    told: list[str] = []
    for name, figures in paper.ETA_ROLLOUT_S.items():
        ours = {factors: means[(name, *factors)].mean for factors in figures}
        for (prompts, responses), figure in figures.items():
            mean = means[name, prompts, responses]
            named = {"setup": name, "prompts": prompts, "responses": responses}
            rows.append({**named, **beside(mean.mean, figure), "±": plus_minus(mean, 1)})
        pairs, wrong = ordered(figures), out_of_order(figures, ours)
        told += [f"{name}: {pair_told(pair)} is not less here." for pair in wrong]
        worst = max(off(ours[factors], figure) for factors, figure in figures.items())
        goals.append(Goal(f"eta, {name}: mean rollout, most off the paper's", worst, GOAL_OFF))
        goals.append(Goal(f"eta, {name}: pairs in the paper's order", 1 - len(wrong) / len(pairs), 1.0, at_most=False))
    words = (
        "Math prompts only; which data the paper's are of is unsaid. Whole cycles of short rounds and a long one, the",
        f"rollout to its last token, rewards last. Pairs count whose figures the paper has {CLEAR - 1:.0%} apart.",
        "No single model gives all of its figures: for 14B with both factors the mean is 88 s here, with a long round",
        "of 277 s in five (so short ones of 41 s); its step breakdown has short rollouts of 68 s, its five steps of",
        "code 88 s each.",
        *told,
    )
    return [Part("Mean rollout by over-provisioning, s", rows, words, goals)]


def ordered(figures: Mapping[Factors, float]) -> list[Pair]:
    """The pairs that are clearly in an order, the less first."""
    pairs = combinations(sorted(figures, key=figures.__getitem__), 2)
    return [(less, more) for less, more in pairs if figures[more] > CLEAR * figures[less]]


def out_of_order(figures: Mapping[Factors, float], ours: Mapping[Factors, float]) -> list[Pair]:
    """Of the pairs that are clearly in an order in the paper, those that are not in that order here."""
    return [(less, more) for less, more in ordered(figures) if ours[less] >= ours[more]]


def pair_told(pair: Pair) -> str:
    """Two pairs of factors, as they stand in a sentence."""
    less, more = (f"prompts x {prompts:g}, responses x {responses:g}" for prompts, responses in pair)
    return f"({less}) against ({more})"
